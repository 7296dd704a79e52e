"""What a short training of Doom duels is worth: one player against a scripted bot, or a population against itself.

    python benchmarks/learning/vizdoom_duels.py bot --minutes 10 --matches 20
    python benchmarks/learning/vizdoom_duels.py population --minutes 15 --matches 40

`bot`: one player is trained on `vizdoom/duel_bots`. Then it and a random player each play games against the bot (one process),
and matches against each other (`vizdoom/multi_duel`: two game processes). Prints the frags and deaths per game, and the wins,
losses and ties of the matches with a 95 % interval (Wilson) of the win rate; writes them to results/vizdoom-duel.json, and the
learning curve and the frags to results/vizdoom-duel.png.

`population`: policies of `vizdoom/multi_duel` with population-based training. Opponents are drawn uniformly for every match, as
in Petrenko et al. 2020; the objective is the win rate. Periods are shorter than the paper's, whose population played 2.5 G
frames. Then every policy plays against the random player. Prints and writes results/vizdoom-population.json, and .png with the
curves of every policy: shaped return, Elo rating, policy lag.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import headrace
from headrace.config import EnvConfig
from headrace.envs.vizdoom.env import VizdoomEnv
from headrace.envs.vizdoom.match import Match
from headrace.evaluation.intervals import wilson
from headrace.evaluation.matches import play
from headrace.evaluation.policy import load_policy
from headrace.population import records
from headrace.population.matchmaking import make_script
from headrace.runs.metrics import read_jsonl
from headrace.runs.plots import curve

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import summary  # noqa: E402

BOT_GAME, MATCH = "duel_bots", "multi_duel"
CURVES = {"charts/episodic_return_100": "shaped return", "matches/elo": "Elo rating", "lag/mean": "policy lag (updates)"}
Act = Callable[[Any], Any]


# -- one player against a bot ------------------------------------------------------------------------------------------


def against_bot(act: Act, begin: Callable[[], None], games: int, options: EnvConfig) -> list[dict[str, float]]:
    """Frags and deaths of games against the bot."""
    env = VizdoomEnv(BOT_GAME, options)
    scores = []
    for game in range(games):
        observation, _ = env.reset(seed=10_000 + game)
        begin()
        over = False
        while not over:
            observation, _, terminated, truncated, info = env.step(act(observation))
            over = terminated or truncated
        scores.append(info)
    env.close()
    return scores


def against_each_other(acts: list[Act], begin: Callable[[], None], matches: int, options: EnvConfig) -> list[list[float]]:
    """Frags of the two players in each match; they change places every time."""
    env = Match(MATCH, options)
    frags = []
    while len(frags) < matches:
        places = [0, 1] if len(frags) % 2 == 0 else [1, 0]
        observations, _ = env.reset(seed=20_000 + len(frags))
        begin()
        infos: dict[str, dict[str, Any]] = {}
        while env.agents:
            chosen = {agent: acts[places[i]](observations[agent]) for i, agent in enumerate(env.agents)}
            observations, _, _, _, infos = env.step(chosen)
        if not any(info.get("restarted") for info in infos.values()):
            by_place = [infos[agent]["outcome"] for agent in env.possible_agents]
            frags.append([by_place[places.index(player)] for player in (0, 1)])
    env.close()
    return frags


def draw_player(folder: Path, scores: dict[str, list[dict[str, float]]], path: Path) -> None:
    """The learning curve, and frags and deaths of each player against the bot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*curve(folder, "charts/episodic_return_100"))
    left.set(xlabel="steps", ylabel="shaped return, last 100 games", title="training against the bot")
    left.grid(alpha=0.3)
    for shift, key in ((-0.2, "frags"), (0.2, "deaths")):
        heights = [sum(s[key] for s in games) / len(games) for games in scores.values()]
        right.bar([i + shift for i in range(len(scores))], heights, 0.4, label=f"{key} per game")
    right.set_xticks(range(len(scores)), list(scores))
    right.set(title="afterwards, against the bot")
    right.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def bot(asked: argparse.Namespace) -> None:
    """See the module."""
    extra = {key: json.loads(value) for key, value in (item.split("=", 1) for item in asked.set)}
    folder = asked.run or asked.runs / f"vizdoom-duel-{time.strftime('%Y%m%d-%H%M%S')}"
    run = {"seed": asked.seed, "run.folder": str(folder), "run.max_minutes": asked.minutes, "run.video": False, **extra}
    config = headrace.make_config(f"vizdoom/{BOT_GAME}", **run)
    load = os.getloadavg()[0]
    if asked.run is None:
        headrace.train(config)
    policy = load_policy(folder)
    torch.set_num_threads(1)  # one observation at a time: threads would only wait for each other, long on a busy machine
    space = policy.make_env().action_space
    space.seed(0)

    def trained(observation: Any) -> Any:
        return policy.act(observation, deterministic=False)

    def random(observation: Any) -> Any:
        return space.sample()

    options = EnvConfig(frameskip=config.envs.frameskip)
    players = {"trained": trained, "random": random}
    scores = {name: against_bot(act, policy.reset, asked.games, options) for name, act in players.items()}
    frags = against_each_other([trained, random], policy.reset, asked.matches, options)
    wins, losses = sum(a > b for a, b in frags), sum(a < b for a, b in frags)
    interval = [round(bound, 3) for bound in wilson(wins, len(frags))]
    draw_player(folder, scores, asked.out / "vizdoom-duel.png")
    for name, games in scores.items():
        mean = {key: sum(s[key] for s in games) / len(games) for key in ("frags", "deaths")}
        print(f"{name} against the bot: {mean['frags']:.1f} frags, {mean['deaths']:.1f} deaths per game ({len(games)} games)")
    print(f"trained against random: {wins} wins, {losses} losses, {len(frags) - wins - losses} ties, win rate {interval}")
    report = {
        "env": f"vizdoom/{BOT_GAME}",
        "settings": extra,
        "seed": asked.seed,
        "minutes": policy.config.run.max_minutes,
        "steps": policy.step,
        "load_before": round(load, 1),
        "against_the_bot": {
            name: {key: [s[key] for s in games] for key in ("frags", "deaths")} for name, games in scores.items()
        },
        "trained_against_random": {
            "wins": wins,
            "losses": losses,
            "matches": len(frags),
            "win_rate_ci95": interval,
            "frags": frags,
        },
        "machine": summary.machine(),
        "date": time.strftime("%Y-%m-%d"),
    }
    summary.write(asked.out / "vizdoom-duel.json", report)


