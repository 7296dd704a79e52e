"""Settings that mean the same for every environment."""

from __future__ import annotations

import sys
from typing import Any

import cv2
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from worlds import CountingEnv

import headrace._native.pixels as native
from headrace.config import EnvConfig
from headrace.config.errors import MissingExtra
from headrace.envs.core.errors import BadObservation
from headrace.envs.core.spaces import leaves, observation_spec
from headrace.envs.core.wrappers import preprocess, resize
from headrace.envs.make import describe, make_env


class Pictures(gymnasium.Env):
    """Picture n is the constant n, beside a vector [n]; rewards are n. Ends by truncation after `length` frames."""

    def __init__(self, channels: tuple[int, ...] = (3,), length: int = 100, plain: bool = False) -> None:
        self.image = spaces.Box(0, 255, (40, 60, *channels), np.uint8)
        vector = spaces.Box(-1, 1e3, (1,), np.float32)
        self.observation_space = self.image if plain else spaces.Dict({"image": self.image, "n": vector})
        self.action_space = spaces.Discrete(2)
        self.n, self.length, self.plain = 0, length, plain

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.n = 0
        return self.observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n += 1
        return self.observation(), float(self.n), False, self.n >= self.length, {}

    def observation(self) -> Any:
        image = np.full(self.image.shape, self.n, np.uint8)
        return image if self.plain else {"image": image, "n": np.array([self.n], np.float32)}


def test_frame_skip_adds_rewards_and_stops_at_the_end() -> None:
    env = preprocess(Pictures(length=10), EnvConfig(frameskip=4))
    env.reset()
    assert env.step(0)[1] == 1 + 2 + 3 + 4
    assert env.step(0)[1:4] == (5 + 6 + 7 + 8, False, False)
    assert env.step(0)[1:4] == (9 + 10, False, True)


def test_pictures_per_second_are_those_of_steps() -> None:
    env = make_env("gym/CartPole-v1", EnvConfig(frameskip=4), render_mode="rgb_array")
    assert env.metadata["render_fps"] == 50 / 4
    env.close()
    assert "render_fps" not in preprocess(Pictures(), EnvConfig(frameskip=4)).metadata


def test_step_limit_counts_steps_not_frames() -> None:
    env = preprocess(Pictures(), EnvConfig(frameskip=4, max_episode_steps=3))
    env.reset()
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]
    assert env.unwrapped.n == 12


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("channels", [(), (1,), (3,)])
def test_images_are_resized_grey_and_stacked(plain: bool, channels: tuple[int, ...]) -> None:
    env = preprocess(Pictures(channels, plain=plain), EnvConfig(resize=(20, 24), grayscale=True, frame_stack=3))
    space = env.observation_space if plain else env.observation_space["image"]
    assert space.shape == (20, 24, 3)
    observation, _ = env.reset()
    seen = []
    for _ in range(4):
        observation = env.step(0)[0]
        image = observation if plain else observation["image"]
        assert env.observation_space.contains(observation)
        assert (image == image[0, 0]).all()
        seen.append(image[0, 0].tolist())
        if not plain:
            assert observation["n"].tolist() == [len(seen)]
    assert seen == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    image = env.reset()[0]
    assert not (image if plain else image["image"]).any()


def test_stacked_observations_are_not_changed_afterwards() -> None:
    env = preprocess(Pictures(plain=True), EnvConfig(frame_stack=2))
    first, _ = env.reset()
    kept = first.copy()
    env.step(0)
    assert np.array_equal(first, kept)


def test_vectors_are_stacked_where_there_is_no_image() -> None:
    env = preprocess(CountingEnv(), EnvConfig(frame_stack=2))
    assert env.observation_space.shape == (8,)
    env.reset(seed=4)
    assert env.step(3)[0].tolist() == [4, 0, 0, -1, 4, 0, 1, 3]


