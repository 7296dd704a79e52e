"""What the rows of a run's replay hold, from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import headrace._native.replay as native
from headrace.config import Config, ConfigError
from headrace.envs.core.contract import EnvSpec
from headrace.experience.replay.buffer import Replay, ReplayConfig, ReplayField

MOST_ROWS = 2**32  # rows of all histories are fewer
OBSERVATION = "obs/"  # observations are fields of the trajectory store, and of the replay, whose names begin so


@dataclass(frozen=True)
class Sequences:
    """What is replayed where the network is recurrent (R2D2)."""

    period: int  # rows between two starts: those of a trajectory, whose first row has the core state
    burn_in: int
    length: int
    n_step: int
    rescaled: bool

    @property
    def rows(self) -> int:
        """Rows of one sequence, including those that its last targets need."""
        return self.burn_in + self.length + self.n_step


def sequences_of(config: Config) -> Sequences | None:
    """The sequences that are replayed; None: single transitions are."""
    if config.policy.core == "none":
        return None
    return Sequences(config.sampling.rollout, config.q.burn_in, config.q.sequence, config.replay.n_step, config.q.rescale)


def observation_fields(config: Config, spec: EnvSpec) -> dict[str, ReplayField]:
    """How observations are stored: of a stack of images one frame per row.

    Raises `ConfigError` where images are no stack of `EnvSpec.frame_stack` frames.
    """
    stack, fields = spec.frame_stack, {}
    for name, array in spec.observation.items():
        depth, shape = 1, array.shape
        if array.is_image and stack > 1:
            if shape[0] % stack:
                raise ConfigError(f"{config.env}: {name!r} has {shape[0]} channels, which is no stack of {stack} frames")
            depth, shape = stack, (shape[0] // stack, *shape[1:])
        compressed = array.is_image and config.replay.codec != "none"
        fields[OBSERVATION + name] = ReplayField(shape, array.dtype, stack=depth, compressed=compressed)
    return fields


def make_replay(config: Config, spec: EnvSpec, core_width: int = 0) -> Replay:
    """The replay of a run, or the shard of a node. Raises as `replay_layout`, and `MemoryError` where there is not the memory."""
    return Replay(*replay_layout(config, spec, core_width, config.replay_shards or 1))


def replay_layout(config: Config, spec: EnvSpec, core_width: int, parts: int) -> tuple[ReplayConfig, dict[str, ReplayField]]:
    """How a run's replay, or one of so many equal `parts` of it, is laid out: one history per environment and copy, of several
    policies for the environments of the one that has most; images one frame per row. With a core, the state before a trajectory
    is laid out over its rows, so that it takes no memory in the others.

    Raises `ConfigError` where images are no stack of `EnvSpec.frame_stack` frames, and for capacities that cannot work.
    """
    r, capacity = config.replay, -(-config.replay.capacity // parts)
    per_slot = (r.samples_per_insert or 0) * config.sampling.rollout * config.envs_per_group * r.copies
    fields = observation_fields(config, spec)
    fields["action"] = ReplayField((spec.action.width,), spec.action.dtype)
    fields["version"] = ReplayField((), np.dtype(np.int32))
    sequences = sequences_of(config)
    period, window = 1, 0
    if sequences:
        # The rows of a trajectory come at once: while they are written, those of one more must be there.
        period = sequences.period
        window = sequences.burn_in + sequences.length + period
        if spec.autoreset == "same-step":
            raise ConfigError(f"{config.env} resets in the same step; replay of sequences needs resets in the next step")
        fields["first"] = ReplayField((), np.dtype(bool))
        fields["core"] = ReplayField((-(-core_width // period),), np.dtype(np.float32))
    laid_out = ReplayConfig(
        histories=config.most_lanes * config.lane_size // parts * r.copies, capacity=capacity // period, period=period,
        slack=r.slack, window=window, n_step=r.n_step, alpha=r.alpha, beta=r.beta,
        minimum=r.minimum // period, evict_alpha=r.evict_alpha, samples_per_insert=r.samples_per_insert,
        ratio_band=2 * max(config.learning.batch_size, per_slot),
        codec=r.codec, packed_share=r.packed_share, seed=config.seed,
    )  # fmt: skip
    if (more := len(fields) - native.MAX_FIELDS) > 0:
        arrays = len(spec.observation)
        raise ConfigError(
            f"{config.env} has {arrays} arrays in an observation; a replay holds at most {arrays - more}. An algorithm without "
            "replay, such as ppo, has no such limit"
        )
    _check_rows(config, laid_out)
    return laid_out, fields


def _check_rows(config: Config, laid_out: ReplayConfig) -> None:
    T, capacity, histories = config.sampling.rollout, config.replay.capacity, laid_out.histories
    if laid_out.capacity == 0 or laid_out.rows < T:
        raise ConfigError(
            f"replay.capacity ({capacity:,}) is too small for {histories:,} environments (replay.copies counted): each has "
            f"memory for {laid_out.rows} steps, and needs it for a trajectory of {T} (sampling.rollout)"
        )
    if histories * laid_out.rows >= MOST_ROWS:
        raise ConfigError(
            f"replay.capacity ({capacity:,}) and replay.slack ({config.replay.slack:g}) ask for memory of "
            f"{histories * laid_out.rows:,} steps; fewer than {MOST_ROWS:,} are possible"
        )