# -- a population --------------------------------------------------------------------------------------------------------


def population_settings(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Of the training run. Options of the environment replace its own as a whole, so its reward shaping is said again."""
    options = headrace.make_config(f"vizdoom/{MATCH}").envs.kwargs | {"episode_timeout": asked.frames}
    return {
        "run.folder": str(folder), "run.max_minutes": asked.minutes, "run.video": False, "run.dashboard": False,
        "seed": asked.seed, "population.size": asked.size, "matches.matchmaker": "uniform", "pbt.rule": "paper",
        "pbt.objective": "win_rate", "pbt.period": asked.period, "envs.kwargs": options,
    }  # fmt: skip


def draw_population(folder: Path, size: int, path: Path) -> None:
    """One panel for each metric, one line for each policy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for axes, (key, name) in zip(figure.subplots(1, len(CURVES)), CURVES.items(), strict=True):
        for p in range(size):
            axes.plot(*curve(folder / f"policy-{p}", key), label=f"policy {p}")
        axes.set(xlabel="steps of the policy", title=name)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=100)


def population(asked: argparse.Namespace) -> None:
    """See the module."""
    env = f"vizdoom/{MATCH}"
    folder = asked.runs / f"vizdoom-population-{time.strftime('%Y%m%d-%H%M%S')}"
    given, load = population_settings(asked, folder), os.getloadavg()[0]
    headrace.train(headrace.make_config(env, **given))
    draw_population(folder, asked.size, asked.out / "vizdoom-population.png")
    policies = []
    for p in range(asked.size):
        policy = load_policy(folder, policy=p, device="cpu")
        result = play(policy, make_script("random", policy.spec), env, policy.config.envs, asked.matches, deterministic=False)
        rows = read_jsonl(folder / f"policy-{p}" / "metrics.jsonl")
        last = {key: row[key] for row in rows for key in (*CURVES, "matches/games") if key in row}
        policies.append({"steps": policy.step, "against random": str(result), **last})
        print(f"policy {p}: {policies[-1]}", flush=True)
    decisions = records.read_decisions(folder)
    summary.write(asked.out / "vizdoom-population.json", {
        "settings": {key: value for key, value in given.items() if key != "run.folder"}, "policies": policies,
        "decisions": len(decisions), "mutations": sum(one["before"] != one["values"] for one in decisions),
        "copies": sum(one["donor"] is not None for one in decisions), "load_before": round(load, 1), "machine": summary.machine(),
    })  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    one = kinds.add_parser("bot", help="one player against a scripted bot")
    one.set_defaults(run_it=bot)
    one.add_argument("--games", type=int, default=10, help="games of each player against the bot")
    one.add_argument("--set", nargs="*", default=[], metavar="SETTING=JSON", help="settings of the training run")
    one.add_argument("--run", type=Path, help="do not train: play with the policy of this run folder")
    many = kinds.add_parser("population", help="policies with population-based training against each other")
    many.set_defaults(run_it=population)
    many.add_argument("--size", type=int, default=4)
    many.add_argument("--frames", type=int, default=2_100, help="of a match: a minute")
    many.add_argument("--period", type=int, default=20_000, help="steps of a policy between decisions")
    for kind, minutes, matches, seed in ((one, 10.0, 20, 1), (many, 15.0, 40, 0)):
        kind.add_argument("--minutes", type=float, default=minutes, help="of training")
        kind.add_argument("--matches", type=int, default=matches, help="of each trained policy against the random player")
        kind.add_argument("--seed", type=int, default=seed)
        kind.add_argument("--runs", type=Path, default=Path("runs/learning"))
        kind.add_argument("--out", type=Path, default=HERE / "results")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    asked.run_it(asked)


if __name__ == "__main__":
    main()
