"""What README.md and docs/results.md show of the result files: `python benchmarks/learning/table.py`.

The learning table is made of the files of run.py and time_to_pong.py, the table of defaults of run.py's defaults-TASK.json,
MuJoCo's and Atari's of laboratory.py's mujoco.json and atari-5-*.json, the table of speeds of those in benchmarks/results.
`--write` puts the tables between their marks in the pages; a test compares them. `--pictures` draws docs/pictures/learning.png.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "results.md"
PICTURE = ROOT / "docs" / "pictures" / "learning.png"
ROWS = {
    "cartpole": "CartPole-v1",
    "breakout": "Breakout, 60 minutes, a smaller network",
    "vizdoom-basic": "VizDoom basic",
    "vizdoom-health-gathering": "VizDoom health gathering",
    "cartpole-swingup": "dm_control cartpole-swingup",
    "impala-pong": "Pong, IMPALA as published",
    "impala-breakout": "Breakout, IMPALA as published, 60 minutes",
    "apex-pong": "Pong, Ape-X DQN",
    "apex-cartpole-swingup": "cartpole-swingup, Ape-X DPG",
    "apex-walker-walk": "walker-walk, Ape-X DPG",
    "apex-minatar-breakout": "MinAtar breakout, Ape-X DQN",
    "memory-gru": "remembering a cue, GRU",
    "memory-none": "the same without memory (control)",
}
"""Result files by name, in the table's order, and what they are of."""


def number(x: float) -> str:
    """Two or three digits that say something."""
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.1f}" if abs(x) >= 10 else f"{x:.2f}"


def spread(values: list[float], show: Any) -> str:
    """One value, or the smallest and the largest."""
    shown = [show(v) for v in (min(values), max(values))]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"


def duration(seconds: float) -> str:
    """Seconds or minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def evaluation(seed: dict[str, Any]) -> str:
    """Mean of whole games, with its 95 % interval where all games were not alike."""
    e = seed["evaluation"]
    low, high = e["ci95"]
    return number(e["mean"]) + ("" if low == high else f" ({number(low)} to {number(high)})")


def steps(n: float) -> str:
    """In thousands or millions."""
    return f"{n / 1e6:.2f} M" if n >= 1e6 else f"{n / 1e3:.0f} K"


def games(seeds: list[dict[str, Any]]) -> str:
    """How many were played with each seed, and how many of them are distinct, where the file says so."""
    played = seeds[0]["evaluation"]["episodes"]
    distinct = [s["evaluation"].get("distinct", played) for s in seeds]
    return f"{played} games" + (f" ({spread(distinct, str)} distinct)" if min(distinct) < played else "")


def row(name: str, label: str) -> str:
    """One line of the table."""
    found = result(name)
    seeds = found["seeds"]
    how = "most probable" if seeds[0]["evaluation"].get("deterministic") else "sampled"
    played = f"{'; '.join(evaluation(s) for s in seeds)}, {games(seeds)}, {how}"
    reached = [s for s in seeds if s["seconds_to_goal"] is not None]
    goal = f"{found['goal']:g}: "
    if len(reached) == len(seeds):
        goal += f"{spread([s['steps_to_goal'] for s in reached], steps)}, "
        goal += spread([s["seconds_to_goal"] for s in reached], duration)
    else:
        goal += f"reached by {len(reached)} of {len(seeds)}"
    ends = {"goal": "its stopping value", "interrupted": "by hand", "max_minutes": "time limit", "total_steps": "step limit"}
    ended = " / ".join(dict.fromkeys(ends[s["ended"]] for s in seeds))
    ended += f", {spread([s['steps'] for s in seeds], steps)}, {spread([s['seconds_with_start_up'] for s in seeds], duration)}"
    return f"| {label} (`{name}`) | {found['date']} | {len(seeds)} | {goal} | {ended} | {played} |"


def pong() -> str:
    """The line of the newest entry of time_to_pong.py's record."""
    record = result("time_to_pong")
    entry = record["entries"][-1]
    seeds, reached = entry["seeds"], [s for s in entry["seeds"] if s["minutes"] is not None]
    goal = f"{record['goal']:g}: reached by {len(reached)} of {len(seeds)}"
    if len(reached) == len(seeds):
        minutes = spread([s["minutes"] for s in reached], lambda m: f"{m:.1f} min")
        goal = f"{record['goal']:g}: {spread([s['steps'] for s in reached], steps)}, {minutes}"
    played = f"{'; '.join(evaluation(s) for s in seeds)}, {games(seeds)}, sampled"
    return f"| Pong, as `make train` (`time_to_pong`) | {entry['date']} | {len(seeds)} | {goal} | at that value | {played} |"


