"""Does training against a scripted bot help? One player is trained on vizdoom/duel_bots and then plays against others.

    python benchmarks/learning/vizdoom_duel.py --minutes 10 --matches 20

After training, the trained policy and a random player each play games against the bot (one process), and matches against each
other (`vizdoom/multi_duel`: two game processes). Printed and kept in results/vizdoom-duel.json are the frags and deaths per game,
and wins, losses and ties of the matches with a 95 % interval (Wilson) of the win rate; results/vizdoom-duel.png shows the
learning curve and the frags.
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
from headrace.envs.vizdoom import VizdoomEnv
from headrace.envs.vizdoom.match import Match
from headrace.evaluation.matches import wilson
from headrace.runs.plots import curve

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import summary  # noqa: E402

BOT_GAME, MATCH = "duel_bots", "multi_duel"
Act = Callable[[Any], Any]


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


def plot(folder: Path, scores: dict[str, list[dict[str, float]]], path: Path) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--games", type=int, default=10, help="games of each player against the bot")
    parser.add_argument("--matches", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], metavar="SETTING=JSON", help="settings of the training run")
    parser.add_argument("--run", type=Path, help="do not train: play with the policy of this run folder")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--out", type=Path, default=HERE / "results")
    asked = parser.parse_args()
    extra = {key: json.loads(value) for key, value in (item.split("=", 1) for item in asked.set)}
    folder = asked.run or asked.runs / f"vizdoom-duel-{time.strftime('%Y%m%d-%H%M%S')}"
    run = {"seed": asked.seed, "run.folder": str(folder), "run.max_minutes": asked.minutes, "run.video": False, **extra}
    config = headrace.make_config(f"vizdoom/{BOT_GAME}", **run)
    load = os.getloadavg()[0]
    if asked.run is None:
        headrace.train(config)
    policy = headrace.load_policy(folder)
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
    asked.out.mkdir(parents=True, exist_ok=True)
    plot(folder, scores, asked.out / "vizdoom-duel.png")
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


if __name__ == "__main__":
    main()
