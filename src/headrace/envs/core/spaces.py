"""Gymnasium's observation spaces as named flat arrays, and the specification of an environment. (Actions: `core.actions`.)

Observations become arrays of two kinds: uint8 images [C, H, W], and float32 numbers of any shape.

    Box uint8, 2-D                 grey image H x W, if both sides have at least `SMALLEST_IMAGE` pixels
    Box uint8, 3-D                 image; H x W x C or C x H x W: C is the smaller of the first and the last dimension
    Box uint8, 4-D                 stack of images [K, ...]: one image of K * C channels
    Box 0..255 of other types      the same if it has the shape of an image; numbers are rounded
    Box 0..1 of floats, 3-D, 4-D   the same: spread to 0..255 and rounded
    Box, anything else             float32 of the same shape
    Discrete, MultiDiscrete        one-hot float32
    MultiBinary                    float32 of the same shape
    Dict, Tuple                    one level of names; nested ones are joined: "camera/left"

Networks divide images by 255. Values of an image whose space ends below 255 are therefore spread to 0..255: 0 and 1 become
0 and 255. Empty spaces and entries with the same joined name are refused.

A space that is no Dict or Tuple has the name "obs". The entry `MASK_KEY` of a Dict is the action mask and stays uint8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from headrace.config import EnvConfig
from headrace.envs.core.actions import action_spec, check_choices, choices_of, flattened
from headrace.envs.core.contract import MASK_KEY, ActionSpec, ArraySpec, EnvSpec
from headrace.envs.core.errors import BadObservation, UnsupportedSpace

PLAIN_KEY = "obs"  # name of the array of an observation space that is no Dict or Tuple

SMALLEST_IMAGE = 16  # arrays with fewer rows or columns than this are vectors: they are too small for convolutional encoders


@dataclass
class Leaf:
    """One array of an observation: where it is in the observation, and how it is written to rows of memory."""

    name: str
    path: tuple[str | int, ...]  # keys that lead to it through nested dictionaries and tuples
    source: spaces.Space[Any]
    spec: ArraySpec
    write: Callable[[np.ndarray, np.ndarray], None]
    """write(destination [..., *spec.shape], value [..., *source.shape]) with equal leading dimensions."""

    def __post_init__(self) -> None:
        self._shape = self.source.shape or ()
        self._dtype = np.dtype(self.source.dtype)
        self._unchanged = self.write is write_reshaped and self._shape == self.spec.shape

    def find(self, observation: Any) -> Any:
        """This leaf's part of an observation. Raises `BadObservation` if it is missing."""
        try:
            for key in self.path:
                observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            raise BadObservation(f"the observation has no entry {self.name!r}") from error
        return observation

    def put_one(self, rows: np.ndarray, index: int, observation: Any) -> None:
        """Write this leaf's part of one environment's observation to ``rows[index]``. Raises `BadObservation`."""
        value = self.find(observation) if self.path else observation
        # called for each environment in each step, so a correct observation costs only three comparisons
        if type(value) is np.ndarray and value.shape == self._shape and value.dtype == self._dtype and self._unchanged:
            rows[index] = value
        else:
            self.put_value(rows[index], value)

    def put_batch(self, rows: np.ndarray, observations: Any) -> None:
        """Write this leaf's part of the batched observations of a vector environment. Raises `BadObservation`."""
        self.put_value(rows, self.find(observations))

    def put_value(self, destination: np.ndarray, value: Any) -> None:
        """Write a value of this leaf's own space, or a batch of values if `destination` has a leading dimension."""
        self.write(destination, self.checked(value, destination.shape[: destination.ndim - len(self.spec.shape)]))

    def checked(self, value: Any, leading: tuple[int, ...] = ()) -> np.ndarray:
        """A value of this leaf's own space as an array, or a batch of them with these leading dimensions. Raises
        `BadObservation` for another shape or type."""
        if not isinstance(value, np.ndarray):
            try:
                value = np.asarray(value)
            except ValueError as error:
                raise BadObservation(f"observation {self.name!r} is no array: {error}") from error
        shape = leading + self._shape
        if value.shape != shape:
            raise BadObservation(f"observation {self.name!r} has shape {value.shape}; its space declares {shape}")
        if value.dtype != self._dtype and not np.can_cast(value.dtype, self._dtype, "same_kind"):
            raise BadObservation(f"observation {self.name!r} has dtype {value.dtype}; its space declares {self._dtype}")
        return value