def table() -> str:
    """Markdown."""
    head = "| task (file in `learning/results`) | date | seeds | training mean first above | training ended | evaluation |"
    rows = [row(name, label) for name, label in ROWS.items()]
    return "\n".join([head, "| --- | --- | --- | --- | --- | --- |", pong(), *rows])


LEARNED = {
    "cartpole": "CartPole", "pendulum": "Pendulum", "lunar-lander": "LunarLander", "minatar-breakout": "MinAtar Breakout",
    "grid": "a grid", "levers": "Dict and MultiDiscrete", "pong": "Pong",
}  # fmt: skip
"""Columns of the table of defaults: tasks of `run.LEARNS`, and what they are."""


def defaults() -> str:
    """Markdown: every algorithm with its defaults on every task."""
    found = {name: result(f"defaults-{name}") for name in LEARNED}
    algorithms = dict.fromkeys(algorithm for task in found.values() for algorithm in task["algorithms"])
    goals = [f"{label}: {found[name]['goal']:g}" for name, label in LEARNED.items()]
    rows = [[f"`{a}`", *(learned(task["algorithms"].get(a, [])) for task in found.values())] for a in algorithms]
    return markdown(["", *goals], rows)


def learned(seeds: list[dict[str, Any]]) -> str:
    """One cell: steps and minutes to the goal, and how far the seeds came that did not reach it."""
    if any("refused" in seed for seed in seeds):
        return "not its kind of action"
    there = [seed for seed in seeds if seed["steps_to_goal"] is not None]
    parts = []
    if there:
        minutes = spread([seed["minutes"] for seed in there], "{:.1f}".format)
        parts.append(f"{spread([seed['steps_to_goal'] for seed in there], steps)}, {minutes} min ({len(there)} of {len(seeds)})")
    for seed in seeds:
        if seed not in there:
            played = f" (evaluation: {number(seed['evaluation'])})" if "evaluation" in seed else ""
            parts.append(f"**{number(seed['score'])}** after {steps(seed['steps'])}{played}")
    return "; ".join(parts)


FIRST = "steps and minutes to CleanRL's"


def mujoco() -> str:
    """Markdown: five seeds of the defaults on MuJoCo's tasks, beside published returns."""
    rows = []
    for task, found in result("mujoco")["tasks"].items():
        published = (" ± ".join(f"{x:,}" for x in found[by] or ()) for by in ("CleanRL", "Tianshou"))
        played = "; ".join(map(number, found["mean action, 10 games"]))
        rows.append([task, *scores(found), played, *published])
    head = ["", "training games, each seed", "IQM (95 %)", "minutes", "mean action, each seed", "CleanRL", "Tianshou"]
    return markdown(head, rows)


