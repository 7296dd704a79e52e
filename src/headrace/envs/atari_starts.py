"""Where Atari episodes begin, beside the game's own start: after random play, or in states that were saved before.

Consoles that all begin at the same moment go through a game together: their batches hold much of the same, and their episodes end
at the same time (Dalton et al. 2020, CuLE, section 3). Random play of another length for each spreads them over the game.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from headrace.config import ConfigError, EnvConfig

if TYPE_CHECKING:
    from headrace.envs.atari_vector import AtariVector

Begun = tuple[Any, dict[str, Any]]
"""What `AtariVector.reset` returns."""


def play_at_random(envs: AtariVector, most: int, seed: Any = None, out: Any = None) -> Begun:
    """After a reset of all environments: let each play 0 to `most` random steps, so many as are drawn for it.

    All are stepped together; environment i is reset once more when as many steps are left as it is to play. `out`: see
    `AtariVector.reset`, whose results are returned, with further infos: `played_steps` and `played_return` `[num_envs]`, steps
    and rewards since the games began. An episode that ended with the last step begins anew.
    """
    rng = np.random.default_rng(None if seed is None else np.ravel(np.asarray(seed, np.int64)) & 0x7FFFFFFF)
    lengths = rng.integers(most + 1, size=envs.num_envs)
    same_step = envs.autoreset_mode == AutoresetMode.SAME_STEP
    played: Any = 0
    total: Any = 0
    begun: Begun | None = None
    continues: Any = True
    """Where the next step will not be the reset of an episode that has ended."""
    for left in range(most, -1, -1):
        if (mask := lengths == left).any():
            begun = envs.reset(options={"reset_mask": mask}, out=out)
            keep = _like(~mask, begun[0])
            played, total, continues = played * keep, total * keep, continues | ~keep
        if left:
            envs.send(_random_actions(envs, rng), out)
            observations, rewards, terminated, truncated, infos = envs.recv()
            begun = observations, infos
            played, total = (played + 1) * continues, (total + rewards) * continues
            continues = ~(terminated | truncated)
            if same_step:
                played, total, continues = played * continues, total * continues, True
    assert begun is not None
    ended = ~np.asarray(_host(continues) & np.ones(envs.num_envs, bool))
    if ended.any():
        begun = envs.reset(options={"reset_mask": ended}, out=out)
        played, total = played * _like(~ended, begun[0]), total * _like(~ended, begun[0])
    return begun[0], begun[1] | {"played_steps": played, "played_return": total}


def _random_actions(envs: AtariVector, rng: np.random.Generator) -> np.ndarray:
    if not envs.continuous:
        return rng.integers(len(envs.action_set), size=envs.num_envs)
    low, high = envs.single_action_space.low, envs.single_action_space.high  # type: ignore[attr-defined]
    return rng.uniform(low, high, (envs.num_envs, 3)).astype(np.float32)


def _host(value: Any) -> Any:
    return value.cpu().numpy() if hasattr(value, "cpu") else value


def _like(mask: np.ndarray, results: Any) -> Any:
    """The mask where the results are."""
    if isinstance(results, np.ndarray):
        return mask
    import torch

    return torch.from_numpy(mask).to(results.device)


def begin_in(envs: AtariVector, states: Sequence[bytes], out: Any = None) -> Begun:
    """After a reset: let environment i go on in `states[i % len(states)]` with one step of NOOP, and return what that gave.

    Raises what `AtariVector.load_state` raises.
    """
    if not states:
        raise ValueError("there are no states to begin in")
    for i in range(envs.num_envs):
        envs.load_state(i, states[i % len(states)])
    still = np.zeros((envs.num_envs, 3), np.float32) if envs.continuous else np.zeros(envs.num_envs, np.int64)
    envs.send(still, out)
    observations, *_, infos = envs.recv()
    return observations, infos


def save_states(path: str | Path, states: Iterable[bytes]) -> None:
    """Write what `AtariVector.save_state` gave, of any number of environments, for `envs.start_states`."""
    Path(path).write_bytes(b"".join(len(state).to_bytes(8, "little") + state for state in states))


def read_states(path: str | Path) -> list[bytes]:
    """Read what `save_states` wrote. Raises `ConfigError` for anything else."""
    try:
        data, at, states = Path(path).read_bytes(), 0, list[bytes]()
    except OSError as error:
        raise ConfigError(f"envs.start_states: {path} cannot be read: {error.strerror}") from error
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at : at + 8], "little")
        if end > len(data):
            raise ConfigError(f"envs.start_states: {path} is cut off, or holds no states of Atari consoles")
        states.append(data[at + 8 : end])
        at = end
    if not states:
        raise ConfigError(f"envs.start_states: {path} holds no states")
    return states


class TrainingStarts:
    """Where the training episodes of a group begin: see `EnvConfig.random_start` and `EnvConfig.start_states`.

    Raises `ConfigError` for both at once, and for a file that holds no states.
    """

    def __init__(self, options: EnvConfig) -> None:
        if options.random_start and options.start_states is not None:
            raise ConfigError("envs.random_start and envs.start_states cannot be together: play at random before saving states")
        self._random_steps = options.random_start
        self._states = [] if options.start_states is None else read_states(options.start_states)
        self._generator = np.random.default_rng()

    @property
    def in_states(self) -> bool:
        """Whether every episode begins in a state, of which `begin` must be told."""
        return bool(self._states)

    def reset_options(self, seed: Any, count: int) -> dict[str, Any] | None:
        """Options of `AtariVector.reset` for `count` environments."""
        self._generator = np.random.default_rng(seed)
        if self._states:
            return {"states": [self._draw() for _ in range(count)]}
        return {"random_steps": self._random_steps} if self._random_steps else None

    def begin(self, envs: AtariVector, ended: Iterable[int]) -> None:
        """Load a state into each of these environments, whose next step must be NOOP."""
        for i in ended:
            envs.load_state(int(i), self._draw())

    def _draw(self) -> bytes:
        return self._states[int(self._generator.integers(len(self._states)))]

    def get_state(self) -> dict[str, Any]:
        """The random numbers."""
        return dict(self._generator.bit_generator.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `get_state`."""
        self._generator.bit_generator.state = state
