"""Which configurations cannot work, and why, with the numbers."""

from __future__ import annotations

from headrace.config import Config, ConfigError


def validate(config: Config) -> None:
    """Raise `ConfigError` for a configuration that cannot work, with the numbers that show why."""
    s, r = config.sampling, config.learning
    for name, value in (
        ("sampling.num_workers", s.num_workers),
        ("sampling.envs_per_worker", s.envs_per_worker),
        ("sampling.num_groups", s.num_groups),
        ("sampling.num_policy_workers", s.num_policy_workers),
        ("sampling.rollout", s.rollout),
        ("learning.batch_size", r.batch_size),
        ("learning.num_minibatches", r.num_minibatches),
        ("learning.num_epochs", r.num_epochs),
        ("learning.total_steps", r.total_steps),
    ):
        if value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1")
    for name, seconds in (
        ("sampling.step_timeout", s.step_timeout),
        ("sampling.restart_window", s.restart_window),
        ("learning.update_timeout", r.update_timeout),
    ):
        if seconds <= 0:
            raise ConfigError(f"{name} is {seconds} seconds; it must be above 0")
    if s.envs_per_worker % s.num_groups:
        raise ConfigError(
            f"sampling.envs_per_worker ({s.envs_per_worker}) must be a multiple of sampling.num_groups ({s.num_groups}): "
            "the groups of a worker are of equal size"
        )
    if s.num_groups > 32:
        raise ConfigError(f"sampling.num_groups is {s.num_groups}; at most 32 (one bit each in the worker's wake-up word)")
    unit = s.rollout * config.envs_per_group
    if config.uses_replay:
        _validate_replay(config)
    elif r.batch_size % unit:
        low, high = r.batch_size // unit * unit, -(-r.batch_size // unit) * unit
        near = f"{low} or {high}" if low else str(high)
        raise ConfigError(
            f"learning.batch_size ({r.batch_size}) must be a multiple of sampling.rollout x environments per group "
            f"({s.rollout} x {config.envs_per_group} = {unit}): batches are made of whole slots. Nearest: {near}"
        )
    trajectories = r.batch_size // s.rollout
    if trajectories % r.num_minibatches and not config.uses_replay:
        raise ConfigError(
            f"learning.num_minibatches ({r.num_minibatches}) must divide the {trajectories} trajectories of a batch "
            f"(batch_size {r.batch_size} / rollout {s.rollout})"
        )
    least = config.total_groups + config.slots_per_batch
    if config.num_slots < least:
        raise ConfigError(
            f"sampling.num_slots ({config.num_slots}) is too small: {config.total_groups} groups are being filled while "
            f"{config.slots_per_batch} slots make a batch, so fewer than {least} slots can leave everyone waiting for ever"
        )
    if not 0 <= r.gamma <= 1:
        raise ConfigError(f"learning.gamma is {r.gamma}; it must be in [0, 1]")
    if r.vtrace_rho < r.vtrace_c:
        raise ConfigError(f"learning.vtrace_rho ({r.vtrace_rho}) must not be below vtrace_c ({r.vtrace_c}) (IMPALA, section 4.1)")


def _validate_replay(config: Config) -> None:
    r, q = config.replay, config.q
    if r.minimum > r.capacity:
        raise ConfigError(f"replay.minimum ({r.minimum:,}) is above replay.capacity ({r.capacity:,}): learning would never start")
    if r.prefetch < 1 or r.threads < 1 or r.evict_period < 1 or q.target_period < 1:
        raise ConfigError("replay.prefetch, replay.threads, replay.evict_period and q.target_period must be at least 1")
    if not 0 <= q.epsilon <= 1:
        raise ConfigError(f"q.epsilon is {q.epsilon}; it must be in [0, 1]")
    if q.atoms > 1 and not q.support[0] < q.support[1]:
        raise ConfigError(f"q.support is {q.support}; the first atom must be below the last")
    if config.policy.core != "none" and config.sampling.rollout > q.burn_in + q.sequence:
        raise ConfigError(
            f"sampling.rollout ({config.sampling.rollout}) must not be above q.burn_in + q.sequence ({q.burn_in} + "
            f"{q.sequence}): sequences start once per trajectory, so rows between them would never be learned from"
        )
    if config.learning.num_epochs > 1 or config.learning.num_minibatches > 1:
        raise ConfigError("replay makes one update per batch: learning.num_epochs and learning.num_minibatches must be 1")
