"""Checks of what environments return: types, NaN, infinite and too large numbers, bounds, action masks that allow nothing."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from headrace.envs.core.contract import MASK_KEY, Categorical, EnvSpec
from headrace.envs.core.errors import OLD_GYM, EnvironmentFault, OutOfBounds, cause, is_own

LARGEST = 1e18  # larger observations and rewards are refused: their squares, and so the loss, would be infinite in float32
BOUNDS_PERIOD = 1000  # steps of the group between two comparisons of observations with the bounds of their space
BOUNDS_SLACK = 1e-3
"""Tolerance outside the bounds, as a share of the distance between them: for rounding, and for simulators that clip one step
late."""

Fault: TypeAlias = Callable[[int, str], EnvironmentFault]
"""From the environment's index and what went wrong: the error to raise."""


# -- numbers ------------------------------------------------------------------------------------------------------------


def find_unusable(values: np.ndarray) -> tuple[int, ...] | None:
    """The index of the first number that is not finite or larger than `LARGEST`; None if there is none."""
    flat = values.reshape(-1)
    if flat.itemsize == 2:  # float16, whose squares overflow at once
        flat = flat.astype(np.float32)
    with np.errstate(all="ignore"):
        if flat.dot(flat) < LARGEST**2:  # one pass, cheaper than comparing every number
            return None
        places = np.argwhere(~(np.abs(values) <= LARGEST))
    return tuple(places[0].tolist()) if len(places) else None


def too_large(value: float) -> str:
    """Ends a message about a refused number: the reason, if the number is finite."""
    return ", too large to learn from" if np.isfinite(value) else ""


def check_rewards(raw: np.ndarray, fault: Fault) -> None:
    """Raise `fault` for a raw reward of [E] that is NaN, infinite or too large."""
    if (place := find_unusable(raw)) is not None:
        raise fault(place[0], f"the reward is {raw[place]:g}{too_large(raw[place])}")


class ObservationChecks:
    """Checks observations against a specification. `of`: for messages, their agent, such as " of player_1"."""

    def __init__(self, spec: EnvSpec, fault: Fault, of: str = "") -> None:
        self._spec, self._fault, self._of = spec, fault, of
        self._floats = [name for name, array in spec.observation.items() if np.issubdtype(array.dtype, np.floating)]
        self._choices = [part.n for part in spec.action.parts if isinstance(part, Categorical)]
        """Choices of each discrete part of an action."""
        bounds = {name: (spec.observation[name].low, spec.observation[name].high) for name in self._floats}
        self._bounded = [name for name, low_high in bounds.items() if np.isfinite(low_high).all()]
        """Observations to compare with their bounds; after a warning they are left out."""
        self._steps = 0

    def check(self, obs: dict[str, np.ndarray], valid: np.ndarray) -> None:
        """Raise `fault` for NaN, infinite and too large observations [E, ...] and for action masks that allow nothing where the
        observation is `valid` [E]."""
        for name in self._floats:
            if (place := find_unusable(obs[name])) is not None:
                index, *where = place
                value = obs[name][place]
                raise self._fault(index, f"observation {name!r}{self._of} is {value:g} at index {where}{too_large(value)}")
        if MASK_KEY in obs:
            self._check_masks(obs[MASK_KEY], valid)

    def check_bounds(self, obs: dict[str, np.ndarray], after_step: bool = False) -> None:
        """Warn of observations outside their space's bounds, once for each. `after_step`: only in the first of each
        `BOUNDS_PERIOD` calls."""
        self._steps += after_step
        if after_step and (not self._bounded or self._steps % BOUNDS_PERIOD != 1):
            return
        for name in list(self._bounded):
            low, high = self._spec.observation[name].low, self._spec.observation[name].high
            least, most = float(obs[name].min()), float(obs[name].max())
            slack = BOUNDS_SLACK * (high - low)
            if least < low - slack or most > high + slack:
                self._bounded.remove(name)
                warnings.warn(
                    f"{self._spec.name}: observation {name!r} has values from {least:g} to {most:g}, but its space says "
                    f"{low:g} to {high:g}. Training goes on; correct the space or the observation",
                    OutOfBounds,
                    stacklevel=2,
                )

    def _check_masks(self, masks: np.ndarray, valid: np.ndarray) -> None:
        at = 0
        for number, n in enumerate(self._choices):
            allowed = masks[:, at : at + n]
            at += n
            something = allowed.any(axis=1)
            if something.all():
                continue
            if (refused := np.flatnonzero(valid & ~something)).size:
                raise self._fault(int(refused[0]), f"the action mask{self._of} allows no choice in discrete part {number}")
            allowed[~something] = 1  # an action is computed for the last observation of an episode too, though it is ignored


# -- the form of results ------------------------------------------------------------------------------------------------

RESET, STEP = "observation, info", "observation, reward, terminated, truncated, info"  # what `reset` and `step` return
_COUNTS = {RESET: 2, STEP: 5}


def parts_of(result: Any, names: str) -> Any:
    """The `result` of an environment's `reset` or `step`. Raises `TypeError` if it lacks the parts `names` (`RESET`, `STEP`)."""
    if type(result) is tuple and len(result) == _COUNTS[names]:
        return result
    what = f"{len(result)} results" if isinstance(result, tuple) else f"a {type(result).__name__}"
    raise TypeError(f"it returned {what} {OLD_GYM}; Gymnasium's returns ({names})")


def check_shapes(num_envs: int, **results: Any) -> None:
    """Raise `ValueError`, naming the result of a step of several environments, unless there is one number for each."""
    for name, values in results.items():
        shape = values.shape if type(values) is np.ndarray else tuple(np.shape(values))
        if shape != (num_envs,):
            raise ValueError(f"{name} has shape {shape}; one number for each environment is {(num_envs,)}")


def first_observation(result: Any, infos: Any) -> Any:
    """The observation that `reset` returned. Raises `TypeError` if its info is not of the type `infos`."""
    observation, info = parts_of(result, RESET)
    if not isinstance(info, infos):
        raise TypeError(f"the info is a {type(info).__name__}, but must be a dictionary {OLD_GYM}")
    return observation


def cause_of_call(error: BaseException) -> str:
    """`cause`, and what Gymnasium's interface is, where a call of `reset` or `step`, or a wrapper that takes what they returned
    apart, failed because they have another."""
    if is_own(error):
        return cause(error)
    if isinstance(error, TypeError) and re.search(r"reset\(\) got an unexpected keyword argument '(seed|options)'", str(error)):
        return f"{cause(error)} {OLD_GYM}; Gymnasium's is reset(*, seed=None, options=None)"
    if isinstance(error, ValueError) and (unpacked := re.search(r"values to unpack \(expected ([25])", str(error))):
        names = next(names for names, count in _COUNTS.items() if count == int(unpacked[1]))
        return f"{cause(error)} {OLD_GYM}; Gymnasium's returns ({names})"
    return cause(error)


def flag(value: Any) -> bool:
    """Converts a `terminated` or `truncated`. Raises `TypeError` for a value that is neither True nor False."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
        raise TypeError(f"terminated and truncated must be True or False, and one is {value!r:.60}")
    return bool(array.item())
