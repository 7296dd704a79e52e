"""Which combinations of settings cannot work, and why, with the numbers."""

from __future__ import annotations

import re

from headrace.config import hardware
from headrace.config.errors import ConfigError
from headrace.config.ranges import check
from headrace.config.settings import Config

MOST_SLOTS = 2**15
"""A ticket has 15 bits for the slot."""

DEEPEST = 256
"""Folders one within the other, of which the run folder is the last; Python makes missing ones by recursion."""


def validate(config: Config) -> None:
    """Raise `ConfigError` for a configuration that cannot work, with the numbers that show why. What the algorithm refuses is not
    known here: `headrace.make_config.check_config` asks both."""
    check(config)
    s, r = config.sampling, config.learning
    if config.run.folder == "":
        raise ConfigError("run.folder is empty: give the name of a folder, or leave the setting out")
    if (depth := len(config.run_folder.parts)) > DEEPEST:
        raise ConfigError(f"run.folder is {depth} folders deep; it may be at most {DEEPEST}")
    check_device(r.device)
    if s.envs_per_worker % s.num_groups:
        raise ConfigError(
            f"sampling.envs_per_worker ({s.envs_per_worker}) must be a multiple of sampling.num_groups ({s.num_groups}): "
            "the groups of a worker are of equal size"
        )
    unit = s.rollout * config.lane_size
    _validate_kind(config)
    if s.placement == "device":
        _validate_device(config)
    elif not config.uses_replay and r.batch_size % unit:
        low, high = r.batch_size // unit * unit, -(-r.batch_size // unit) * unit
        near = f"{low} or {high}" if low else str(high)
        of = f"sampling.rollout x environments per group ({s.rollout} x {config.lane_size} = {unit})"
        if config.envs.num_agents:
            of = f"sampling.rollout ({s.rollout}), the steps of one agent's slot"
        raise ConfigError(
            f"learning.batch_size ({r.batch_size}) must be a multiple of {of}: batches are made of whole slots. Nearest: {near}"
        )
    trajectories = r.batch_size // s.rollout
    if trajectories % r.num_minibatches and not config.uses_replay:
        raise ConfigError(
            f"learning.num_minibatches ({r.num_minibatches}) must divide the {trajectories} trajectories of a batch "
            f"(batch_size {r.batch_size} / rollout {s.rollout})"
        )
    if s.max_request_groups is not None and config.min_request_groups > s.max_request_groups:
        raise ConfigError(
            f"sampling.min_request_groups ({config.min_request_groups}) is above sampling.max_request_groups "
            f"({s.max_request_groups}): a policy worker would wait for more groups than it takes"
        )
    if config.total_groups < (P := config.population.size) and not config.envs.num_agents:
        raise ConfigError(
            f"population.size ({P}) is above the number of groups ({config.total_groups}): a policy would never act. Use more "
            "sampling.num_workers or sampling.num_groups"
        )
    ranks = max(config.learning.num_devices, hardware.rank().size)
    if P > 1 and ranks > 1:
        raise ConfigError(f"several devices learn one policy together; population.size is {P} and there are {ranks} ranks")
    _validate_slots(config)


def _validate_slots(config: Config) -> None:
    s, r = config.sampling, config.learning
    lanes, filled = config.most_lanes, "agents' trajectories" if config.envs.num_agents else "groups"
    least = lanes + config.slots_per_batch
    if config.num_slots < least:
        raise ConfigError(
            f"sampling.num_slots ({config.num_slots}) is too small: {lanes} {filled} are being filled while "
            f"{config.slots_per_batch} slots make a batch, so with fewer than {least} slots the run could wait for ever"
        )
    if config.num_slots > MOST_SLOTS:
        raise ConfigError(
            f"these settings need {config.num_slots:,} trajectory slots, and {MOST_SLOTS:,} are possible: use fewer "
            f"sampling.num_workers ({s.num_workers}) or sampling.num_groups ({s.num_groups}), or a smaller learning.batch_size "
            f"({r.batch_size})"
        )


def _validate_kind(config: Config) -> None:
    """What is impossible with a replay, with several agents, with several tasks."""
    if config.uses_replay:
        _validate_replay(config)
    if config.envs.num_agents:
        _validate_multi_agent(config)
    if len(config.tasks) > 1:
        _validate_tasks(config)
    elif config.envs.task_options:
        raise ConfigError(f"envs.task_options is for several tasks; {config.env} is one")


def _validate_multi_agent(config: Config) -> None:
    if config.sampling.placement == "device":
        raise ConfigError("sampling.placement device steps environments of one agent; use served, inline or serial")
    if config.uses_replay:
        raise ConfigError(
            f"learning.algorithm {config.learning.algorithm} learns from a replay, whose histories are of one agent each; "
            "multi-agent environments are learned from trajectories: use appo, ppo, impala, a2c or pqn"
        )
    P, matchmaker = config.population.size, config.matches.matchmaker
    agents = config.envs.num_agents or P
    for name, most, of in (("fixed", agents, "agents of a match"), ("self-play", config.num_envs, "environments")):
        if matchmaker == name and most < P:
            raise ConfigError(
                f"matches.matchmaker {name}: of {P} policies (population.size) only as many can learn as there are {of}, {most}, "
                "and the run would wait for the others for ever. Use fewer policies, or another matchmaker such as uniform"
            )