def leaves(space: spaces.Space[Any]) -> list[Leaf]:
    """The arrays of an observation space, in the space's order. Raises `UnsupportedSpace`."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [_leaf(space, PLAIN_KEY, ())]
    found: dict[str, Leaf] = {}
    for path, part in flattened(space):
        leaf = _leaf(part, "/".join(map(str, path)), path)
        if leaf.name in found:
            raise UnsupportedSpace(
                f"two entries of the observation, at {list(found[leaf.name].path)} and {list(path)}, are both called "
                f"{leaf.name!r} when their keys are joined. Rename one of them in a gymnasium.ObservationWrapper"
            )
        found[leaf.name] = leaf
    if not found.keys() - {MASK_KEY}:
        raise UnsupportedSpace(
            f"the observation {space!r} has {'only an action mask' if found else 'no entries'}: there is nothing to act on"
        )
    return list(found.values())


def observation_spec(space: spaces.Space[Any]) -> dict[str, ArraySpec]:
    """Name -> shape and dtype of every array of an observation. Raises `UnsupportedSpace`."""
    return {leaf.name: leaf.spec for leaf in leaves(space)}


def _leaf(space: spaces.Space[Any], name: str, path: tuple[str | int, ...]) -> Leaf:
    if not isinstance(space, spaces.Space):
        raise UnsupportedSpace(f"the observation is described by {space!r:.60}, which is none of Gymnasium's spaces")
    if space.shape is not None and 0 in space.shape:
        raise UnsupportedSpace(
            f"observation {name!r} is {space!r}, which has no numbers. Remove it in a gymnasium.ObservationWrapper"
        )
    if name == MASK_KEY:
        width = int(np.prod(space.shape or (1,)))
        spec = ArraySpec((width,), np.dtype(np.uint8), 0, 1)
        return Leaf(name, path, space, spec, write_reshaped)
    if isinstance(space, spaces.Box):
        return Leaf(name, path, space, *_box(space))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return _one_hot(space, name, path)
    if isinstance(space, spaces.MultiBinary):
        return Leaf(name, path, space, ArraySpec(space.shape, np.dtype(np.float32), 0, 1), write_reshaped)
    raise UnsupportedSpace(
        f"observation {name!r} is a {type(space).__name__} space; Box, Discrete, MultiDiscrete, MultiBinary and Dict or Tuple "
        "of these have an array form. Wrap the environment in a gymnasium.ObservationWrapper that turns it into one of them"
    )


def _box(space: spaces.Box) -> tuple[ArraySpec, Callable[[np.ndarray, np.ndarray], None]]:
    shape, (low, high) = space.shape, _bounds(space)
    if is_image(space):
        channels_last = is_channels_last(shape)
        height, width, channels = shape[-3:] if channels_last else (*shape[-2:], 1 if len(shape) == 2 else shape[-3])
        stack = shape[0] if len(shape) == 4 else 1
        write = _write_channels_last(len(shape)) if channels_last else write_reshaped
        if space.dtype != np.uint8 or 0 < high < 255:
            write = _write_as_pixels(write, high)
        return ArraySpec((stack * channels, height, width), np.dtype(np.uint8), 0, 255), write
    return ArraySpec(shape or (1,), np.dtype(np.float32), low, high), write_reshaped


def _bounds(space: spaces.Box) -> tuple[float, float]:
    return (float(np.min(space.low)), float(np.max(space.high))) if space.is_bounded("both") else (-np.inf, np.inf)


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether this space becomes an image: see the table above."""
    if not isinstance(space, spaces.Box) or not has_image_shape(space.shape):
        return False
    shares = space.dtype.kind == "f" and len(space.shape) > 2  # a matrix of shares is no picture
    return space.dtype == np.uint8 or _bounds(space) == (0, 255) or (shares and _bounds(space) == (0, 1))


def has_image_shape(shape: tuple[int, ...]) -> bool:
    """H x W, H x W x C, C x H x W, or a stack of the latter two, large enough for a convolutional encoder."""
    if len(shape) == 2:
        return min(shape) >= SMALLEST_IMAGE
    return len(shape) in (3, 4) and sorted(shape[-3:])[1] >= SMALLEST_IMAGE


