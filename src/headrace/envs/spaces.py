"""Gymnasium spaces as flat arrays, and back.

Observations become named arrays of two kinds: uint8 images [C, H, W], and float32 numbers of any shape.

    Box uint8, 2-D                 grey image H x W, if both sides have at least `SMALLEST_IMAGE` pixels
    Box uint8, 3-D                 image; H x W x C or C x H x W: C is the smaller of the first and the last dimension
    Box uint8, 4-D                 stack of images [K, ...]: one image of K * C channels
    Box 0..255 of other types      an image, too, if it has the shape of one; numbers are rounded
    Box, anything else             float32 of the same shape
    Discrete, MultiDiscrete        one-hot float32
    MultiBinary                    float32 of the same shape
    Dict, Tuple                    one level of names; nested ones are joined: "camera/left"

Networks divide images by 255. Values of an image whose space ends below 255 are therefore spread to 0..255: 0 and 1 become
0 and 255. Spaces without any number and entries with the same joined name are refused.

A space without names has the one name "obs". The entry `MASK_KEY` of a Dict is the action mask and stays uint8.

Actions become one row of columns (`ActionSpec`): Discrete and MultiDiscrete one column per choice, counted from 0; MultiBinary
one two-way choice per bit; Box one bounded number per entry; Dict and Tuple their parts in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.config import ConfigError
from headrace.envs.contract import MASK_KEY, ActionSpec, ArraySpec, Categorical, Continuous

PLAIN_KEY = "obs"
"""Name of the only array of an observation space that is no dictionary."""

SMALLEST_IMAGE = 16
"""Arrays with fewer rows or columns than this count as vectors: they are too small for convolutional encoders."""


class UnsupportedSpace(ConfigError):
    """A space that cannot be turned into flat arrays; the message names it and says what to do."""


class BadObservation(ValueError):
    """An observation that is not in the declared space."""


# -- observations -----------------------------------------------------------------------------------------------------


@dataclass
class Leaf:
    """One array of an observation: its place in the observation, and how it is written into rows of memory."""

    name: str
    path: tuple[str | int, ...]
    """The keys to it through nested dictionaries and tuples."""
    source: spaces.Space[Any]
    spec: ArraySpec
    write: Callable[[np.ndarray, np.ndarray], None]
    """write(destination [..., *spec.shape], value [..., *source.shape]); leading dimensions alike."""

    def __post_init__(self) -> None:
        self._shape = self.source.shape or ()
        self._dtype = np.dtype(self.source.dtype)
        self._unchanged = self.write is _write_reshaped and self._shape == self.spec.shape

    def find(self, observation: Any) -> Any:
        """This leaf's part of an observation. Raises `BadObservation` where it is missing."""
        try:
            for key in self.path:
                observation = observation[key]
        except (KeyError, IndexError, TypeError) as error:
            raise BadObservation(f"the observation has no entry {self.name!r}") from error
        return observation

    def put_one(self, rows: np.ndarray, index: int, observation: Any) -> None:
        """Write this leaf's part of one environment's observation to ``rows[index]``. Raises `BadObservation`."""
        value = self.find(observation) if self.path else observation
        # called once for each environment and step, so a correct observation costs only three comparisons
        if type(value) is np.ndarray and value.shape == self._shape and value.dtype == self._dtype and self._unchanged:
            rows[index] = value
        else:
            self.put_value(rows[index], value)

    def put_batch(self, rows: np.ndarray, observations: Any) -> None:
        """Write this leaf's part of the batched observations of a vector environment. Raises `BadObservation`."""
        self.put_value(rows, self.find(observations))

    def put_value(self, destination: np.ndarray, value: Any) -> None:
        """Write a value of this leaf's own space, or a batch of values if `destination` has a leading dimension."""
        if not isinstance(value, np.ndarray):
            try:
                value = np.asarray(value)
            except ValueError as error:
                raise BadObservation(f"observation {self.name!r} is no array: {error}") from error
        shape = destination.shape[: destination.ndim - len(self.spec.shape)] + self._shape
        if value.shape != shape:
            raise BadObservation(f"observation {self.name!r} has shape {value.shape}; its space declares {shape}")
        if value.dtype != self._dtype and not np.can_cast(value.dtype, self._dtype, "same_kind"):
            raise BadObservation(f"observation {self.name!r} has dtype {value.dtype}; its space declares {self._dtype}")
        self.write(destination, value)


