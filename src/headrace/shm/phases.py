"""What the time of each part of a run is spent on: the phases that `headrace.shm.run_control.PhaseClock` adds up."""

from __future__ import annotations

from dataclasses import dataclass

PARTS = {"rollout": "rollout workers", "policy": "policy workers", "learner": "learner"}
"""Parts of a run that measure their time, with their names for people."""


@dataclass(frozen=True)
class Phase:
    """One phase of a part, whose share of the part's time is the metric `time/<part>/<phase>`."""

    label: str  # for the dashboard
    description: str  # for the documentation: "share of time ..."
    waiting: bool = False  # whether the part waits for another part in this phase


PHASES: dict[str, dict[str, Phase]] = {
    "rollout": {
        "step": Phase("stepping", "in the environments' steps"),
        "forward": Phase("forward", "computing actions (`inline` placement)"),
        "other": Phase("other", "on everything else"),
        "wait_actions": Phase("waiting for actions", "waiting for actions", waiting=True),
        "wait_slots": Phase("waiting for slots", "waiting for free trajectory slots, that is, for the learner", waiting=True),
    },
    "policy": {
        "forward": Phase("forward", "computing actions"),
        "gather": Phase("gathering", "copying observations into a batch"),
        "scatter": Phase("scattering", "writing actions to the trajectories"),
        "weights": Phase("weights", "copying new weights"),
        "wait": Phase("waiting", "waiting for requests", waiting=True),
    },
    "learner": {
        "train": Phase("computing", "computing losses, gradients and optimizer steps"),
        "publish": Phase("publishing", "publishing new weights"),
        "checkpoint": Phase("checkpoint", "writing checkpoints"),
        "wait": Phase("waiting for data", "waiting for a batch", waiting=True),
    },
}
"""The phases of each part, in the order in which clocks hold them and the dashboard shows them."""


def waiting_share(metrics: dict[str, float], part: str) -> float:
    """The share of its time, 0 to 1, that a part waits for other parts."""
    return sum(metrics.get(f"time/{part}/{name}", 0.0) for name, phase in PHASES[part].items() if phase.waiting)