def atari() -> str:
    """Markdown: the games of Atari-5 after 10 M frames, beside PPO's published scores after 40 M, and the median of 57 games.
    What an algorithm has not played yet is left empty."""
    names = [name for name in ("default", "appo", "impala") if (HERE / "results" / f"atari-5-{name}.json").exists()]
    found = [result(f"atari-5-{name}") for name in names]
    rows = []
    for env, row in found[0]["tasks"].items():
        default, *others = [scores(of["tasks"][env])[:2] if env in of["tasks"] else ["", ""] for of in found]
        paper = number(paper) if (paper := row["PPO, 40 M frames"]) else "not played"
        rows.append([env, *default, *(each for each, _ in others), paper])
    medians = [of_human(of["median of 57 games, 95 %"]) for of in found]
    rows.append(["median of 57 games, estimated", "", *medians, ""])
    return markdown(["", "default, each seed", "its interquartile mean, 95 %", *names[1:], "PPO after 40 M frames"], rows)


def of_human(estimate: list[float]) -> str:
    """An estimate, with its 95 % interval where there is one, as a share of a human's score; empty without any."""
    if not estimate:
        return ""
    value, *ends = (f"{x:.0%}" for x in estimate)
    return f"{value} of a human's" + (f" ({' to '.join(ends)})" if ends else "")


def scores(found: dict[str, Any]) -> list[str]:
    """Three cells of a row of `laboratory.learned`: the seeds' scores, their interquartile mean, the median of the minutes."""
    each = "; ".join(map(number, found["scores"]))
    ends = f" ({' to '.join(map(number, found['95 %']))})" if found["95 %"] else ""
    return [each, number(found["iqm"]) + ends, f"{median(found['minutes']):.1f}"]


def result(name: str) -> dict[str, Any]:
    """One of the files of laboratory.py and run.py."""
    loaded: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text())
    return loaded


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def speeds() -> str:
    """Markdown: steps per second that training consumes, beside what they are compared with. Medians of rounds."""
    sample_factory, mujoco = speed_file("vs_sample_factory"), speed_file("vs_stable_baselines3_mujoco")
    dqn = speed_file("vs_dqn_512")
    breakout, vizdoom = (sample_factory["rows"][env]["steps_per_second"] for env in ("atari/breakout", "vizdoom/basic"))
    doom_date, breakout_date = (machine["started"][:10] for machine in sample_factory["machine"])
    rates = [row["steps_per_second"] for row in mujoco["rows"].values()]
    replayed = dqn["rows"]["atari/pong"]["steps_per_second"]
    others = max((rates for name, rates in replayed.items() if not name.startswith("headrace")), key=median)
    sb3 = [max(rate["SB3, dummy"], rate["SB3, subprocesses"], key=median) for rate in rates]
    theirs = [rate["sample-factory"] for rate in (breakout, vizdoom)]
    mujoco_date = mujoco["machine"]["started"][:10]
    rows = [
        ("`atari/breakout`; Sample Factory 2.1.1 with the same network, batch and algorithm",
         [breakout["headrace"]], theirs[:1], "vs_sample_factory", breakout_date),
        ("the same in float32 and on ale-py, which is what Sample Factory has",
         [breakout["headrace, same means"]], theirs[:1], "vs_sample_factory", breakout_date),
        ("`vizdoom/basic` with a GRU; Sample Factory 2.1.1 likewise",
         [vizdoom["headrace"]], theirs[1:], "vs_sample_factory", doom_date),
        ("`gym/HalfCheetah-v5`, `Hopper-v5`, `Walker2d-v5`, default settings; PPO of Stable-Baselines3",
         [rate["headrace, its own means"] for rate in rates], sb3, "vs_stable_baselines3", mujoco_date),
        ("the same with Stable-Baselines3's minibatches of 64",
         [rate["headrace"] for rate in rates], sb3, "vs_stable_baselines3", mujoco_date),
        ("DQN on `atari/pong` from a replay, batches of 512; the fastest of Stable-Baselines3, CleanRL and RLlib",
         [replayed["headrace"]], [others], "vs_dqn", dqn["machine"]["started"][:10]),
    ]  # fmt: skip
    head = "| training; compared with | Headrace, steps/s | compared with, steps/s | ratio | date | script |"
    return "\n".join([head, "| --- | --- | --- | --- | --- | --- |", *(speed_row(*row) for row in rows)])


