"""Which part of a run limits it, told from how each part spends its time.

The parts form a ring: environments need actions, the policy needs requests, the learner needs trajectories, environments need
slots back from the learner. In a ring the part that waits least is the one the others wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Part = Literal["environments", "policy", "learner", "processor", "handover", "unknown"]

IDLE = 0.4
"""If even the busiest part waits this much of its time, the work is too little at a time, not too much."""
BUSY = 0.1
"""Parts that wait less than this are busy all the time."""
SATURATED = 0.9
"""A processor in use more than this is full: parts that wait then wait for each other's turn on it."""

_WHO: dict[Part, str] = {"learner": "learner", "policy": "policy", "environments": "rollout workers"}
_ADVICE: dict[Part, str] = {
    "learner": "A larger learning.batch-size, fewer learning.num-epochs, learning.precision bf16, a smaller network or an "
    "accelerator.",
    "policy": "More environments per request (sampling.envs-per-worker), more sampling.num-policy-workers, learning.precision "
    "bf16, a smaller network or an accelerator.",
    "environments": "More sampling.num-workers (up to one per core) or more environments per worker.",
    "processor": "More or faster cores, an accelerator for the network, or less work per step (a smaller network, fewer epochs).",
    "handover": "More sampling.envs-per-worker or sampling.num-groups; a smaller sampling.batch_timeout.",
}


@dataclass(frozen=True)
class Bottleneck:
    """What limits the run, and what to change."""

    part: Part
    finding: str
    advice: str

    def __str__(self) -> str:
        return f"{self.finding} {self.advice}".strip()


def find(metrics: dict[str, float]) -> Bottleneck:
    """The bottleneck from the keys `time/<part>/<phase>` (shares, 0 to 1, of each part's time) and `system/cpu` of `metrics`.

    Parts that do not report (the policy, in the inline placement) are left out; other keys are ignored.
    """

    def share(part: str, *phases: str) -> float:
        return sum(metrics.get(f"time/{part}/{phase}", 0.0) for phase in phases)

    if "time/learner/wait" not in metrics or "time/rollout/step" not in metrics:
        return Bottleneck("unknown", "No timings yet.", "")
    waiting: dict[Part, float] = {
        "learner": share("learner", "wait"),
        "environments": share("rollout", "wait_actions", "wait_slots"),
    }
    if "time/policy/wait" in metrics:
        waiting["policy"] = share("policy", "wait")
    if share("rollout", "forward") > share("rollout", "step"):  # inline: the rollout workers are the policy as well
        waiting["policy"] = waiting.pop("environments")

    part = min(waiting, key=lambda name: waiting[name])
    least = waiting[part]
    if max(waiting.values()) < BUSY:
        return Bottleneck("processor", "Nothing waits: every part is busy all the time.", _ADVICE["processor"])
    if least > IDLE and metrics.get("system/cpu", 0.0) > SATURATED:
        finding = f"The processor is the bottleneck ({metrics['system/cpu']:.0%} in use): the parts take turns on its cores."
        return Bottleneck("processor", finding, _ADVICE["processor"])
    if least > IDLE:
        finding = f"Everyone waits (the busiest part {least:.0%} of its time): too little work is under way at once."
        return Bottleneck("handover", finding, _ADVICE["handover"])
    others = ", ".join(f"{_WHO[name]} {waiting[name]:.0%}" for name in sorted(waiting, key=lambda name: waiting[name]))
    subject = "The environments are" if part == "environments" else f"The {part} is"
    if part == "policy" and "time/policy/wait" not in metrics:
        others += f"; rollout workers compute actions {share('rollout', 'forward'):.0%} of their time"
    return Bottleneck(part, f"{subject} the bottleneck (time spent waiting: {others}).", _ADVICE[part])
