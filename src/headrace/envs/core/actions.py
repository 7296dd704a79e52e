"""Converts action spaces to flat rows of numbers (`ActionSpec`), and rows to the actions that environments take.

Discrete and MultiDiscrete are one column per choice, counted from 0; MultiBinary one two-way choice per bit; Box one bounded
number per entry; Dict and Tuple their parts in order (`ActionSpec`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from gymnasium import spaces

from headrace.envs.core.contract import ActionSpec, Categorical, Continuous
from headrace.envs.core.errors import UnsupportedSpace

if TYPE_CHECKING:  # only tensor environments import torch
    from torch import Tensor

MOST_CHOICES = 1_000_000  # of an action, and of one entry of an observation


def action_spec(space: spaces.Space[Any]) -> ActionSpec:
    """The flat form of an action space. Raises `UnsupportedSpace`."""
    spec = ActionSpec(tuple(_parts(space)))
    if spec.width == 0:
        raise UnsupportedSpace(f"the action space {space!r} has no parts: there is nothing to choose")
    check_choices(f"the action space is {space!r}", spec.mask_width, "ActionWrapper")
    return spec


def check_choices(what: str, number: int, wrapper: str) -> None:
    """Raise `UnsupportedSpace` for more choices than a layer of a network can have."""
    if number > MOST_CHOICES:
        raise UnsupportedSpace(
            f"{what}, with {number:,} choices, each a number of its own for the network; at most {MOST_CHOICES:,} are possible. "
            f"Wrap the environment in a gymnasium.{wrapper} that makes fewer of them, or a Box"
        )


def _parts(space: spaces.Space[Any]) -> Iterator[Categorical | Continuous]:
    for _, part in flattened(space):
        if isinstance(part, spaces.Discrete | spaces.MultiDiscrete):
            yield from map(Categorical, choices_of(part)[0].tolist())
        elif isinstance(part, spaces.MultiBinary):
            yield from (Categorical(2) for _ in range(int(np.prod(part.shape))))
        elif isinstance(part, spaces.Box):
            low, high = (tuple(bound.ravel().astype(float).tolist()) for bound in (part.low, part.high))
            yield Continuous(low, high, _is_integer(part))
        else:
            raise UnsupportedSpace(
                f"the action space is or contains {part!r}; Discrete, MultiDiscrete, MultiBinary, Box and Dict or Tuple of these "
                "can be acted in. Wrap the environment in a gymnasium.ActionWrapper that turns it into one of them"
            )


def choices_of(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[np.ndarray, np.ndarray]:
    """How many choices each of the space's K numbers has, and the first of them: int64 [K] both, which NumPy can add (it adds
    int64 and uint64 as floats)."""
    numbers = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return np.ravel(numbers).astype(np.int64), np.ravel(space.start).astype(np.int64)


def flattened(space: spaces.Space[Any], path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The spaces that are no Dict or Tuple, in order, each after the keys that lead to it through nested Dicts and Tuples."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for key, child in _children(space):
            yield from flattened(child, (*path, key))
    else:
        yield path, space


def _is_integer(space: spaces.Box) -> bool:
    return not np.issubdtype(space.dtype, np.floating)


def _children(space: spaces.Dict | spaces.Tuple) -> list[tuple[Any, spaces.Space[Any]]]:
    return list(space.spaces.items()) if isinstance(space, spaces.Dict) else list(enumerate(space.spaces))


def batch_decoder(space: spaces.Space[Any]) -> Callable[[np.ndarray], Any]:
    """A function from action rows [E, A] to the batch that a `gymnasium.vector.VectorEnv` with this single action space takes."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        shape, start, kind = space.shape or (), np.asarray(space.start, np.int64), space.dtype
        if start.any():
            return lambda rows: (rows.reshape(-1, *shape).astype(np.int64) + start).astype(kind)
        return lambda rows: rows.reshape(-1, *shape).astype(kind)
    if isinstance(space, spaces.MultiBinary):
        shape, kind = space.shape, space.dtype
        return lambda rows: rows.reshape(-1, *shape).astype(kind)
    if isinstance(space, spaces.Box):
        return _box_decoder(space)
    assert isinstance(space, (spaces.Dict, spaces.Tuple)), space
    pieces: list[tuple[Any, slice, Callable]] = []  # of each child: its key, its columns and its decoder
    at = 0
    for key, child in _children(space):
        width = action_spec(child).width
        pieces.append((key, slice(at, at + width), batch_decoder(child)))
        at += width
    if isinstance(space, spaces.Dict):
        return lambda rows: {key: decode(rows[:, columns]) for key, columns, decode in pieces}
    return lambda rows: tuple(decode(rows[:, columns]) for _, columns, decode in pieces)


def decoder(space: spaces.Space[Any]) -> Callable[[np.ndarray], list[Any]]:
    """A function from action rows [E, A] to E actions, each as `env.step` of this action space takes it."""
    batch = batch_decoder(space)
    return lambda rows: _taken_apart(space, batch(rows))


def _taken_apart(space: spaces.Space[Any], batch: Any) -> list[Any]:
    """The actions of a batch, one by one; those of Discrete spaces as Python's int."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys, columns = zip(*((key, _taken_apart(child, batch[key])) for key, child in _children(space)), strict=True)
        rows = zip(*columns, strict=True)
        return [dict(zip(keys, row, strict=True)) for row in rows] if isinstance(space, spaces.Dict) else list(rows)
    return batch.tolist() if isinstance(space, spaces.Discrete) else list(batch)


def _box_decoder(space: spaces.Box) -> Callable[[np.ndarray], np.ndarray]:
    shape, kind, low, high = space.shape, space.dtype, space.low, space.high
    rounded = _is_integer(space)

    def decode(rows: np.ndarray) -> np.ndarray:
        values = rows.reshape(-1, *shape)
        # float32 bounds may lie a rounding error outside float64 ones
        return np.clip(np.rint(values) if rounded else values, low, high).astype(kind)

    return decode


def tensor_decoder(space: spaces.Space[Any], device: str, env_id: str) -> Callable[[Tensor], Tensor]:
    """A function from action rows [N, A] on the device to the tensor of actions that tensor environments take. Raises
    `UnsupportedSpace` for Dict and Tuple spaces."""
    import torch  # only tensor environments need it

    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda rows: rows[:, 0].long() + start
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        shape = tuple(cast(Any, space.shape))
        starts = torch.as_tensor(space.start if isinstance(space, spaces.MultiDiscrete) else 0, device=device)
        return lambda rows: rows.view(-1, *shape).long() + starts
    if isinstance(space, spaces.Box):
        low, high = (torch.as_tensor(bound, device=device) for bound in (space.low, space.high))
        kind, rounded = low.dtype, _is_integer(space)
        if rounded:  # float32 has not the largest integers
            low, high = low.double(), high.double()

        def decode(rows: Tensor) -> Tensor:
            values = rows.view(-1, *low.shape).to(low.dtype)
            return (values.round() if rounded else values).clamp(low, high).to(kind)

        return decode
    raise UnsupportedSpace(f"{env_id}: the action space is {space!r}; environments of tensors take one tensor of actions")