def _validate_tasks(config: Config) -> None:
    s, K, named = config.sampling, len(config.tasks), config.envs.task_options
    if unknown := sorted(named.keys() - set(config.tasks)):
        raise ConfigError(f"envs.task_options names {', '.join(unknown)}; the tasks are {', '.join(config.tasks)}")
    if config.envs.remote:
        raise ConfigError("envs.remote is for one task; several are stepped by the run itself")
    if config.envs.task_share == "samples":
        if config.envs_per_group % K:
            raise ConfigError(
                f"envs.task_share samples: the environments of a group ({config.envs_per_group}: sampling.envs_per_worker / "
                f"sampling.num_groups) must be a multiple of the {K} tasks"
            )
    elif s.placement == "device" or config.uses_replay:
        why = "steps all environments together" if s.placement == "device" else "explores by the number of the environment"
        what = "sampling.placement device" if s.placement == "device" else f"learning.algorithm {config.learning.algorithm}"
        raise ConfigError(f"{what} {why}, which every task must have an equal share of: set envs.task_share samples")
    elif s.num_workers % (K * config.workers_per_round):
        rounds = config.workers_per_round
        policies = f" x {rounds}, so that all of the {config.population.size} policies have all of them" if rounds > 1 else ""
        raise ConfigError(
            f"envs.task_share compute: every task has rollout workers of its own, so sampling.num_workers ({s.num_workers}) must "
            f"be a multiple of the {K} tasks{policies}; or set envs.task_share samples"
        )


def _validate_device(config: Config) -> None:
    if config.envs.remote:
        raise ConfigError("sampling.placement device steps its environments in the training process; envs.remote cannot be used")
    T, n, size = config.sampling.rollout, config.num_envs, config.learning.batch_size
    all_steps = T * n
    if config.population.size > 1:
        raise ConfigError(f"sampling.placement device trains one policy; population.size is {config.population.size}")
    if config.sampling.weights_period > 1:
        raise ConfigError(
            "sampling.placement device acts with the weights of every update; sampling.weights_period is "
            f"{config.sampling.weights_period} and must be 1"
        )
    if config.uses_replay:
        _validate_device_replay(config)
        return
    parts = all_steps // size
    if parts * size != all_steps or T % parts or n % parts:
        possible = [g for g in range(2, min(T, n) + 1) if T % g == 0 and n % g == 0]
        others = f", others are {', '.join(str(all_steps // g) for g in possible)}" if possible else ""
        raise ConfigError(
            f"sampling.placement device: learning.batch_size ({size}) must be sampling.rollout x environments "
            f"({T} x {n} = {all_steps}) divided by a number that divides both; the largest is {all_steps}{others}"
        )


def _validate_device_replay(config: Config) -> None:
    """The replay in the memory of the device keeps the newest transitions, each once and as it is."""
    r = config.replay
    if config.policy.core != "none":
        raise ConfigError("sampling.placement device replays single transitions, no sequences: policy.core must be none")
    if r.evict_alpha is not None or r.copies > 1:
        raise ConfigError(
            "sampling.placement device keeps the newest transitions, each once: replay.evict_alpha must be None (it is "
            f"{r.evict_alpha}) and replay.copies 1 (it is {r.copies})"
        )


def _validate_replay(config: Config) -> None:
    r, q = config.replay, config.q
    if r.minimum > r.capacity:
        raise ConfigError(f"replay.minimum ({r.minimum:,}) is above replay.capacity ({r.capacity:,}): learning would never start")
    if config.policy.core != "none" and config.sampling.rollout > q.burn_in + q.sequence:
        raise ConfigError(
            f"sampling.rollout ({config.sampling.rollout}) must not be above q.burn_in + q.sequence ({q.burn_in} + "
            f"{q.sequence}): sequences start once per trajectory, so rows between them would never be learned from"
        )
    if config.learning.num_epochs > 1 or config.learning.num_minibatches > 1:
        raise ConfigError("replay makes one update per batch: learning.num_epochs and learning.num_minibatches must be 1")


def check_device(device: str) -> None:
    """Raise `ConfigError` for a device (`learning.device`) that is not here."""
    if device in ("auto", "cpu"):
        return
    if not re.fullmatch(r"cuda(:\d+)?", device):
        raise ConfigError(f"there is no device {device!r}; use auto, cpu, cuda or cuda:1, cuda:2, ...")
    import torch  # seconds, and needed by none of the other checks

    if not torch.cuda.is_available():
        raise ConfigError(f"--learning.device {device}: there is no CUDA device here; use --learning.device cpu")
    if int(device.partition(":")[2] or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"--learning.device {device}: the devices here are cuda:0 to cuda:{count - 1}")
