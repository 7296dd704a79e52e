"""The settings of the learner, for which all nodes together are one sampler, and of a node, which is a part of that sampler.

The W rollout workers of each of N nodes are numbered as N x W workers of one run, and so are environments. So seeds, tasks, and
exploration that depends on environments' numbers are those of one run. Node k has the workers k, k + N, k + 2 N, ...: any set of
nodes has an even share of every range of numbers, such as that of the environments that explore least.
"""

from __future__ import annotations

import os
from typing import Any

from headrace.config import Config, hardware, override, policy_configs


def whole(config: Config) -> Config:
    """The settings of a learner rank: it counts the workers of all nodes as workers of one run. It has slots only for finished
    trajectories that wait for its learner, as many as on one machine; slots that are being filled are on the nodes."""
    N, s, R = config.cluster.most_nodes, config.sampling, config.cluster.learners
    settings: dict[str, Any] = {
        "sampling.num_workers": N * s.num_workers,
        "sampling.num_policy_workers": N * s.num_policy_workers,
        "sampling.one_transfer": "off",
    }
    all_nodes = override(config, **settings)
    lanes = all_nodes.most_lanes // R
    waiting = max(own.slots_for(lanes) for own in policy_configs(all_nodes)) - lanes
    if config.uses_replay:  # old steps do no harm there, and receivers can write side by side
        waiting = max(waiting, -(-N // R))
    return override(all_nodes, **{"sampling.num_slots": s.num_slots or waiting})


def of_node(config: Config) -> Config:
    """The settings of every node. It has slots only for trajectories that are being filled: finished ones are sent at once, and
    wait for a batch on the learner's machine. `config`: as the user gave it."""
    s = config.sampling
    here = len(os.sched_getaffinity(0))
    settings: dict[str, Any] = {
        "sampling.num_workers": config.cluster.most_nodes * s.num_workers,
        "sampling.one_transfer": "off",
        "sampling.num_slots": config.most_lanes,
        "sampling.min_request_groups": config.min_request_groups,
        "sampling.pin_workers": s.pin_workers and s.num_workers >= here,
        "learning.num_threads": 1,  # of the process that sends trajectories
    }
    if config.learning.device.startswith("cuda") and hardware.default_device() == "cpu":
        settings["learning.device"] = "cpu"
    return override(config, **settings)


def nodes_of(rank: int, config: Config) -> range:
    """The nodes of a learner rank, by their numbers among all."""
    return range(rank, config.cluster.most_nodes, config.cluster.learners)


def workers_of(node: int, config: Config) -> range:
    """The rollout workers of a node, by their numbers among all nodes'. `config`: as the user gave it, or of a node."""
    return range(node, config.sampling.num_workers, config.cluster.most_nodes)