def is_channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image of this shape is H x W x C, or a stack of such: C is the smaller of the two dimensions."""
    return len(shape) > 2 and shape[-1] <= shape[-3]


def _write_as_pixels(write: Callable[[np.ndarray, np.ndarray], None], high: float) -> Callable[[np.ndarray, np.ndarray], None]:
    """A function that spreads values from 0 to `high` to 0..255, rounds them and writes them by `write`; it raises
    `BadObservation` for others."""

    def convert_and_write(destination: np.ndarray, value: np.ndarray) -> None:
        least, most = value.min(), value.max()
        if not (least > -0.5 and most < high + 0.5):  # NaN is neither
            raise BadObservation(f"an image has values from {least} to {most}; its space declares 0 to {high:g}")
        write(destination, np.clip(np.rint(value * (255 / high)), 0, 255).astype(np.uint8))

    return convert_and_write


def write_reshaped(destination: np.ndarray, value: np.ndarray) -> None:
    """Write a value as it is, in the destination's shape."""
    destination[...] = value if value.shape == destination.shape else value.reshape(destination.shape)


def _write_channels_last(ndim: int) -> Callable[[np.ndarray, np.ndarray], None]:
    split = _cv2_split() if ndim == 3 else None

    def write(destination: np.ndarray, value: np.ndarray) -> None:
        if ndim == value.ndim == 3:
            if split is not None and value.flags.c_contiguous and destination.flags.c_contiguous:
                split(value, list(destination))
            else:
                destination[...] = value.transpose(2, 0, 1)  # np.moveaxis takes longer than the copy
            return
        channels_first = np.moveaxis(value, -1, -3)
        if ndim == 4:  # [..., K, C, H, W] into [..., K * C, H, W]: give the destination the same split
            destination = destination.reshape(channels_first.shape)
        destination[...] = channels_first

    return write


def _cv2_split() -> Callable[[np.ndarray, list[np.ndarray]], Any] | None:
    """OpenCV's `split`, four times as fast as a strided NumPy copy; None if OpenCV is not installed."""
    try:
        import cv2
    except ImportError:
        return None
    return cv2.split


def _one_hot(space: spaces.Discrete | spaces.MultiDiscrete, name: str, path: tuple[str | int, ...]) -> Leaf:
    nvec, start = choices_of(space)
    check_choices(f"observation {name!r} is {space!r}", int(nvec.sum()), "ObservationWrapper")
    offset = np.concatenate([[0], np.cumsum(nvec)[:-1]])

    def write(destination: np.ndarray, value: np.ndarray) -> None:
        choice = value.reshape((*destination.shape[:-1], len(nvec))).astype(np.int64) - start
        if (choice < 0).any() or (choice >= nvec).any():
            raise BadObservation(f"observation {name!r} is {value.tolist()}, which is not in {space!r}")
        destination[...] = 0
        np.put_along_axis(destination, choice + offset, 1, axis=-1)

    return Leaf(name, path, space, ArraySpec((int(nvec.sum()),), np.dtype(np.float32), 0, 1), write)


def specs_of(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], name: str
) -> tuple[dict[str, ArraySpec], ActionSpec]:
    """The specifications of an environment's observations and actions. Raises `UnsupportedSpace` with its `name`."""
    try:
        observation, action = observation_spec(observation_space), action_spec(action_space)
    except UnsupportedSpace as error:
        raise UnsupportedSpace(f"{name}: {error}") from error
    if MASK_KEY in observation and observation[MASK_KEY].shape != (action.mask_width,):
        raise UnsupportedSpace(
            f"{name}: the action mask has {observation[MASK_KEY].shape[0]} entries; the action space has {action.mask_width} "
            "choices in its discrete parts"
        )
    return observation, action


def spec_of(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    env_id: str,
    options: EnvConfig,
    *,
    frameskip: int = 1,
    frame_stack: int | None = None,
    autoreset: Literal["next-step", "same-step"] = "next-step",
) -> EnvSpec:
    """The specification of environments with these spaces. `frameskip`: the default if the settings have none. `frame_stack`:
    frames in an observation; None: taken from the settings. Raises `UnsupportedSpace`."""
    observation, action = specs_of(observation_space, action_space, env_id)
    stack = frame_stack or options.frame_stack or 1
    frames = options.frameskip or frameskip
    return EnvSpec(observation, action, frames, autoreset, env_id, frame_stack=stack, info_metrics=options.info_metrics)
