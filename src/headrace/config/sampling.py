"""Settings of processes, environments and buffers that gather experience."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from headrace.config.ranges import Count, Length, Range, Seconds, Timeout

Placement = Literal["served", "inline", "serial", "device"]

SERVED = ("num_policy_workers", "min_request_groups", "max_request_groups", "batch_timeout", "one_transfer")
"""Settings that have no effect in other placements than `served`."""


@dataclass
class SamplingConfig:
    """How experience is gathered: processes, environments, buffers."""

    placement: Placement = "served"
    """Where the policy acts. `served`: policy workers compute the actions, in batches, for many rollout workers. `inline`: each
    rollout worker has its own copy of the policy. `serial`: everything runs in one process and is deterministic.
    `device`: environments, policy and learner share the accelerator, or all cores of the processor, in one process."""
    num_workers: Annotated[int, Range(1, 4096)] = 2
    """Number of rollout workers, the processes that step environments."""
    envs_per_worker: Annotated[int, Range(1, 65_536)] = 16
    """Number of environments of each rollout worker. It must be a multiple of `num_groups`."""
    num_groups: Annotated[int, Range(1, 32)] = 2  # one bit each in the worker's wake-up word
    """Number of groups that the environments of a rollout worker are divided into. With 2 groups (double buffering), one is
    stepped while the actions of the other are computed."""
    num_policy_workers: Annotated[int, Range(1, 4096)] = 1
    """`served` placement: number of policy workers of each policy. They are the processes that compute actions."""
    rollout: Length = 32
    """Number of steps (T) of a trajectory."""
    num_slots: Annotated[int, Range(1, 2**15)] | None = None  # a ticket has 15 bits for the slot
    """Number of trajectory slots in shared memory. A rollout worker waits when none is free, so the number of slots limits
    memory, and the policy lag as long as the workers are equally fast. None: one per group (in a multi-agent environment one per
    agent), plus the slots of one or two batches."""
    min_request_groups: Length | None = None
    """A policy worker waits until this many groups (in a multi-agent environment: agents) have requested actions, but no longer
    than `batch_timeout`. None: a third of all groups (of all matches in a multi-agent environment), divided by the number of
    policy workers and rounded up."""
    max_request_groups: Length | None = None
    """A policy worker computes the actions of at most this many groups (in a multi-agent environment: agents) at once. None: no
    limit."""
    batch_timeout: Seconds = 0.005
    """Longest time (seconds) that a policy worker waits for `min_request_groups`, counted from the first request."""
    one_transfer: Literal["auto", "on", "off"] = "auto"
    """`served` placement without replay: policy workers keep observations on the device for the learner, so that each is copied
    there once instead of twice. This takes device memory for the observations of all slots. `auto`: on if the device is a GPU."""
    weights_period: Count = 1
    """Number of steps of a group between two checks for new weights. A policy worker, which acts for many groups, checks when
    they have made this many steps on average. `device` placement: must be 1."""
    policy_lag: Annotated[int, Range(0, 1000)] = 0
    """`serial` placement: actors act with the weights of exactly this many updates ago, and with the initial weights before that
    many updates were made. All of these weights are kept in memory and in checkpoints. This is for experiments on what old
    experience costs."""
    step_timeout: Timeout = 120.0
    """Longest time (seconds) that a step or a reset of all environments of a group may take together. A worker steps them one
    after the other; a group has `envs_per_worker` / `num_groups` of them. A rollout worker that takes longer counts as hung: its
    Python stack is shown, and it is replaced."""
    max_restarts: Annotated[int, Range(0, 1_000_000)] = 10
    """Number of failed processes that may be replaced within `restart_window`. The next failure ends the run with its error."""
    restart_window: Timeout = 3600.0
    """Time (seconds) for which a failure counts towards `max_restarts`. Failures that are rarer never end a run."""
    pin_workers: bool = True
    """Bind each rollout worker to one core, round robin, if there are at least as many workers as cores."""
    worker_niceness: Annotated[int, Range(0, 19)] = 10
    """Scheduling niceness of rollout workers. With a higher value the learner and the policy workers get more of a busy
    processor."""
