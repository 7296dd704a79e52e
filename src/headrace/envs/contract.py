"""What the engine asks of environments.

The engine steps *groups*: E environments together, which write into memory that the caller owns (rows of the slab). Nothing
is allocated and nothing is copied twice on the way. Autoreset has one owner, this contract, and it follows Gymnasium's
NEXT_STEP convention row by row:

    row t    observation o_t; the action on it leads to reward, terminated / truncated flags, written to row t
    row t+1  if the episode ended at t: its true last observation, `valid` False. The action computed on it is ignored.
    row t+2  the first observation of the next episode, `first` True

So the learner bootstraps a truncated episode from row t+1 like any other row, and masks the one row that is no transition.
A vectorised environment that can only do SAME_STEP writes the next episode's first observation to row t+1 (`first`, `valid`)
and the true last observation to `final_obs` of row t; the slab has that field only for such environments.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

MASK_KEY = "action_mask"
"""Key of a Dict observation that holds the action mask: uint8, one entry for each choice of each discrete part in order."""


_ON_THE_WAY = {str(Path(__file__).with_name(f"{name}.py")) for name in ("group", "gym", "registry", "spaces", "wrappers")}
"""Files of this package between the engine and an environment's own code."""


class EnvironmentFault(RuntimeError):
    """An environment misbehaved; the message names the environment, its index, seed and step."""

    @property
    def frames(self) -> str:
        """Where the environment raised, as in a traceback but without the frames that led there; empty if it did not raise."""
        if self.__cause__ is None:
            return ""
        frames = traceback.extract_tb(self.__cause__.__traceback__)
        own = [*dropwhile(lambda frame: frame.filename in _ON_THE_WAY or "/gymnasium/" in frame.filename, frames)]
        return "".join(["Traceback (most recent call last):\n", *traceback.format_list(own)]) if own else ""


class OutOfBounds(UserWarning):
    """Observations lie outside their space. No error, since well-known environments do so a little."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape (without batch dimensions) and dtype of one array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    low: float = -np.inf
    high: float = np.inf

    @property
    def is_image(self) -> bool:
        """Channels-first uint8 image [C, H, W]."""
        return len(self.shape) == 3 and self.dtype == np.uint8


@dataclass(frozen=True)
class Categorical:
    """One discrete choice out of n: one column of the action array, holding 0..n-1."""

    n: int

    @property
    def width(self) -> int:
        """Columns in the action array."""
        return 1


@dataclass(frozen=True)
class Continuous:
    """Independent bounded numbers: one column each."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def width(self) -> int:
        """Columns in the action array."""
        return len(self.low)


@dataclass(frozen=True)
class ActionSpec:
    """An action as one flat row of A columns: the parts in order. int32 if every part is discrete, else float32."""

    parts: tuple[Categorical | Continuous, ...]

    @property
    def width(self) -> int:
        """A: columns of the action array."""
        return sum(part.width for part in self.parts)

    @property
    def dtype(self) -> np.dtype:
        """int32 for purely discrete actions, float32 otherwise (exact for choices below 2**24)."""
        return np.dtype(np.int32 if all(isinstance(p, Categorical) for p in self.parts) else np.float32)

    @property
    def mask_width(self) -> int:
        """Entries of an action mask: the choices of all discrete parts."""
        return sum(part.n for part in self.parts if isinstance(part, Categorical))


@dataclass(frozen=True)
class EnvSpec:
    """What the engine has to know of an environment before it makes one."""

    observation: dict[str, ArraySpec]
    """By name; a plain observation space has the one name "obs". The action mask, if any, is in here under `MASK_KEY`."""
    action: ActionSpec
    frameskip: int = 1
    """Simulator frames per step."""
    autoreset: Literal["next-step", "same-step"] = "next-step"
    name: str = ""

    @property
    def masked(self) -> bool:
        """Whether the environment gives action masks."""
        return MASK_KEY in self.observation


@dataclass
class StepRow:
    """Where the consequences of the actions of row t go. Arrays of shape [E]."""

    reward: np.ndarray
    """float32, after scaling and clipping."""
    terminated: np.ndarray
    """bool"""
    truncated: np.ndarray
    """bool"""
    episode_return: np.ndarray
    """float32: the raw (unscaled, unclipped) return of the whole game if one ended with this step, else NaN."""
    episode_length: np.ndarray
    """int32: its length in steps, else 0."""
    final_obs: dict[str, np.ndarray] = field(default_factory=dict)
    """[E, ...] by name; only for `same-step` environments, written where truncated or terminated."""


@dataclass
class ObsRow:
    """Where the next observations go: row t+1."""

    obs: dict[str, np.ndarray]
    """[E, ...] by name."""
    first: np.ndarray
    """bool [E]: the observation is the first of an episode."""
    valid: np.ndarray
    """bool [E]: False where the observation is the last of an episode, so that no transition starts here."""


class EnvGroup(Protocol):
    """E environments stepped together."""

    spec: EnvSpec
    num_envs: int

    def reset(self, seed: int, out: ObsRow) -> None:
        """Start E episodes; environment i is seeded with `seed + i`. Later resets go on with the environment's own generator."""

    def step(self, actions: np.ndarray, now: StepRow, after: ObsRow) -> None:
        """Take `actions` [E, A] (rows with `valid` False are ignored), write the consequences to `now` and `after`.

        Raises `EnvironmentFault` for observations outside the declared shape or dtype, or NaN or infinite observations or
        rewards.
        """

    def remember(self) -> None:
        """Before the first reset: `get_state` will be asked for, so remember what it takes."""

    def get_state(self) -> dict[str, Any] | None:
        """Everything the group needs to go on exactly where it is, as a tree of arrays, strings and numbers; None where its
        environments cannot give it."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` gave. Raises `EnvironmentFault` where that does not lead to the same observations."""

    def close(self) -> None:
        """Release what the environments hold."""
