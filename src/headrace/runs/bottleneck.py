"""Which part of a run is the bottleneck, found from the time that each part spends waiting.

The parts form a ring: environments need actions, the policy needs requests, the learner needs trajectories, and environments
need the slots that the learner frees. In a ring the part that waits least is the one that the others wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.shm.phases import waiting_share

Part = Literal["environments", "policy", "learner", "processor", "handover", "unknown"]

IDLE = 0.4
"""If even the busiest part waits for more than this share of its time, the parts hand over too little work at a time."""
BUSY = 0.1
"""A part that waits for less than this share of its time is busy all the time."""
SATURATED = 0.9
"""If more than this share of the processor is in use, parts that wait are waiting for its cores."""

_WHO: dict[Part, str] = {"learner": "learner", "policy": "policy", "environments": "rollout workers"}
_ADVICE: dict[Part, str] = {
    "learner": "Use a larger learning.batch-size, fewer learning.num-epochs, learning.precision bf16, a smaller network or "
    "an accelerator.",
    "policy": "Use more environments per request (sampling.envs-per-worker), more sampling.num-policy-workers, "
    "learning.precision bf16, a smaller network or an accelerator.",
    "environments": "Use more sampling.num-workers (up to one per core) or more environments per worker.",
    "processor": "Use more or faster cores, an accelerator for the network, a smaller network or fewer epochs.",
    "handover": "Use more sampling.envs-per-worker, more sampling.num-groups or a smaller sampling.batch_timeout.",
}


@dataclass(frozen=True)
class Bottleneck:
    """The bottleneck of a run, and what to change."""

    part: Part
    finding: str
    advice: str

    def __str__(self) -> str:
        return f"{self.finding} {self.advice}".strip()


def find(metrics: dict[str, float]) -> Bottleneck:
    """Find the bottleneck from `metrics`: `time/<part>/<phase>` (shares of each part's time, 0 to 1) and `system/cpu`.

    A part without such keys (policy workers in `inline` placement) is left out. Other keys are ignored.
    """
    if "time/learner/wait" not in metrics or "time/rollout/step" not in metrics:
        return Bottleneck("unknown", "No timings yet.", "")
    waiting: dict[Part, float] = {
        "learner": waiting_share(metrics, "learner"),
        "environments": waiting_share(metrics, "rollout"),
    }
    if "time/policy/wait" in metrics:
        waiting["policy"] = waiting_share(metrics, "policy")
    computing = metrics.get("time/rollout/forward", 0.0)
    if computing > metrics["time/rollout/step"]:  # inline placement: the rollout workers are the policy as well
        waiting["policy"] = waiting.pop("environments")

    part = min(waiting, key=lambda name: waiting[name])
    least = waiting[part]
    if max(waiting.values()) < BUSY:
        return Bottleneck("processor", "No part waits: every part is busy all the time.", _ADVICE["processor"])
    if least > IDLE and metrics.get("system/cpu", 0.0) > SATURATED:
        finding = f"The processor is the bottleneck ({metrics['system/cpu']:.0%} in use): the parts take turns on its cores."
        return Bottleneck("processor", finding, _ADVICE["processor"])
    if least > IDLE:
        finding = f"Every part waits (the busiest one {least:.0%} of its time): too little work is in progress at a time."
        return Bottleneck("handover", finding, _ADVICE["handover"])
    others = ", ".join(f"{_WHO[name]} {waiting[name]:.0%}" for name in sorted(waiting, key=lambda name: waiting[name]))
    subject = "The environments are" if part == "environments" else f"The {part} is"
    if part == "policy" and "time/policy/wait" not in metrics:
        others += f"; rollout workers compute actions {computing:.0%} of their time"
    return Bottleneck(part, f"{subject} the bottleneck (time spent waiting: {others}).", _ADVICE[part])