class Numbers(gymnasium.ObservationWrapper):
    """A number without dimensions, beside the vector or alone."""

    def __init__(self, alone: bool) -> None:
        super().__init__(CountingEnv())
        number = spaces.Box(-1, 1000, (), np.float32)
        self._alone = alone
        both = spaces.Dict({"number": number, "vector": self.env.observation_space})
        self.observation_space = number if alone else both

    def observation(self, observation: Any) -> Any:
        number = np.array(observation[0], np.float32)
        return number if self._alone else {"number": number, "vector": observation}


def test_a_number_is_no_vector_that_can_be_stacked() -> None:
    with pytest.raises(ValueError, match=r"frame_stack needs images or vectors; the observation is Box\(.*\(\), float32\)"):
        preprocess(Numbers(alone=True), EnvConfig(frame_stack=2))
    env = preprocess(Numbers(alone=False), EnvConfig(frame_stack=2))
    observation, _ = env.reset(seed=4)
    assert {name: part.shape for name, part in observation.items()} == {"number": (), "vector": (8,)}
    assert env.observation_space.contains(observation)


def test_image_settings_need_images() -> None:
    with pytest.raises(ValueError, match="need an image"):
        preprocess(CountingEnv(), EnvConfig(resize=(10, 10)))


@pytest.mark.parametrize(("shape", "grey"), [((32, 40, 3), 1), ((32, 40, 1), 1), ((32, 40, 4), None), ((2, 32, 40, 3), None)])
def test_only_rgb_images_can_be_made_grey(shape: tuple[int, ...], grey: int | None) -> None:
    env = Counted(spaces.Box(0, 255, shape, np.uint8))
    if grey is None:
        with pytest.raises(ValueError, match=r"grayscale needs an image of 3 channels, red, green and blue; there are"):
            preprocess(env, EnvConfig(grayscale=True))
    else:
        assert preprocess(env, EnvConfig(grayscale=True)).observation_space.shape == (32, 40, grey)


def test_resize_averages() -> None:
    """A checkerboard becomes its mean where every new pixel covers whole tiles, and stays near it where it shrinks a little."""
    board = np.indices((80, 80)).sum(axis=0)[..., None] % 2 * np.full((1, 1, 3), 200, np.uint8)
    board = board.astype(np.uint8)
    assert (resize(board, (20, 20)) == 100).all()
    assert resize(board, (80, 80)) is board
    assert abs(int(resize(board, (60, 50)).mean()) - 100) <= 2
    assert resize(board[..., :1], (20, 20)).shape == (20, 20, 1)


@pytest.mark.parametrize("size", [(20, 30), (13, 17), (13, 90), (30, 50)])
def test_images_of_many_channels_are_resized_as_each_of_these(size: tuple[int, int]) -> None:
    """A stack of four RGB images has 12. OpenCV's area averaging takes four at most."""
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 12), np.uint8)
    each = [resize(image[..., k : k + 1].copy(), size) for k in range(12)]
    np.testing.assert_array_equal(resize(image, size), np.concatenate(each, axis=2))


def test_the_action_mask_of_the_info_becomes_part_of_the_observation() -> None:
    options = EnvConfig(info_action_mask=True)
    env = make_env("gym/Taxi-v4", options)
    plain = gymnasium.make("Taxi-v4")
    observation, _ = env.reset(seed=3)
    _, info = plain.reset(seed=3)
    for _ in range(50):
        np.testing.assert_array_equal(observation["action_mask"], info["action_mask"])
        assert env.observation_space.contains(observation)
        action = int(np.flatnonzero(info["action_mask"])[-1])
        observation, *_ = env.step(action)
        *_, info = plain.step(action)
    assert describe("gym/Taxi-v4", options).observation["action_mask"].shape == (6,)
    with pytest.raises(ValueError, match='no "action_mask": its keys are'):
        make_env("gym/CartPole-v1", options).reset()


