"""Spaces as flat arrays: actions there and back for any nesting, observations by their meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import Config
from headrace.envs.core import actions as actions_of
from headrace.envs.core import spaces as flat
from headrace.envs.core.contract import MASK_KEY, Categorical, Continuous
from headrace.envs.core.errors import BadObservation, UnsupportedSpace
from headrace.envs.core.settings import summary


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
    return np.array(list(columns(space, action)), dtype=actions_of.action_spec(space).dtype)


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
    spec = actions_of.action_spec(space)
    rows = np.stack([encode(space, action) for action in actions])
    assert rows.shape == (3, spec.width)
    assert rows.dtype == spec.dtype
    decoded = actions_of.decoder(space)(rows)
    for action, back in zip(actions, decoded, strict=True):
        assert space.contains(back), (space, back)
        assert same(action, back)


@settings(max_examples=100, deadline=None)
@given(action_spaces, st.integers(0, 2**31))
def test_batched_actions_are_those_of_the_batched_space(space: spaces.Space, seed: int) -> None:
    space.seed(seed)
    rows = np.stack([encode(space, space.sample()) for _ in range(4)])
    batched = actions_of.batch_decoder(space)(rows)
    assert batch_space(space, 4).contains(batched), (space, batched)


def test_parts_of_a_nested_action() -> None:
    space = spaces.Dict({"move": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 2, (2,))]), "press": spaces.MultiBinary(2)})
    spec = actions_of.action_spec(space)
    assert spec.parts == (Categorical(3), Continuous((-1, -1), (2, 2)), Categorical(2), Categorical(2))
    assert spec.dtype == np.float32
    assert spec.mask_width == 7
    assert actions_of.action_spec(spaces.MultiDiscrete([2, 3])).dtype == np.int32


def test_decoded_box_actions_stay_within_bounds() -> None:
    space = spaces.Box(-0.1, 0.1, (1,), np.float64)
    (action,) = actions_of.decoder(space)(np.array([[0.1]], np.float32))  # the nearest float32 is above 0.1
    assert space.contains(action)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=3),
        spaces.MultiDiscrete([3, 4], start=[1, -2]),
        spaces.MultiBinary((2, 2)),
        spaces.Box(-3, 3, (2, 2), np.int8),
        spaces.Box(0, np.iinfo(np.int32).max, (2,), np.int32),
        spaces.Box(0, np.inf, (2,), np.float32),
        spaces.Box(-np.inf, 1, (), np.float64),
        spaces.Box(-0.1, 0.1, (1,), np.float64),
    ],
    ids=str,
)
def test_environments_of_tensors_get_the_same_actions(space: spaces.Space) -> None:
    spec = actions_of.action_spec(space)
    random = np.random.default_rng(0)
    rows = random.integers(0, 2, (5, spec.width)) if spec.mask_width else random.normal(0, 2.0**31, (5, spec.width)).clip(-9)
    rows = rows.astype(spec.dtype)
    tensors = actions_of.tensor_decoder(space, "cpu", "made up")(torch.from_numpy(rows))
    arrays = actions_of.batch_decoder(space)(rows)
    assert np.array_equal(tensors.numpy(), arrays)
    assert batch_space(space, 5).contains(tensors.numpy().astype(space.dtype))
    assert not isinstance(space, spaces.Box) or tensors.numpy().dtype == space.dtype


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
    with pytest.raises(BadObservation, match=r"'obs' is .*, which is not in MultiDiscrete"):
        leaf.put_value(row, np.array([[1, -1], [3, 1]]))
    (leaf,) = flat.leaves(spaces.Dict(gear=spaces.Discrete(3, start=5)))
    one = np.zeros(3, np.float32)
    leaf.put_value(one, 7)
    assert one.tolist() == [0, 0, 1]
    with pytest.raises(BadObservation, match=r"^observation 'gear' is 3, which is not in Discrete\(3, start=5\)$"):
        leaf.put_value(one, 3)


@pytest.mark.parametrize("space", [spaces.Discrete(2**40), spaces.MultiDiscrete([2, 2_000_000])])
def test_more_choices_than_a_network_can_have_are_refused(space: spaces.Space[Any]) -> None:
    few = spaces.Discrete(2)
    with pytest.raises(UnsupportedSpace, match=r"observation 'code' is .* choices.* Wrap the environment"):
        flat.specs_of(spaces.Dict(code=space), few, "my/codes")
    with pytest.raises(UnsupportedSpace, match=r"the action space .* choices.* Wrap the environment"):
        flat.specs_of(few, space, "my/codes")


def test_nested_names() -> None:
    space = spaces.Dict({"camera": spaces.Dict({"left": spaces.Box(0, 1, (2,))}), "more": spaces.Tuple([spaces.Discrete(2)])})
    assert list(flat.observation_spec(space)) == ["camera/left", "more/0"]
    left, more = flat.leaves(space)
    row = np.zeros(2, np.float32)
    left.put_one(row[None], 0, {"camera": {"left": np.array([0.5, 1.0])}, "more": (1,)})
    assert row.tolist() == [0.5, 1.0]
    more.put_one(row[None], 0, {"camera": {"left": np.zeros(2)}, "more": (1,)})
    assert row.tolist() == [0.0, 1.0]
    with pytest.raises(BadObservation, match="more/0"):
        more.put_one(row[None], 0, {"camera": {}})


def test_unsupported_spaces_are_named() -> None:
    with pytest.raises(UnsupportedSpace, match=r"'words' is a Text space.*ObservationWrapper"):
        flat.observation_spec(spaces.Dict({"words": spaces.Text(5)}))
    for nothing in (None, spaces.Box, (spaces.Box(0, 1, (2,)),)):
        with pytest.raises(UnsupportedSpace, match="none of Gymnasium's spaces"):
            flat.observation_spec(nothing)
    with pytest.raises(UnsupportedSpace, match="ActionWrapper"):
        actions_of.action_spec(spaces.Tuple([spaces.Text(5)]))


def test_masks_must_fit_the_action() -> None:
    def observation(width: int) -> spaces.Dict:
        return spaces.Dict({"obs": spaces.Box(0, 1, (2,)), MASK_KEY: spaces.MultiBinary(width)})

    action = spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (4,)), spaces.Discrete(2)])
    spec, _ = flat.specs_of(observation(5), action, "mine")
    assert spec[MASK_KEY].shape == (5,)
    assert spec[MASK_KEY].dtype == np.uint8
    with pytest.raises(UnsupportedSpace, match=r"mine: the action mask has 4 entries; the action space has 5"):
        flat.specs_of(observation(4), action, "mine")


# -- observations that once were learned from as they are not -----------------------------------------------------------


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int64])
def test_discrete_spaces_of_any_integer_type(kind: type) -> None:
    """Observations become one-hot, and actions integers of the space's own type."""
    discrete = spaces.Discrete(4, start=3, dtype=kind)
    several = spaces.MultiDiscrete(np.array([3, 2], kind), dtype=kind, start=np.array([1, 5], kind))
    for space, value, one_hot in (
        (discrete, kind(5), [0, 0, 1, 0]),
        (several, np.array([3, 5], kind), [0, 0, 1, 1, 0]),
    ):
        (leaf,) = flat.leaves(space)
        row = np.zeros((1, *leaf.spec.shape), np.float32)
        leaf.put_one(row, 0, value)
        assert row[0].tolist() == one_hot
        action = np.array([[2] * actions_of.action_spec(space).width], np.int32)
        action[:, 1:] = 0
        (decoded,) = actions_of.decoder(space)(action)
        assert space.contains(decoded if isinstance(decoded, np.ndarray) else kind(decoded))
        assert isinstance(decoded, (int, np.ndarray))
        batch = actions_of.batch_decoder(space)(action)
        assert batch.dtype == kind
        assert space.contains(batch[0])


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(3)})}),
        spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2)]), "a/0": spaces.Discrete(3)}),
    ],
    ids=["nested", "tuple"],
)
def test_names_that_collide_are_refused(space: spaces.Space) -> None:
    with pytest.raises(UnsupportedSpace, match=r"world/x: two entries .* are both called 'a/[b0]'.*Rename"):
        flat.specs_of(space, spaces.Discrete(2), "world/x")


