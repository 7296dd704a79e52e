"""The table of learning results in README, made of the files that run.py and time_to_pong.py wrote:
`python benchmarks/learning/table.py`.

`--write` puts it between the two marks in README. A test compares them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
BEGIN, END = "<!-- learning: begin -->", "<!-- learning: end -->"
ROWS = {
    "cartpole": "CartPole-v1",
    "breakout": "Breakout, 60 minutes, a smaller network",
    "vizdoom-basic": "VizDoom basic",
    "vizdoom-health-gathering": "VizDoom health gathering",
    "cartpole-swingup": "dm_control cartpole-swingup",
    "halfcheetah": "MuJoCo HalfCheetah-v5",
    "hopper": "MuJoCo Hopper-v5",
    "walker2d": "MuJoCo Walker2d-v5",
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
    result = json.loads((HERE / "results" / f"{name}.json").read_text())
    seeds = result["seeds"]
    how = "most probable" if seeds[0]["evaluation"].get("deterministic") else "sampled"
    played = f"{'; '.join(evaluation(s) for s in seeds)}, {games(seeds)}, {how}"
    reached = [s for s in seeds if s["seconds_to_goal"] is not None]
    goal = f"{result['goal']:g}: "
    if len(reached) == len(seeds):
        goal += f"{spread([s['steps_to_goal'] for s in reached], steps)}, "
        goal += spread([s["seconds_to_goal"] for s in reached], duration)
    else:
        goal += f"reached by {len(reached)} of {len(seeds)}"
    ends = {"goal": "its stopping value", "interrupted": "by hand", "max_minutes": "time limit", "total_steps": "step limit"}
    ended = " / ".join(dict.fromkeys(ends[s["ended"]] for s in seeds))
    ended += f", {spread([s['steps'] for s in seeds], steps)}, {spread([s['seconds_with_start_up'] for s in seeds], duration)}"
    return f"| {label} (`{name}`) | {result['date']} | {len(seeds)} | {goal} | {ended} | {played} |"


def pong() -> str:
    """The line of the newest entry of time_to_pong.py's record."""
    record = json.loads((HERE / "results" / "time_to_pong.json").read_text())
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


def in_readme() -> str:
    """What stands between the marks."""
    return README.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def main() -> None:
    """Print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into README")
    if not parser.parse_args().write:
        print(table())
        return
    before, _, rest = README.read_text().partition(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
