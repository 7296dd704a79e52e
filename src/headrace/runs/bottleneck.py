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
_NETWORK = "learning.precision bf16, a smaller network or an accelerator."
_ADVICE: dict[Part, str] = {
    "learner": f"Use a larger learning.batch-size, fewer learning.num-epochs, {_NETWORK}",
    "policy": f"Use more environments per request (sampling.envs-per-worker), more sampling.num-policy-workers, {_NETWORK}",
    "environments": "Use more sampling.num-workers (up to one per core) or more environments per worker.",
    "processor": "Use more or faster cores, an accelerator for the network, a smaller network or fewer epochs.",
    "handover": "Use more sampling.envs-per-worker, more sampling.num-groups or a smaller sampling.batch_timeout.",
}
_ADVICE_INLINE: dict[Part, str] = {
    "policy": "Use more sampling.num-workers (up to one per core), more environments per worker (sampling.envs-per-worker), "
    "learning.precision bf16 or a smaller network.",
    "handover": "Use more sampling.envs-per-worker or more sampling.num-workers.",
}
_ADVICE_DEVICE: dict[Part, str] = {
    "policy": f"Use more environments at a time (sampling.envs-per-worker), {_NETWORK}",
    "environments": "Use more environments at a time (sampling.envs-per-worker), or with environments in Python "
    "sampling.placement served, which steps them on several cores.",
}
_ADVICE_REPLAY: dict[Part, str] = {
    "learner": f"Use {_NETWORK}",
    "processor": "Use more or faster cores, an accelerator for the network or a smaller network.",
}
"""What is said instead of `_ADVICE` in a placement and with a replay, where some settings have no effect."""


@dataclass(frozen=True)
class Bottleneck:
    """The bottleneck of a run, and what to change."""

    part: Part
    finding: str
    advice: str

    def __str__(self) -> str:
        return f"{self.finding} {self.advice}".strip()


def find(metrics: dict[str, float], placement: str = "served", replay: bool = False) -> Bottleneck:
    """Find the bottleneck from `metrics`: `time/<part>/<phase>` (shares of each part's time, 0 to 1) and `system/cpu`.

    A part without such keys (policy workers in `inline` placement) is left out. Other keys are ignored. `placement` and `replay`
    (whether the run learns from one) decide which settings there are to change.
    """
    of_placement = {"inline": _ADVICE_INLINE, "device": _ADVICE_DEVICE}.get(placement, {})
    advice = _ADVICE | of_placement | (_ADVICE_REPLAY if replay else {})
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
    least, in_turns = waiting[part], placement == "device"  # there each part waits while another has the device
    if max(waiting.values()) < BUSY:
        return Bottleneck("processor", "No part waits: every part is busy all the time.", advice["processor"])
    if least > IDLE and not in_turns and metrics.get("system/cpu", 0.0) > SATURATED:
        finding = f"The processor is the bottleneck ({metrics['system/cpu']:.0%} in use): the parts take turns on its cores."
        return Bottleneck("processor", finding, advice["processor"])
    if least > IDLE and not in_turns:
        finding = f"Every part waits (the busiest one {least:.0%} of its time): too little work is in progress at a time."
        return Bottleneck("handover", finding, advice["handover"])
    others = ", ".join(f"{_WHO[name]} {waiting[name]:.0%}" for name in sorted(waiting, key=lambda name: waiting[name]))
    subject = "The environments are" if part == "environments" else f"The {part} is"
    if part == "policy" and "time/policy/wait" not in metrics:
        others += f"; rollout workers compute actions {computing:.0%} of their time"
    return Bottleneck(part, f"{subject} the bottleneck (time spent waiting: {others}).", advice[part])