@pytest.mark.parametrize(
    ("observation", "action", "what"),
    [
        (spaces.Box(0, 1, (0,)), spaces.Discrete(2), "observation 'obs' .* no numbers"),
        (spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Box(0, 1, (3, 0))}), spaces.Discrete(2), "'b' .* no numbers"),
        (spaces.Dict({}), spaces.Discrete(2), "no entries"),
        (spaces.Tuple([]), spaces.Discrete(2), "no entries"),
        (spaces.Dict({MASK_KEY: spaces.MultiBinary(2)}), spaces.Discrete(2), "only an action mask"),
        (spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (0,)), "action space .* no parts"),
        (spaces.Box(0, 1, (2,)), spaces.Tuple([]), "action space .* no parts"),
    ],
    ids=["box", "entry", "dict", "tuple", "mask", "action box", "action tuple"],
)
def test_spaces_of_nothing_are_refused(observation: spaces.Space, action: spaces.Space, what: str) -> None:
    with pytest.raises(UnsupportedSpace, match=f"world/x: .*{what}"):
        flat.specs_of(observation, action, "world/x")


def written(space: spaces.Box, *values: np.ndarray) -> np.ndarray:
    """The rows of some observations, written one by one; a batch must be written alike."""
    (leaf,) = flat.leaves(space)
    one_by_one, batch = (np.zeros((len(values), *leaf.spec.shape), leaf.spec.dtype) for _ in range(2))
    for i, value in enumerate(values):
        leaf.put_one(one_by_one, i, value)
    leaf.put_batch(batch, np.stack(values))
    assert np.array_equal(one_by_one, batch)
    return one_by_one


