"""Which configurations cannot work, and why, with the numbers."""

from __future__ import annotations

import re
from math import inf
from typing import NamedTuple

from headrace.config import Config, ConfigError


class Range(NamedTuple):
    """The values that a number may have; both ends belong to it unless `above` leaves out the lower one."""

    low: float = -inf
    high: float = inf
    above: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` is in the range; NaN never is."""
        return (value > self.low if self.above else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        if self.high < inf:
            return f"in {'(' if self.above else '['}{self.low:g}, {self.high:g}]"
        if self.low == -inf:
            return "a number"
        return f"above {self.low:g}" if self.above else f"at least {self.low:g}"


ANY, AT_LEAST_0, AT_LEAST_1, ABOVE_0, SHARE = Range(), Range(0), Range(1), Range(0, above=True), Range(0, 1)

RANGES: dict[str, Range] = {
    "seed": AT_LEAST_0,
    "envs.frameskip": AT_LEAST_1,
    "envs.resize": AT_LEAST_1,
    "envs.frame_stack": AT_LEAST_1,
    "envs.max_episode_steps": AT_LEAST_1,
    "envs.reward_scale": ANY,
    "envs.reward_clip": ABOVE_0,
    "policy.hidden": AT_LEAST_1,
    "policy.mlp": AT_LEAST_1,
    "policy.core_size": AT_LEAST_1,
    "policy.initial_std": ABOVE_0,
    "sampling.num_workers": AT_LEAST_1,
    "sampling.envs_per_worker": AT_LEAST_1,
    "sampling.num_groups": Range(1, 32),  # one bit each in the worker's wake-up word
    "sampling.num_policy_workers": AT_LEAST_1,
    "sampling.rollout": AT_LEAST_1,
    "sampling.num_slots": AT_LEAST_1,
    "sampling.min_request_groups": AT_LEAST_1,
    "sampling.max_request_groups": AT_LEAST_1,
    "sampling.patience": AT_LEAST_0,
    "sampling.weights_period": AT_LEAST_1,
    "sampling.step_timeout": ABOVE_0,
    "sampling.max_restarts": AT_LEAST_0,
    "sampling.restart_window": ABOVE_0,
    "sampling.worker_niceness": Range(0, 19),
    "learning.total_steps": AT_LEAST_1,
    "learning.batch_size": AT_LEAST_1,
    "learning.num_minibatches": AT_LEAST_1,
    "learning.num_epochs": AT_LEAST_1,
    "learning.gamma": SHARE,
    "learning.gae_lambda": SHARE,
    "learning.vtrace_rho": ABOVE_0,
    "learning.vtrace_c": AT_LEAST_0,
    "learning.ppo_clip": ABOVE_0,
    "learning.value_clip": ABOVE_0,
    "learning.value_coef": AT_LEAST_0,
    "learning.entropy_coef": AT_LEAST_0,
    "learning.max_policy_lag": AT_LEAST_0,
    "learning.learning_rate": AT_LEAST_0,
    "learning.adam_betas": Range(0, 1 - 1e-9),  # at 1 a moment would never move
    "learning.optimizer_eps": AT_LEAST_0,
    "learning.rmsprop_alpha": SHARE,
    "learning.max_grad_norm": ABOVE_0,
    "learning.update_timeout": ABOVE_0,
    "learning.num_threads": AT_LEAST_1,
    "replay.capacity": AT_LEAST_1,
    "replay.slack": AT_LEAST_1,
    "replay.minimum": AT_LEAST_1,
    "replay.copies": AT_LEAST_1,
    "replay.n_step": AT_LEAST_1,
    "replay.alpha": AT_LEAST_0,
    "replay.beta": AT_LEAST_0,
    "replay.evict_alpha": ANY,
    "replay.evict_period": AT_LEAST_1,
    "replay.samples_per_insert": ABOVE_0,
    "replay.prefetch": AT_LEAST_1,
    "replay.threads": AT_LEAST_1,
    "q.epsilon": SHARE,
    "q.epsilon_alpha": AT_LEAST_0,
    "q.epsilon_levels": AT_LEAST_1,
    "q.target_period": AT_LEAST_1,
    "q.atoms": AT_LEAST_1,
    "q.support": ANY,
    "q.burn_in": AT_LEAST_0,
    "q.sequence": AT_LEAST_1,
    "q.noise": AT_LEAST_0,
    "q.actor_layers": AT_LEAST_1,
    "q.critic_layers": AT_LEAST_1,
    "run.goal": ANY,
    "run.max_minutes": ABOVE_0,
    "run.log_interval": AT_LEAST_0,
    "run.checkpoint_interval": AT_LEAST_0,
    "run.keep_checkpoints": AT_LEAST_1,
    "run.milestone_steps": AT_LEAST_1,
    "run.eval_interval_steps": AT_LEAST_1,
    "run.eval_episodes": AT_LEAST_1,
}
"""Every number of the configuration, and every tuple of numbers. None, where a setting may be None, is in every range."""


def validate(config: Config) -> None:
    """Raise `ConfigError` for a configuration that cannot work, with the numbers that show why."""
    s, r = config.sampling, config.learning
    for name, allowed in RANGES.items():
        group, _, setting = name.rpartition(".")
        value = getattr(getattr(config, group) if group else config, setting)
        for number in value if isinstance(value, tuple) else () if value is None else (value,):
            if not isinstance(number, int | float) or not allowed.holds(number):
                raise ConfigError(f"{name} is {value}; {'each' if isinstance(value, tuple) else 'it'} must be {allowed}")
    check_device(r.device)
    if s.envs_per_worker % s.num_groups:
        raise ConfigError(
            f"sampling.envs_per_worker ({s.envs_per_worker}) must be a multiple of sampling.num_groups ({s.num_groups}): "
            "the groups of a worker are of equal size"
        )
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
    if s.max_request_groups is not None and config.min_request_groups > s.max_request_groups:
        raise ConfigError(
            f"sampling.min_request_groups ({config.min_request_groups}) is above sampling.max_request_groups "
            f"({s.max_request_groups}): a policy worker would wait for more groups than it takes"
        )
    least = config.total_groups + config.slots_per_batch
    if config.num_slots < least:
        raise ConfigError(
            f"sampling.num_slots ({config.num_slots}) is too small: {config.total_groups} groups are being filled while "
            f"{config.slots_per_batch} slots make a batch, so fewer than {least} slots can leave everyone waiting for ever"
        )
    if r.vtrace_rho < r.vtrace_c:
        raise ConfigError(f"learning.vtrace_rho ({r.vtrace_rho}) must not be below vtrace_c ({r.vtrace_c}) (IMPALA, section 4.1)")


def _validate_replay(config: Config) -> None:
    r, q = config.replay, config.q
    if r.minimum > r.capacity:
        raise ConfigError(f"replay.minimum ({r.minimum:,}) is above replay.capacity ({r.capacity:,}): learning would never start")
    if q.atoms > 1 and not q.support[0] < q.support[1]:
        raise ConfigError(f"q.support is {q.support}; the first atom must be below the last")
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