class Nested(Pictures):
    """The picture, and another one in a dictionary within the dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"image": self.image, "camera": spaces.Dict({"left": self.image})})

    def observation(self) -> Any:
        image = np.full(self.image.shape, self.n, np.uint8)
        return {"image": image, "camera": {"left": image}}


def test_what_is_deeper_in_a_dictionary_stays_as_it_is() -> None:
    env = preprocess(Nested(), EnvConfig(resize=(20, 24), grayscale=True, frame_stack=3))
    observation, _ = env.reset()
    assert env.observation_space.contains(observation)
    assert observation["image"].shape == (20, 24, 3)
    assert observation["camera"]["left"].shape == (40, 60, 3)


class Counted(gymnasium.Env):
    """Observation n is the constant n in every entry, given as lists if `listed`."""

    action_space = spaces.Discrete(3)

    def __init__(self, space: spaces.Space, listed: bool = False) -> None:
        self.observation_space, self.listed, self.n = space, listed, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.n = 0
        return self.of(self.observation_space), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n += 1
        return self.of(self.observation_space), 0.0, False, False, {}

    def of(self, space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self.of(child) for key, child in space.spaces.items()}
        array = np.full(space.shape, self.n, space.dtype)
        return array.tolist() if self.listed else array


@pytest.mark.parametrize(("high", "dtype"), [(255, np.uint8), (255, np.int32), (1, np.float32)])
@pytest.mark.parametrize(
    ("shape", "stacked"),
    [
        ((3, 32, 40), (6, 32, 40)),
        ((32, 40, 3), (32, 40, 6)),
        ((2, 3, 32, 40), (4, 3, 32, 40)),
        ((2, 32, 40, 3), (4, 32, 40, 3)),
    ],
)
def test_images_of_every_form_are_stacked_along_their_channels(
    shape: tuple[int, ...], stacked: Any, high: int, dtype: Any
) -> None:
    image, vector = spaces.Box(0, high, shape, dtype), spaces.Box(-1, 9, (2,), np.float32)
    env = preprocess(Counted(spaces.Dict({"image": image, "vector": vector})), EnvConfig(frame_stack=2))
    env.reset()
    observation = env.step(0)[0]
    assert env.observation_space.contains(observation)
    assert observation["image"].shape == stacked
    assert observation["vector"].shape == (2,)
    channels = observation_spec(env.observation_space)["image"].shape[0]
    seen = np.zeros((channels, 32, 40), np.uint8)
    next(leaf for leaf in leaves(env.observation_space) if leaf.name == "image").put_value(seen, observation["image"])
    assert seen[:, 0, 0].tolist() == [0] * (channels // 2) + [255 // high] * (channels // 2)


@pytest.mark.parametrize("shape", [(3, 32, 40), (32, 40, 3), (2, 32, 40)])
def test_images_of_every_form_are_resized(shape: tuple[int, ...]) -> None:
    """Shares from 0 to 1 too, which networks see as images."""
    for space in (spaces.Box(0, 255, shape, np.uint8), spaces.Box(0, 1, shape, np.float32)):
        env = preprocess(Counted(space), EnvConfig(resize=(16, 20)))
        assert observation_spec(env.observation_space)["obs"].shape == (min(shape), 16, 20)
        env.reset()
        assert (env.step(0)[0] == 255 // space.high.max()).all()


@pytest.mark.parametrize("options", [EnvConfig(resize=(16, 20)), EnvConfig(grayscale=True)])
def test_without_opencv_they_are_refused_with_what_to_install(options: EnvConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtra, match="not installed: pip install opencv-python-headless"):
        preprocess(Counted(spaces.Box(0, 255, (64, 80, 3), np.uint8)), options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((40, 32, 3), np.uint8), r"observation 'seen' has shape \(40, 32, 3\); its space declares \(32, 40, 3\)"),
        (np.zeros((32, 40, 3), np.int64), "observation 'seen' has dtype int64; its space declares uint8"),
    ],
    ids=["shape", "dtype"],
)
def test_what_is_resized_must_be_as_its_space_says(given: np.ndarray, message: str) -> None:
    class Other(Counted):
        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return {"seen": given}, 0.0, False, False, {}

    env = preprocess(Other(spaces.Dict({"seen": spaces.Box(0, 255, (32, 40, 3), np.uint8)})), EnvConfig(resize=(16, 16)))
    env.reset()
    with pytest.raises(BadObservation, match=message):
        env.step(0)


def test_the_action_mask_is_not_stacked() -> None:
    space = spaces.Dict({"obs": spaces.Box(-1, 9, (4,), np.float32), "action_mask": spaces.Box(0, 9, (3,), np.int8)})
    env = preprocess(Counted(space), EnvConfig(frame_stack=2))
    assert {name: array.shape for name, array in observation_spec(env.observation_space).items()} == {
        "action_mask": (3,),
        "obs": (8,),
    }


def test_images_that_are_all_deeper_are_not_left_unstacked() -> None:
    image, vector = spaces.Box(0, 255, (32, 40, 3), np.uint8), spaces.Box(-1, 9, (2,), np.float32)
    with pytest.raises(ValueError, match="does not see the image 'camera/left' inside of another Dict or Tuple: make it"):
        preprocess(Counted(spaces.Dict({"camera": spaces.Dict({"left": image}), "v": vector})), EnvConfig(frame_stack=2))


def test_vectors_may_be_lists() -> None:
    env = preprocess(Counted(spaces.Box(-1, 9, (2,), np.float32), listed=True), EnvConfig(frame_stack=2))
    env.reset()
    assert env.step(0)[0].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones(3, np.float32), r"observation 'seen' has shape \(3,\); its space declares \(4,\)"),
        (np.ones(1, np.float32), r"observation 'seen' has shape \(1,\)"),
        (np.ones(8, np.float32), r"observation 'seen' has shape \(8,\)"),
        (np.ones(4, np.complex64), "observation 'seen' has dtype complex64; its space declares float32"),
    ],
)
def test_what_is_stacked_must_be_as_its_space_says(given: np.ndarray, message: str) -> None:
    class Other(Counted):
        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return {"seen": given}, 0.0, False, False, {}

    env = preprocess(Other(spaces.Dict({"seen": spaces.Box(-1, 9, (4,), np.float32)})), EnvConfig(frame_stack=2))
    env.reset()
    with pytest.raises(BadObservation, match=message):
        env.step(0)


def test_a_picture_of_floats_is_not_stacked_as_bytes() -> None:
    class Other(Counted):
        def of(self, space: Any) -> Any:
            return np.full(space.shape, 0.5)

    env = preprocess(Other(spaces.Box(0, 255, (32, 40, 3), np.uint8)), EnvConfig(frame_stack=2))
    with pytest.raises(BadObservation, match="dtype float64; its space declares uint8"):
        env.reset()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_resizing_is_opencvs_bit_for_bit(channels: int) -> None:
    """Bilinear where both sides shrink by less than 2, of all sizes; the last row and column have no neighbour."""
    rng = np.random.default_rng(channels)
    for _ in range(60):
        size = tuple(rng.integers(1, 90, 2).tolist())
        shape = tuple(int(rng.integers(side, 2 * side)) for side in size)
        image = rng.integers(0, 256, (*shape, channels), np.uint8)
        expected = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR).reshape(*size, channels)
        np.testing.assert_array_equal(resize(image, size), expected)
        shrunk = np.zeros_like(expected)
        native.Bilinear(*image.shape, *size).shrink(image, shrunk)  # also where OpenCV is faster
        np.testing.assert_array_equal(shrunk, expected)
        planes = np.ascontiguousarray(image.transpose(2, 0, 1))
        np.testing.assert_array_equal(resize(planes.transpose(1, 2, 0), size), expected)
    apart = rng.integers(0, 256, (120, 320, channels), np.uint8)[:, ::2]
    expected = cv2.resize(apart, (128, 72), interpolation=cv2.INTER_LINEAR).reshape(72, 128, channels)
    np.testing.assert_array_equal(resize(apart, (72, 128)), expected)