def leaves(space: spaces.Space[Any]) -> list[Leaf]:
    """The arrays of an observation space, in the space's order. Raises `UnsupportedSpace`."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [_leaf(space, PLAIN_KEY, ())]
    found: dict[str, Leaf] = {}
    for leaf in _leaves(space, ()):
        if leaf.name in found:
            raise UnsupportedSpace(
                f"two entries of the observation, at {list(found[leaf.name].path)} and {list(leaf.path)}, are both called "
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


def _leaves(space: spaces.Space[Any], path: tuple[str | int, ...]) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from _leaves(child, (*path, index))
    else:
        yield _leaf(space, "/".join(map(str, path)), path)


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
        return Leaf(name, path, space, spec, _write_reshaped)
    if isinstance(space, spaces.Box):
        return Leaf(name, path, space, *_box(space))
    if isinstance(space, spaces.Discrete):
        spec = _one_hot_spec(int(space.n))
        return Leaf(name, path, space, spec, _one_hot(np.array([int(space.n)]), np.array([int(space.start)])))
    if isinstance(space, spaces.MultiDiscrete):
        # of whatever integer type: NumPy makes a float of the sum of an int64 and a uint64
        nvec, start = space.nvec.ravel().astype(np.int64), space.start.ravel().astype(np.int64)
        return Leaf(name, path, space, _one_hot_spec(int(nvec.sum())), _one_hot(nvec, start))
    if isinstance(space, spaces.MultiBinary):
        return Leaf(name, path, space, ArraySpec(space.shape, np.dtype(np.float32), 0, 1), _write_reshaped)
    raise UnsupportedSpace(
        f"observation {name!r} is a {type(space).__name__} space; Box, Discrete, MultiDiscrete, MultiBinary and Dict or Tuple "
        "of these have an array form. Wrap the environment in a gymnasium.ObservationWrapper that turns it into one of them"
    )


def _one_hot_spec(width: int) -> ArraySpec:
    return ArraySpec((width,), np.dtype(np.float32), 0, 1)


def _box(space: spaces.Box) -> tuple[ArraySpec, Callable[[np.ndarray, np.ndarray], None]]:
    shape = space.shape
    low, high = (float(np.min(space.low)), float(np.max(space.high))) if space.is_bounded("both") else (-np.inf, np.inf)
    if has_image_shape(shape) and (space.dtype == np.uint8 or (low, high) == (0, 255)):
        channels_last = len(shape) > 2 and shape[-1] <= shape[-3]
        height, width, channels = shape[-3:] if channels_last else (*shape[-2:], 1 if len(shape) == 2 else shape[-3])
        stack = shape[0] if len(shape) == 4 else 1
        write = _write_channels_last(len(shape)) if channels_last else _write_reshaped
        if space.dtype != np.uint8 or 0 < high < 255:
            write = _write_as_pixels(write, high)
        return ArraySpec((stack * channels, height, width), np.dtype(np.uint8), 0, 255), write
    return ArraySpec(shape or (1,), np.dtype(np.float32), low, high), _write_reshaped


def has_image_shape(shape: tuple[int, ...]) -> bool:
    """H x W, H x W x C, C x H x W, or a stack of the latter two, large enough for a convolutional encoder."""
    if len(shape) == 2:
        return min(shape) >= SMALLEST_IMAGE
    return len(shape) in (3, 4) and sorted(shape[-3:])[1] >= SMALLEST_IMAGE


def _write_as_pixels(write: Callable[[np.ndarray, np.ndarray], None], high: float) -> Callable[[np.ndarray, np.ndarray], None]:
    """`write` of values from 0 to `high`, spread to 0..255 and rounded. Raises `BadObservation` for others."""

    def convert_and_write(destination: np.ndarray, value: np.ndarray) -> None:
        least, most = value.min(), value.max()
        if not (least > -0.5 and most < high + 0.5):  # NaN is neither
            raise BadObservation(f"an image has values from {least} to {most}; its space declares 0 to {high:g}")
        write(destination, np.clip(np.rint(value * (255 / high)), 0, 255).astype(np.uint8))

    return convert_and_write


def _write_reshaped(destination: np.ndarray, value: np.ndarray) -> None:
    destination[...] = value if value.shape == destination.shape else value.reshape(destination.shape)


def _write_channels_last(ndim: int) -> Callable[[np.ndarray, np.ndarray], None]:
    split = _cv2_split() if ndim == 3 else None

    def write(destination: np.ndarray, value: np.ndarray) -> None:
        if split is not None and value.ndim == 3 and value.flags.c_contiguous and destination.flags.c_contiguous:
            split(value, list(destination))
            return
        channels_first = np.moveaxis(value, -1, -3)
        if ndim == 4:  # [..., K, C, H, W] into [..., K * C, H, W]: give the destination the same split
            destination = destination.reshape(channels_first.shape)
        destination[...] = channels_first

    return write


def _cv2_split() -> Callable[[np.ndarray, list[np.ndarray]], Any] | None:
    """OpenCV's function, which separates channels four times as fast as a strided NumPy copy; None if it is not installed."""
    try:
        import cv2
    except ImportError:
        return None
    return cv2.split


def _one_hot(nvec: np.ndarray, start: np.ndarray) -> Callable[[np.ndarray, np.ndarray], None]:
    offset = np.concatenate([[0], np.cumsum(nvec)[:-1]])

    def write(destination: np.ndarray, value: np.ndarray) -> None:
        choice = value.reshape((*destination.shape[:-1], len(nvec))).astype(np.int64) - start
        if (choice < 0).any() or (choice >= nvec).any():
            raise BadObservation(
                f"observation {value.tolist()} is none of its space's {nvec.tolist()} choices (from {start.tolist()})"
            )
        destination[...] = 0
        np.put_along_axis(destination, choice + offset, 1, axis=-1)

    return write


