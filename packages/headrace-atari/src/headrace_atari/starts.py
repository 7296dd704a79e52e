"""Starts of Atari episodes after random play or in saved states.

Consoles that start at the same moment go through a game together: their batches hold similar observations, and their episodes end
at the same time (Dalton et al. 2020, CuLE, section 3). Random play of a different length for each spreads them over the game.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv


def check_starts(options: Any) -> None:
    """Raise `TypeError` or `ValueError` unless the options of a reset are a dictionary, and its `random_steps` and `states`, if
    any, a number and a list of states."""
    if not isinstance(options, Mapping):
        raise TypeError(f"options is {options!r:.60}, must be a dictionary")
    steps, states = options.get("random_steps", 0), options.get("states", [b""])
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer):
        raise TypeError(f"random_steps is {steps!r:.60}, must be an integer")
    if steps < 0:
        raise ValueError(f"random_steps is {steps}, must not be negative")
    if isinstance(states, bytes) or not isinstance(states, Sequence):
        raise TypeError(f"states is a {type(states).__name__}, must be a list of states")
    if not states:
        raise ValueError("there are no states to begin in")


def play_at_random(envs: VectorEnv, most: int, seed: Any = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """After a reset of all environments: play a random number of random steps, 0 to `most`, in each.

    All are stepped together. An environment that is to play k steps is reset again when k steps are left.

    Returns:
        Arrays `[num_envs]`: whether the last step ended the episode, so that the environment needs a reset; steps since the game
        began; the sum of their rewards.
    """
    rng = np.random.default_rng(None if seed is None else np.ravel(np.asarray(seed, np.int64)) & 0x7FFFFFFF)
    lengths = rng.integers(most + 1, size=envs.num_envs)
    same_step = envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    played, total = np.zeros(envs.num_envs, np.int64), np.zeros(envs.num_envs, np.int64)
    ended = np.zeros(envs.num_envs, bool)
    for left in range(most, -1, -1):
        if (mask := lengths == left).any():
            envs.reset(options={"reset_mask": mask})
            played[mask], total[mask], ended[mask] = 0, 0, False
        if left:
            _, rewards, terminated, truncated, _ = envs.step(_random_actions(envs, rng))
            # with NEXT_STEP autoreset, the step after the last one of an episode is only a reset
            played, total = np.where(ended, 0, played + 1), np.where(ended, 0, total + _on_host(rewards))
            ended = _on_host(terminated | truncated)
            if same_step:
                played[ended], total[ended] = 0, 0
                ended = np.zeros(envs.num_envs, bool)
    played[ended], total[ended] = 0, 0
    return ended, played, total


def _random_actions(envs: VectorEnv, rng: np.random.Generator) -> np.ndarray:
    space = envs.single_action_space
    if isinstance(space, Box):
        return rng.uniform(space.low, space.high, (envs.num_envs, *space.shape)).astype(np.float32)
    assert isinstance(space, Discrete)
    return rng.integers(space.n, size=envs.num_envs)


def _on_host(results: Any) -> np.ndarray:
    """Results as a NumPy array; those of consoles on a GPU are tensors."""
    return results.cpu().numpy() if hasattr(results, "cpu") else results


def save_states(path: str | Path, states: Iterable[bytes]) -> None:
    """Write states from `AtariVector.save_state` to a file."""
    Path(path).write_bytes(b"".join(len(state).to_bytes(8, "little") + state for state in states))


def read_states(path: str | Path) -> list[bytes]:
    """Read what `save_states` wrote. Raises `ValueError` for a file of another kind, and `OSError` if it cannot be read."""
    data, at, states = Path(path).read_bytes(), 0, list[bytes]()
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at : at + 8], "little")
        if end > len(data):
            raise ValueError(f"{path} is cut off, or holds no states of Atari consoles")
        states.append(data[at + 8 : end])
        at = end
    if not states:
        raise ValueError(f"{path} holds no states")
    return states