def test_a_grey_image_without_channels_is_an_image() -> None:
    space = spaces.Box(0, 255, (20, 24), np.uint8)
    (leaf,) = flat.leaves(space)
    assert leaf.spec.is_image
    assert leaf.spec.shape == (1, 20, 24)
    image = np.random.default_rng(0).integers(256, size=(20, 24)).astype(np.uint8)
    assert np.array_equal(written(space, image)[0, 0], image)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32, np.int64, np.uint16])
@pytest.mark.parametrize("shape", [(20, 24), (20, 24, 3), (3, 20, 24), (4, 20, 24, 3)])
def test_images_of_other_types_from_0_to_255_are_images(kind: type, shape: tuple[int, ...]) -> None:
    space, same = spaces.Box(0, 255, shape, kind), spaces.Box(0, 255, shape, np.uint8)
    (leaf,) = flat.leaves(space)
    assert leaf.spec == flat.leaves(same)[0].spec
    assert leaf.spec.is_image
    image = np.random.default_rng(0).integers(256, size=shape).astype(np.uint8)
    assert np.array_equal(written(space, image.astype(kind), image.astype(kind)), written(same, image, image))
    if np.issubdtype(kind, np.floating):
        assert np.array_equal(written(space, np.clip(image + kind(0.4), 0, 255)), written(same, image))
        with pytest.raises(BadObservation, match="0 to 255"):
            written(space, np.full(shape, 300, kind))
        with pytest.raises(BadObservation, match="0 to 255"):
            written(space, np.full(shape, np.nan, kind))


def test_images_whose_values_end_below_255_are_spread_to_255() -> None:
    """A board of zeros and ones divided by 255, as images are, would be next to nothing."""
    space = spaces.Box(0, 1, (19, 19, 17), np.uint8)
    board = np.random.default_rng(0).integers(2, size=(19, 19, 17)).astype(np.uint8)
    assert np.array_equal(written(space, board, 1 - board)[0], np.moveaxis(board * 255, -1, 0))
    with pytest.raises(BadObservation, match="0 to 1"):
        written(space, board * 2)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Box(0, 1, (84, 84), np.float32), True),
        (spaces.Box(-1, 1, (20, 24, 3), np.float32), True),
        (spaces.Box(0, 1, (20, 24, 3), np.float32), False),
        (spaces.Box(0, 255, (84, 84), np.float32), False),
        (spaces.Box(0, 1, (8, 8), np.float32), False),
    ],
)
def test_an_array_like_an_image_that_is_none_is_told(space: spaces.Box, said: bool) -> None:
    config = Config(env="test/any")
    lines = summary(config, flat.spec_of(space, spaces.Discrete(2), "test/any", config.envs))
    told = f"Observation 'obs' has the shape of an image, {list(space.shape)}, and the network sees it as a vector: "
    assert [line.startswith(told) for line in lines] == [True] * said


def test_float_arrays_with_other_bounds_stay_numbers() -> None:
    for space in (
        spaces.Box(-1, 1, (20, 24, 3), np.float32),
        spaces.Box(0, 255, (20,), np.float32),
        spaces.Box(0, 255, (20, 4), np.float32),
        spaces.Box(-np.inf, np.inf, (20, 24), np.float32),
    ):
        (leaf,) = flat.leaves(space)
        assert (leaf.spec.shape, leaf.spec.dtype) == (space.shape, np.float32)
