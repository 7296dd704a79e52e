"""Spaces as flat arrays: actions there and back for any nesting, observations by their meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import spaces as flat
from headrace.envs.contract import MASK_KEY, Categorical, Continuous


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    low = draw(st.floats(-10, 0, width=32))
    return spaces.Box(low, low + draw(st.floats(0.5, 5, width=32)), shape, draw(st.sampled_from([np.float32, np.float64])))


leaf_spaces = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-3, 3)),
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.integers(1, 4).map(spaces.MultiBinary),
    boxes(),
)
action_spaces = st.recursive(
    leaf_spaces,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=5,
)


def encode(space: spaces.Space, action: Any) -> np.ndarray:
    """One action as a row [A] of `action_spec(space)`: the inverse of `decoder`, written in another way."""
    return np.array(list(columns(space, action)), dtype=flat.action_spec(space).dtype)


def columns(space: spaces.Space, action: Any) -> Iterator[float]:
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        yield from (np.asarray(action) - space.start).ravel().tolist()
    elif isinstance(space, (spaces.Dict, spaces.Tuple)):
        for key in space.spaces if isinstance(space, spaces.Dict) else range(len(space.spaces)):
            yield from columns(space.spaces[key], action[key])
    else:
        yield from np.asarray(action).ravel().tolist()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return np.allclose(a, b, atol=1e-5)


@settings(max_examples=150, deadline=None)
@given(action_spaces, st.integers(0, 2**31))
def test_actions_there_and_back(space: spaces.Space, seed: int) -> None:
    space.seed(seed)
    actions = [space.sample() for _ in range(3)]
    spec = flat.action_spec(space)
    rows = np.stack([encode(space, action) for action in actions])
    assert rows.shape == (3, spec.width)
    assert rows.dtype == spec.dtype
    decoded = flat.decoder(space)(rows)
    for action, back in zip(actions, decoded, strict=True):
        assert space.contains(back), (space, back)
        assert same(action, back)


@settings(max_examples=100, deadline=None)
@given(action_spaces, st.integers(0, 2**31))
def test_batched_actions_are_those_of_the_batched_space(space: spaces.Space, seed: int) -> None:
    space.seed(seed)
    rows = np.stack([encode(space, space.sample()) for _ in range(4)])
    batched = flat.batch_decoder(space)(rows)
    assert batch_space(space, 4).contains(batched), (space, batched)


def test_parts_of_a_nested_action() -> None:
    space = spaces.Dict({"move": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 2, (2,))]), "press": spaces.MultiBinary(2)})
    spec = flat.action_spec(space)
    assert spec.parts == (Categorical(3), Continuous((-1, -1), (2, 2)), Categorical(2), Categorical(2))
    assert spec.dtype == np.float32
    assert spec.mask_width == 7
    assert flat.action_spec(spaces.MultiDiscrete([2, 3])).dtype == np.int32


def test_decoded_box_actions_stay_within_bounds() -> None:
    space = spaces.Box(-0.1, 0.1, (1,), np.float64)
    (action,) = flat.decoder(space)(np.array([[0.1]], np.float32))  # the nearest float32 is above 0.1
    assert space.contains(action)


@pytest.mark.parametrize(
    ("space", "value", "shape"),
    [
        (spaces.Box(0, 255, (20, 30, 3), np.uint8), None, (3, 20, 30)),
        (spaces.Box(0, 255, (3, 20, 30), np.uint8), None, (3, 20, 30)),
        (spaces.Box(0, 255, (4, 20, 30, 3), np.uint8), None, (12, 20, 30)),
        (spaces.Box(0, 255, (4, 3, 20, 30), np.uint8), None, (12, 20, 30)),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), None, (7, 7, 3)),
        (spaces.Box(-1, 1, (2, 3), np.float64), None, (2, 3)),
        (spaces.Box(-1, 1, (), np.float32), None, (1,)),
        (spaces.MultiBinary(5), None, (5,)),
        (spaces.MultiBinary((2, 2)), None, (2, 2)),
    ],
)
def test_arrays_keep_every_number(space: spaces.Space, value: Any, shape: tuple[int, ...]) -> None:
    spec = flat.observation_spec(space)[flat.PLAIN_KEY]
    assert spec.shape == shape
    (leaf,) = flat.leaves(space)
    space.seed(1)
    values = np.stack([space.sample() for _ in range(2)])
    one, both = np.zeros(shape, spec.dtype), np.zeros((2, *shape), spec.dtype)
    leaf.put_value(one, values[0])
    leaf.put_batch(both, values)
    again = np.zeros_like(both)
    leaf.put_one(again, 1, values[1])
    assert np.array_equal(again[1], both[1])
    assert np.array_equal(one, both[0])
    assert sorted(both.ravel().tolist()) == pytest.approx(sorted(values.ravel().tolist()))


def test_channels_come_first() -> None:
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    (leaf,) = flat.leaves(spaces.Box(0, 255, image.shape, np.uint8))
    row = np.zeros((3, 20, 30), np.uint8)
    leaf.put_value(row, image)
    assert np.array_equal(row, image.transpose(2, 0, 1))
    leaf.put_value(row, image[:, ::-1])  # not contiguous
    assert np.array_equal(row, image[:, ::-1].transpose(2, 0, 1))
    stack = np.stack([image, image + 1])
    (leaf,) = flat.leaves(spaces.Box(0, 255, stack.shape, np.uint8))
    row = np.zeros((6, 20, 30), np.uint8)
    leaf.put_value(row, stack)
    assert np.array_equal(row[3:], (image + 1).transpose(2, 0, 1))


def test_choices_become_one_hot() -> None:
    (leaf,) = flat.leaves(spaces.MultiDiscrete([2, 3], start=[1, -1]))
    row = np.full((2, 5), 9, np.float32)
    leaf.put_value(row, np.array([[1, -1], [2, 1]]))
    assert row.tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 0, 1]]
    with pytest.raises(flat.BadObservation, match="choices"):
        leaf.put_value(row, np.array([[1, -1], [3, 1]]))
    (leaf,) = flat.leaves(spaces.Discrete(3, start=5))
    one = np.zeros(3, np.float32)
    leaf.put_value(one, 7)
    assert one.tolist() == [0, 0, 1]


def test_nested_names() -> None:
    space = spaces.Dict({"camera": spaces.Dict({"left": spaces.Box(0, 1, (2,))}), "more": spaces.Tuple([spaces.Discrete(2)])})
    assert list(flat.observation_spec(space)) == ["camera/left", "more/0"]
    left, more = flat.leaves(space)
    row = np.zeros(2, np.float32)
    left.put_one(row[None], 0, {"camera": {"left": np.array([0.5, 1.0])}, "more": (1,)})
    assert row.tolist() == [0.5, 1.0]
    more.put_one(row[None], 0, {"camera": {"left": np.zeros(2)}, "more": (1,)})
    assert row.tolist() == [0.0, 1.0]
    with pytest.raises(flat.BadObservation, match="more/0"):
        more.put_one(row[None], 0, {"camera": {}})


def test_unsupported_spaces_are_named() -> None:
    with pytest.raises(flat.UnsupportedSpace, match=r"'words' is a Text space.*ObservationWrapper"):
        flat.observation_spec(spaces.Dict({"words": spaces.Text(5)}))
    with pytest.raises(flat.UnsupportedSpace, match="ActionWrapper"):
        flat.action_spec(spaces.Tuple([spaces.Text(5)]))


def test_masks_must_fit_the_action() -> None:
    def observation(width: int) -> spaces.Dict:
        return spaces.Dict({"obs": spaces.Box(0, 1, (2,)), MASK_KEY: spaces.MultiBinary(width)})

    action = spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (4,)), spaces.Discrete(2)])
    spec, _ = flat.specs_of(observation(5), action, "mine")
    assert spec[MASK_KEY].shape == (5,)
    assert spec[MASK_KEY].dtype == np.uint8
    with pytest.raises(flat.UnsupportedSpace, match=r"mine: the action mask has 4 entries; the action space has 5"):
        flat.specs_of(observation(4), action, "mine")