# -- actions ----------------------------------------------------------------------------------------------------------


def action_spec(space: spaces.Space[Any]) -> ActionSpec:
    """The flat form of an action space. Raises `UnsupportedSpace`."""
    spec = ActionSpec(tuple(_parts(space)))
    if spec.width == 0:
        raise UnsupportedSpace(f"the action space {space!r} has no parts: there is nothing to choose")
    return spec


def _parts(space: spaces.Space[Any]) -> Iterator[Categorical | Continuous]:
    if isinstance(space, spaces.Discrete):
        yield Categorical(int(space.n))
    elif isinstance(space, spaces.MultiDiscrete):
        yield from (Categorical(int(n)) for n in space.nvec.ravel())
    elif isinstance(space, spaces.MultiBinary):
        yield from (Categorical(2) for _ in range(int(np.prod(space.shape))))
    elif isinstance(space, spaces.Box):
        yield Continuous(tuple(space.low.ravel().astype(float).tolist()), tuple(space.high.ravel().astype(float).tolist()))
    elif isinstance(space, (spaces.Dict, spaces.Tuple)):
        for _, child in _children(space):
            yield from _parts(child)
    else:
        raise UnsupportedSpace(
            f"the action space is or contains {space!r}; Discrete, MultiDiscrete, MultiBinary, Box and Dict or Tuple of these "
            "can be acted in. Wrap the environment in a gymnasium.ActionWrapper that turns it into one of them"
        )


def _children(space: spaces.Dict | spaces.Tuple) -> list[tuple[Any, spaces.Space[Any]]]:
    return list(space.spaces.items()) if isinstance(space, spaces.Dict) else list(enumerate(space.spaces))


def batch_decoder(space: spaces.Space[Any]) -> Callable[[np.ndarray], Any]:
    """A function from action rows [E, A] to the batch that a `gymnasium.vector.VectorEnv` with this single action space takes."""
    if isinstance(space, spaces.Discrete):
        first, kind = int(space.start), space.dtype
        return lambda rows: (rows[:, 0].astype(np.int64) + first).astype(kind)
    if isinstance(space, spaces.MultiDiscrete):
        shape, start, kind = space.shape, space.start.astype(np.int64), space.dtype
        return lambda rows: (rows.reshape(-1, *shape).astype(np.int64) + start).astype(kind)
    if isinstance(space, spaces.MultiBinary):
        shape, kind = space.shape, space.dtype
        return lambda rows: rows.reshape(-1, *shape).astype(kind)
    if isinstance(space, spaces.Box):
        return _box_decoder(space)
    assert isinstance(space, (spaces.Dict, spaces.Tuple)), space
    pieces = _pieces(space, batch_decoder)
    if isinstance(space, spaces.Dict):
        return lambda rows: {key: decode(rows[:, columns]) for key, columns, decode in pieces}
    return lambda rows: tuple(decode(rows[:, columns]) for _, columns, decode in pieces)


def decoder(space: spaces.Space[Any]) -> Callable[[np.ndarray], list[Any]]:
    """A function from action rows [E, A] to E actions, each as `env.step` of this action space takes it."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda rows: (rows[:, 0].astype(np.int64) + start).tolist()
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        pieces = _pieces(space, decoder)
        keys = [key for key, _, _ in pieces]

        def each(rows: np.ndarray) -> list[Any]:
            return list(zip(*(decode(rows[:, columns]) for _, columns, decode in pieces), strict=True))

        if isinstance(space, spaces.Dict):
            return lambda rows: [dict(zip(keys, values, strict=True)) for values in each(rows)]
        return each
    batch = batch_decoder(space)
    return lambda rows: list(batch(rows))


def _pieces(space: spaces.Dict | spaces.Tuple, make: Callable[[Any], Callable]) -> list[tuple[Any, slice, Callable]]:
    """For each child of a compound space: its key, its columns and its decoder."""
    pieces, at = [], 0
    for key, child in _children(space):
        width = action_spec(child).width
        pieces.append((key, slice(at, at + width), make(child)))
        at += width
    return pieces


def _box_decoder(space: spaces.Box) -> Callable[[np.ndarray], np.ndarray]:
    shape, kind, low, high = space.shape, space.dtype, space.low, space.high
    rounded = not np.issubdtype(kind, np.floating)

    def decode(rows: np.ndarray) -> np.ndarray:
        values = rows.reshape(-1, *shape)
        # float32 bounds may lie a rounding error outside float64 ones
        return np.clip(np.rint(values) if rounded else values, low, high).astype(kind)

    return decode


def specs_of(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], name: str
) -> tuple[dict[str, ArraySpec], ActionSpec]:
    """Both specifications of one environment, which the errors name. Raises `UnsupportedSpace`."""
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
