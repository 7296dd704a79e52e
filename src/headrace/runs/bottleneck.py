"""Which part of a run is the bottleneck, found from the time that each part spends waiting.

The parts form a ring: environments need actions, the policy needs requests, the learner needs trajectories, and environments
need the slots that the learner frees. In a ring the part that waits least is the one that the others wait for. In a cluster
trajectories cross a network between environments and learner: where both wait for each other, what is between them is too slow.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headrace.config import Config, hardware
from headrace.shm.phases import waiting_share

Part = Literal["environments", "policy", "learner", "processor", "handover", "node", "network", "receiver", "unknown"]

IDLE = 0.4  # if even the busiest part waits for more than this share of its time, the parts hand over too little work at a time
BUSY = 0.1  # a part that waits for less than this share of its time is busy all the time
SATURATED = 0.9  # if more than this share of the processor is in use, parts that wait are waiting for its cores

SLOW = 0.5  # a sampling node is slow if it makes less than this share of the other nodes' median steps per second

_WHO: dict[Part, str] = {"learner": "learner", "policy": "policy", "environments": "rollout workers"}


class Change(NamedTuple):
    """Something that may help."""

    text: str
    possible: Callable[[Config], bool] = lambda config: True
    """Whether a run with these settings can be changed so: it is not like that already, and this machine can do it."""


_BF16 = Change("learning.precision bf16", lambda config: config.precision != "bf16" and hardware.native_bf16(config.device))
_SMALLER_NETWORK = Change("a smaller network")
_ACCELERATOR = Change("an accelerator", lambda config: config.device == "cpu")
_EPOCHS = Change("fewer learning.num-epochs", lambda config: config.learning.num_epochs > 1)
_MORE_WORKERS = Change(
    "more sampling.num-workers (up to one per core)", lambda config: config.sampling.num_workers < hardware.cores()
)
_MORE_ENVS = Change("more environments per worker (sampling.envs-per-worker)")
_MORE_AT_A_TIME = Change("more environments at a time (sampling.envs-per-worker)")
_COMPRESSION = Change("cluster.compression lz4", lambda config: config.cluster.compression == "none")

ADVICE: dict[Part, tuple[Change, ...]] = {
    "learner": (
        Change("a larger learning.batch-size", lambda config: not config.uses_replay),
        *(_EPOCHS, _BF16, _SMALLER_NETWORK, _ACCELERATOR),
    ),
    "policy": (
        Change("more environments per request (sampling.envs-per-worker)"),
        Change("more sampling.num-policy-workers"),
        *(_BF16, _SMALLER_NETWORK, _ACCELERATOR),
    ),
    "environments": (_MORE_WORKERS, _MORE_ENVS),
    "processor": (Change("more or faster cores"), _ACCELERATOR, _SMALLER_NETWORK, _EPOCHS),
    "handover": (
        *(_MORE_ENVS, Change("more sampling.num-groups")),
        Change("a smaller sampling.batch-timeout", lambda config: config.sampling.batch_timeout > 0),
    ),
    "node": (Change("another machine in its place"), Change("its cores for nothing else")),
    "network": (_COMPRESSION, Change("a larger cluster.window (if the network has a long delay)")),
    "receiver": (_COMPRESSION, Change("more nodes (cluster.nodes) with fewer sampling.num-workers each")),
}
"""What may help where a part is the bottleneck."""
ADVICE_OF_PLACEMENT: dict[str, dict[Part, tuple[Change, ...]]] = {
    "inline": {
        # Rollout workers compute on the processor, whatever the learner's device is.
        "policy": (
            *(_MORE_WORKERS, _MORE_ENVS),
            Change("learning.precision bf16", lambda config: config.precision != "bf16" and hardware.native_bf16("cpu")),
            _SMALLER_NETWORK,
        ),
        "handover": (_MORE_ENVS, Change("more sampling.num-workers")),
    },
    "device": {
        "policy": (_MORE_AT_A_TIME, _BF16, _SMALLER_NETWORK, _ACCELERATOR),
        "environments": (
            _MORE_AT_A_TIME,
            Change(
                "with environments in Python sampling.placement served, which steps them on several cores",
                lambda config: hardware.cores() > 1,
            ),
        ),
    },
}
"""What may help instead in a placement where some of these settings have no effect."""


@dataclass(frozen=True)
class Bottleneck:
    """The bottleneck of a run, and what to change."""

    part: Part
    finding: str
    advice: str

    def __str__(self) -> str:
        return f"{self.finding} {self.advice}".strip()


def advise(part: Part, config: Config) -> str:
    """What a run with these settings can change where this part is the bottleneck, as a sentence; empty if nothing is known."""
    changes = ADVICE_OF_PLACEMENT.get(config.sampling.placement, {}).get(part) or ADVICE[part]
    texts = [change.text for change in changes if change.possible(config)]
    if len(texts) < 2:
        return f"Use {texts[0]}." if texts else ""
    return f"Use {', '.join(texts[:-1])} or {texts[-1]}."


def find(metrics: dict[str, float], config: Config) -> Bottleneck:
    """Find the bottleneck from `metrics`: `time/<part>/<phase>` (shares of each part's time, 0 to 1) and `system/cpu`.

    A part without such keys (policy workers in `inline` placement) is left out. Other keys are ignored. `config`: of the run; it
    decides which settings there are to change.
    """
    if config.sampling.placement == "serial":  # one part works at a time, so no part waits for another
        learning = 1 - metrics.get("time/learner/wait", math.nan)
        finding = f"Serial placement: {learning:.0%} of the time is spent learning, the rest collecting experience."
        return Bottleneck("unknown", "" if math.isnan(learning) else finding, "")
    if "time/learner/wait" not in metrics or "time/rollout/step" not in metrics:
        return Bottleneck("unknown", "No timings yet.", "")
    waiting: dict[Part, float] = {"learner": waiting_share(metrics, "learner"), "environments": waiting_share(metrics, "rollout")}
    if "time/policy/wait" in metrics:
        waiting["policy"] = waiting_share(metrics, "policy")
    computing = metrics.get("time/rollout/forward", 0.0)
    if computing > metrics["time/rollout/step"]:  # inline placement: the rollout workers are the policy as well
        waiting["policy"] = waiting.pop("environments")

    part = min(waiting, key=lambda name: waiting[name])
    if found := _between(metrics, config):
        return found
    least, in_turns = waiting[part], config.sampling.placement == "device"  # there each part waits while another has the device
    if max(waiting.values()) < BUSY:
        return Bottleneck("processor", "No part waits: every part is busy all the time.", advise("processor", config))
    if least > IDLE and not in_turns:
        if (cpu := metrics.get("system/cpu", 0.0)) > SATURATED:
            finding = f"The processor is the bottleneck ({cpu:.0%} in use): the parts take turns on its cores."
            return Bottleneck("processor", finding, advise("processor", config))
        finding = f"Every part waits (the busiest one {least:.0%} of its time): too little work is in progress at a time."
        return Bottleneck("handover", finding, advise("handover", config))
    if part != "learner" and (found := _slow_node(metrics, config)):
        return found
    others = ", ".join(f"{_WHO[name]} {share:.0%}" for name, share in sorted(waiting.items(), key=lambda item: item[1]))
    subject = "The environments are" if part == "environments" else f"The {part} is"
    if part == "policy" and "time/policy/wait" not in metrics:
        others += f"; rollout workers compute actions {computing:.0%} of their time"
    return Bottleneck(part, f"{subject} the bottleneck (time spent waiting: {others}).", advise(part, config))


def _of_nodes(metrics: dict[str, float], name: str) -> dict[int, float]:
    """A metric of every sampling node of a cluster, by the node's number."""
    keys = {re.fullmatch(rf"cluster/node-(\d+)/{name}", key): value for key, value in metrics.items()}
    return {int(key[1]): value for key, value in keys.items() if key}


def _between(metrics: dict[str, float], config: Config) -> Bottleneck | None:
    """What is too slow between the nodes and the learner of a cluster; None if nothing is."""
    if not (cores := _of_nodes(metrics, "receiver_cores")):
        return None
    busiest = max(cores, key=lambda k: cores[k])
    if cores[busiest] > SATURATED:
        finding = f"The receiver of node {busiest} is the bottleneck ({cores[busiest]:.0%} of a core of the learner's machine)."
        return Bottleneck("receiver", finding, advise("receiver", config))
    nodes, learner = metrics.get("time/rollout/wait_slots", 0.0), waiting_share(metrics, "learner")
    if min(nodes, learner) > IDLE and metrics.get("system/cpu", 0.0) < SATURATED:
        waits = f"nodes wait {nodes:.0%} of their time to send trajectories, the learner {learner:.0%} to get them"
        return Bottleneck("network", f"The network to the nodes is the bottleneck ({waits}).", advise("network", config))
    return None


def _slow_node(metrics: dict[str, float], config: Config) -> Bottleneck | None:
    """The slowest node of a cluster, if it makes far fewer steps than the others."""
    speeds = _of_nodes(metrics, "SPS")
    if len(speeds) < 2:
        return None
    slowest = min(speeds, key=lambda k: speeds[k])
    others = statistics.median(speed for k, speed in speeds.items() if k != slowest)
    if speeds[slowest] >= SLOW * others:
        return None
    finding = f"Node {slowest} is slow ({speeds[slowest]:,.0f} steps/s; the median of the others makes {others:,.0f})."
    return Bottleneck("node", finding, advise("node", config))
