"""Which combinations of settings cannot work, and why, with the numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headrace.config import hardware
from headrace.config.errors import ConfigError
from headrace.config.file_reading import shortened
from headrace.config.ranges import check
from headrace.config.settings import Config

MOST_WORKERS = 4096  # of all nodes, rollout workers and policy workers each
MOST_SLOTS = 2**15  # a ticket has 15 bits for the slot
LAST_PORT = 65_535

DEEPEST = 256  # folders one within the other, of which the run folder is the last; Python makes missing ones by recursion


def validate(config: Config) -> None:
    """Raise `ConfigError` for a configuration that cannot work, with the numbers that show why. What the algorithm itself refuses
    is checked by `headrace.make_config.check_config`, which also calls this function."""
    check(config)
    if fault := next(_faults(config), None):
        raise ConfigError(fault)


def _faults(config: Config) -> Iterator[str]:
    """What is wrong; a later check may rely on the earlier ones."""
    s, r, P = config.sampling, config.learning, config.population.size
    if config.run.folder == "":
        yield "run.folder is empty: give the name of a folder, or leave the setting out"
    if (depth := len(config.run_folder.parts)) > DEEPEST:
        yield f"run.folder is {depth} folders deep; it may be at most {DEEPEST}"
    check_device(r.device)
    if s.envs_per_worker % s.num_groups:
        yield (
            f"sampling.envs_per_worker ({s.envs_per_worker}) must be a multiple of sampling.num_groups ({s.num_groups}): "
            "the groups of a worker are of equal size"
        )
    if config.uses_replay:
        yield from _replay_faults(config)
    if config.envs.num_agents:
        yield from _multi_agent_faults(config)
    if len(config.tasks) > 1:
        yield from _task_faults(config)
    elif config.envs.task_options:
        yield f"envs.task_options is for several tasks; {config.env} is one"
    if s.policy_lag and s.placement != "serial":
        yield f"sampling.policy_lag {s.policy_lag} needs sampling.placement serial, in which lag can be exact"
    if s.policy_lag and s.weights_period != 1:
        yield "sampling.policy_lag needs sampling.weights_period 1: the lag says which weights actors have"
    if s.policy_lag > r.max_policy_lag:
        most = f"learning.max_policy_lag ({r.max_policy_lag})"
        yield f"sampling.policy_lag ({s.policy_lag}) is above {most}: nothing would be learned"
    if s.placement == "device":
        yield from _device_faults(config)
    elif not config.uses_replay and r.batch_size % (unit := s.rollout * config.lane_size):
        low, high = r.batch_size // unit * unit, -(-r.batch_size // unit) * unit
        of = f"sampling.rollout x environments per group ({s.rollout} x {config.lane_size} = {unit})"
        if config.envs.num_agents:
            of = f"sampling.rollout ({s.rollout}), the steps of one agent's slot"
        yield (
            f"learning.batch_size ({r.batch_size}) must be a multiple of {of}: batches are made of whole slots. "
            f"Nearest: {f'{low} or {high}' if low else high}"
        )
    if (units := config.minibatch_units) % r.num_minibatches and not config.uses_replay:
        parts = f"{units} steps" if units == r.batch_size else f"{units} trajectories"
        yield (
            f"learning.num_minibatches ({r.num_minibatches}) must divide the {parts} of a batch "
            f"(batch_size {r.batch_size} / rollout {s.rollout})"
        )
    if s.max_request_groups is not None and config.min_request_groups > s.max_request_groups:
        yield (
            f"sampling.min_request_groups ({config.min_request_groups}) is above sampling.max_request_groups "
            f"({s.max_request_groups}): a policy worker would wait for more groups than it takes"
        )
    if config.total_groups < P and not config.envs.num_agents:
        yield (
            f"population.size ({P}) is above the number of groups ({config.total_groups}): a policy would never act. Use more "
            "sampling.num_workers or sampling.num_groups"
        )
    if P > 1 and (ranks := max(r.num_devices, hardware.rank().size)) > 1:
        yield f"several devices learn one policy together; population.size is {P} and there are {ranks} ranks"
    yield from _slot_faults(config)
    yield from _cluster_faults(config) if config.cluster.nodes is not None else _faults_without_cluster(config)


def _faults_without_cluster(config: Config) -> Iterator[str]:
    if config.cluster.learners > 1:
        yield "cluster.learners needs a cluster (cluster.nodes); for several learners on one machine give learning.num_devices"
    if config.replay.shards == "node":
        yield "replay.shards node has a shard of the replay on every sampling node; there are none without cluster.nodes"


def _slot_faults(config: Config) -> Iterator[str]:
    s, lanes = config.sampling, config.most_lanes
    least = lanes + config.slots_per_batch
    if config.num_slots < least:
        filled = "agents' trajectories" if config.envs.num_agents else "groups"
        yield (
            f"sampling.num_slots ({config.num_slots}) is too small: {lanes} {filled} are being filled while "
            f"{config.slots_per_batch} slots make a batch, so with fewer than {least} slots the run could wait for ever"
        )
    if config.num_slots > MOST_SLOTS:
        yield (
            f"these settings need {config.num_slots:,} trajectory slots, and {MOST_SLOTS:,} are possible: use fewer "
            f"sampling.num_workers ({s.num_workers}) or sampling.num_groups ({s.num_groups}), or a smaller learning.batch_size "
            f"({config.learning.batch_size})"
        )


def _cluster_faults(config: Config) -> Iterator[str]:
    c = config.cluster
    if not config.in_processes:
        placement = config.sampling.placement
        yield f"sampling.placement {placement} is one process, which cannot be on several machines: use served or inline"
    for name, count in (("num_workers", config.sampling.num_workers), ("num_policy_workers", config.sampling.num_policy_workers)):
        if (of_all := count * c.most_nodes) > MOST_WORKERS:
            yield (
                f"sampling.{name} ({count}) on each of {c.most_nodes} nodes (the most that cluster.nodes allows) are {of_all:,}; "
                f"{MOST_WORKERS:,} are possible"
            )
    if c.learners > (least := c.node_range[0]):
        yield f"each of the {c.learners} learner ranks (cluster.learners) needs a sampling node; cluster.nodes may be {least}"
    if config.population.size > 1 and c.learners > 1:
        yield f"learner ranks (cluster.learners) learn one policy together; population.size is {config.population.size}"
    if config.envs.num_agents and c.learners > 1:
        yield f"the standings of matches are those of one learner for each policy; cluster.learners is {c.learners}"
    for name, count in (("cluster.learners", c.learners), ("population.size", config.population.size)):
        if config.replay.shards == "node" and count > 1:
            yield f"shards of a replay (replay.shards node) serve one learner; {name} is {count}"
    if (ranks := max(config.learning.num_devices, hardware.rank().size)) > 1:
        yield f"learner ranks of a cluster are given by cluster.learners; there are {ranks} ranks (learning.num_devices)"
    if config.replay.shards == "node" and config.replay.checkpoint_contents:
        yield "replay.checkpoint_contents saves a replay in the learner's memory; shards on nodes (replay.shards) are not saved"
    if c.listen is not None:
        port = None if c.listen.startswith("unix:") else re.fullmatch(r".+:(\d{1,5})", c.listen)
        behind = c.most_nodes + (c.learners > 1)  # for receivers, and where ranks meet
        if port is None:
            yield f"cluster.listen is {shortened(c.listen, 100)!r}; give HOST:PORT, such as 0.0.0.0:7780"
        elif int(port[1]) and int(port[1]) + behind > LAST_PORT:
            yield f"cluster.listen is {c.listen}; the {behind} ports that follow are needed, too, and {LAST_PORT} is the last one"
    if (c.tls_cert is None) != (c.ca is None):
        yield "cluster.tls_cert and cluster.ca belong together: the learner's certificate, and the one that signed it, for nodes"


def _multi_agent_faults(config: Config) -> Iterator[str]:
    if config.sampling.placement == "device":
        yield "sampling.placement device steps environments of one agent; use served, inline or serial"
    if config.uses_replay:
        yield (
            f"learning.algorithm {config.learning.algorithm} learns from a replay, whose histories are of one agent each; "
            "multi-agent environments are learned from trajectories: use appo, ppo, impala, a2c or pqn"
        )
    P, agents = config.population.size, config.envs.num_agents or 1
    for name, most, of in (("fixed", agents, "agents of a match"), ("self-play", config.num_envs, "environments")):
        if config.matches.matchmaker == name and most < P:
            yield (
                f"matches.matchmaker {name}: of {P} policies (population.size) only as many can learn as there are {of}, {most}, "
                "and the run would wait for the others for ever. Use fewer policies, or another matchmaker such as uniform"
            )


def _task_faults(config: Config) -> Iterator[str]:
    s, K, rounds = config.sampling, len(config.tasks), config.workers_per_round
    if unknown := sorted(config.envs.task_options.keys() - set(config.tasks)):
        yield f"envs.task_options names {', '.join(unknown)}; the tasks are {', '.join(config.tasks)}"
    if config.envs.remote:
        yield "envs.remote is for one task; several are stepped by the run itself"
    if config.envs.task_share == "samples":
        if config.envs_per_group % K:
            yield (
                f"envs.task_share samples: the environments of a group ({config.envs_per_group}: sampling.envs_per_worker / "
                f"sampling.num_groups) must be a multiple of the {K} tasks"
            )
    elif s.placement == "device" or config.uses_replay:
        why = "steps all environments together" if s.placement == "device" else "explores by the number of the environment"
        what = "sampling.placement device" if s.placement == "device" else f"learning.algorithm {config.learning.algorithm}"
        yield f"{what} {why}, which every task must have an equal share of: set envs.task_share samples"
    elif s.num_workers % (K * rounds):
        policies = f" x {rounds}, so that all of the {config.population.size} policies have all of them" if rounds > 1 else ""
        yield (
            f"envs.task_share compute: every task has rollout workers of its own, so sampling.num_workers ({s.num_workers}) must "
            f"be a multiple of the {K} tasks{policies}; or set envs.task_share samples"
        )


def _device_faults(config: Config) -> Iterator[str]:
    T, n, size, period = config.sampling.rollout, config.num_envs, config.learning.batch_size, config.sampling.weights_period
    if config.envs.remote:
        yield "sampling.placement device steps its environments in the training process; envs.remote cannot be used"
    if config.population.size > 1:
        yield f"sampling.placement device trains one policy; population.size is {config.population.size}"
    if period > 1:
        yield f"sampling.placement device acts with the weights of every update: sampling.weights_period ({period}) must be 1"
    if config.uses_replay:
        return
    all_steps = T * n
    parts = all_steps // size
    if parts * size != all_steps or T % parts or n % parts:
        possible = [g for g in range(2, min(T, n) + 1) if T % g == 0 and n % g == 0]
        others = f", others are {', '.join(str(all_steps // g) for g in possible)}" if possible else ""
        yield (
            f"sampling.placement device: learning.batch_size ({size}) must be sampling.rollout x environments "
            f"({T} x {n} = {all_steps}) divided by a number that divides both; the largest is {all_steps}{others}"
        )


def _replay_faults(config: Config) -> Iterator[str]:
    r, q, T, recurrent = config.replay, config.q, config.sampling.rollout, config.policy.core != "none"
    if r.minimum > r.capacity:
        yield f"replay.minimum ({r.minimum:,}) is above replay.capacity ({r.capacity:,}): learning would never start"
    if r.evict_alpha == 0:
        yield "replay.evict_alpha must not be 0. None: the oldest transitions are evicted. 1e-9: transitions drawn at random"
    if recurrent and q.sequence < T:
        yield (
            f"sampling.rollout ({T}) must not be above q.sequence ({q.sequence}): sequences start once per trajectory, so rows "
            "between what two of them learn from would never be learned from"
        )
    if config.learning.num_epochs > 1 or config.learning.num_minibatches > 1:
        yield "replay makes one update per batch: learning.num_epochs and learning.num_minibatches must be 1"
    if config.sampling.placement == "device" and recurrent:
        yield "sampling.placement device replays single transitions, no sequences: policy.core must be none"
    if config.sampling.placement == "device" and (r.evict_alpha is not None or r.copies > 1):
        yield (
            "sampling.placement device keeps the newest transitions, each once: replay.evict_alpha must be None (it is "
            f"{r.evict_alpha}) and replay.copies 1 (it is {r.copies})"
        )


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