def speed_file(name: str) -> dict[str, Any]:
    """One of benchmarks/results."""
    loaded: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return loaded


def speed_row(label: str, ours: Sequence[list[float]], theirs: Sequence[list[float]], script: str, date: str) -> str:
    """One line of the table of speeds: for each environment the rounds of both sides."""
    ours_shown, theirs_shown = ("; ".join(f"{median(rounds):,.0f}" for rounds in side) for side in (ours, theirs))
    ratios = [median(a) / median(b) for a, b in zip(ours, theirs, strict=True)]
    return f"| {label} | {ours_shown} | {theirs_shown} | {spread(ratios, '{:.1f}x'.format)} | {date} | `benchmarks/{script}.py` |"


def pictures() -> None:
    """Draw Pong's training returns over minutes, and how long each seed of the other tasks took to its goal.

    Tasks that a seed did not learn are left out.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    curves, times = figure.subplots(1, 2)
    record = result("time_to_pong")
    for seed in record["entries"][-1]["seeds"]:
        minutes, _, returns = zip(*seed["curve"], strict=True)
        curves.plot(minutes, returns, label=f"seed {seed['seed']}")
    curves.axhline(record["goal"], color="grey", linestyle="--", linewidth=1)
    curves.set(title="Atari Pong", xlabel="minutes", ylabel="mean return of 100 training games")
    curves.legend()
    reached = []
    for name, label in ROWS.items():
        found = result(name)
        seconds = [seed["seconds_to_goal"] for seed in found["seeds"]]
        if None not in seconds:
            reached.append((f"{label.replace('60 minutes, ', '')}: {found['goal']:g}", seconds))
    for task, row in result("mujoco")["tasks"].items():
        if all(first := row.get(FIRST, [None])):
            reached.append((f"{task.removesuffix('-v5')}: {row['CleanRL'][0]}", [60 * minutes for _, minutes in first]))
    reached.sort(key=lambda task: median(task[1]))
    for place, (_, seconds) in enumerate(reached[::-1]):
        times.plot(seconds, [place] * len(seconds), "o", color="tab:blue", alpha=0.7)
    times.set_yticks(range(len(reached)), [label for label, _ in reached[::-1]])
    ticks = {5: "5 s", 15: "15 s", 60: "1 min", 240: "4 min", 900: "15 min", 3600: "1 h"}
    times.set(title="Time to the return named, each seed", xscale="log", xlim=(3, 5000))
    times.set_xticks(list(ticks), list(ticks.values()))
    times.minorticks_off()
    for panel in (curves, times):
        panel.grid(alpha=0.3)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=100)


BLOCKS = (
    (PAGE, "learning", table), (PAGE, "defaults", defaults), (PAGE, "mujoco", mujoco), (PAGE, "atari", atari),
    (README, "speeds", speeds), (PAGE, "speeds", speeds),
)  # fmt: skip
"""Which page has which table, between marks of that name."""


def marks(name: str) -> tuple[str, str]:
    """The lines before and after a table."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def in_page(page: Path, name: str) -> str:
    """What stands between the marks."""
    begin, end = marks(name)
    return page.read_text().partition(begin)[2].partition(end)[0].strip()


def write(page: Path, name: str, text: str) -> None:
    """Put it between the marks."""
    begin, end = marks(name)
    before, _, rest = page.read_text().partition(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")


def main() -> None:
    """Print, write or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into the pages")
    parser.add_argument("--pictures", action="store_true", help="draw docs/pictures/learning.png")
    arguments = parser.parse_args()
    if arguments.pictures:
        pictures()
    if arguments.write:
        for page, name, make in BLOCKS:
            write(page, name, make())
    if not (arguments.pictures or arguments.write):
        print(table(), defaults(), mujoco(), atari(), speeds(), sep="\n\n")


if __name__ == "__main__":
    main()
