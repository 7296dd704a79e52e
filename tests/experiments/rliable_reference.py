"""Writes rliable_reference.json, with which test_statistics.py compares: what rliable 1.2.0 says of random scores.

    python tests/experiments/rliable_reference.py        in an environment with rliable==1.2.0 and pandas<3

rliable draws its resamples from NumPy's global state. `resampled_runs` repeats these draws, so that intervals can be compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_suffix(".json")
RESAMPLES = 500
LEVELS = np.linspace(-0.5, 2.0, 11)


def random_scores(seed: int, runs: int, tasks: int) -> np.ndarray:
    """float64 [runs, tasks], with ties and values above 1."""
    return np.random.default_rng(seed).normal(0.6, 0.6, (runs, tasks)).round(1)


def resampled_runs(seed: int, *shapes: tuple[int, int]) -> list[np.ndarray]:
    """For scores of each shape [runs, tasks], the runs that rliable draws: int [resamples, runs, tasks]."""
    state = np.random.RandomState(seed)
    drawn: list[list[np.ndarray]] = [[] for _ in shapes]
    for _ in range(RESAMPLES):
        for own, (runs, tasks) in zip(drawn, shapes, strict=True):
            own.append(state.choice(runs, (runs, tasks), replace=True))
    return [np.array(own) for own in drawn]


def main() -> None:
    from rliable import library, metrics

    cases: list[dict[str, Any]] = []
    for seed, runs, tasks in ((1, 3, 1), (2, 5, 4), (3, 10, 7)):
        x, y = random_scores(seed, runs, tasks), random_scores(100 + seed, runs + 1, tasks)
        functions = {
            "IQM": metrics.aggregate_iqm, "median": metrics.aggregate_median, "mean": metrics.aggregate_mean,
            "optimality gap": metrics.aggregate_optimality_gap,
        }  # fmt: skip
        case: dict[str, Any] = {"seed": seed, "runs": runs, "tasks": tasks, "aggregates": {}}
        for name, function in functions.items():
            np.random.seed(seed)  # noqa: NPY002
            point, ends = library.get_interval_estimates({"x": x}, lambda s, f=function: np.array([f(s)]), reps=RESAMPLES)
            case["aggregates"][name] = [float(point["x"][0]), *map(float, ends["x"][:, 0])]
        np.random.seed(seed)  # noqa: NPY002
        profiles, bands = library.create_performance_profile({"x": x}, LEVELS, reps=RESAMPLES)
        case["profile"] = [profiles["x"].tolist(), *bands["x"].tolist()]
        np.random.seed(seed)  # noqa: NPY002
        better, ends = library.get_interval_estimates(
            {"x": [x, y]}, lambda a, b: np.array([metrics.probability_of_improvement(a, b)]), reps=RESAMPLES
        )
        case["improvement"] = [float(better["x"][0]), *map(float, ends["x"][:, 0])]
        cases.append(case)
    FILE.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
