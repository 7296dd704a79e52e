"""The settings of `EnvConfig` that apply to every environment, as Gymnasium wrappers.

Images are those of `core.spaces` and may be entries of a Dict observation. Other entries, nested ones and the action mask
included, pass unchanged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache
from threading import get_ident
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import headrace._native.pixels as native
from headrace.config import ConfigError, EnvConfig
from headrace.config.errors import MissingExtra
from headrace.envs.core.actions import action_spec
from headrace.envs.core.contract import MASK_KEY
from headrace.envs.core.family_interface import Env
from headrace.envs.core.spaces import PLAIN_KEY, Leaf, has_image_shape, is_channels_last, is_image, leaves


def render_without_screen() -> None:
    """Let MuJoCo render through EGL, and pygame into memory, if there is no screen. Call it before MuJoCo is imported, which then
    chooses its renderer."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
        if not os.environ.get("WAYLAND_DISPLAY"):
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def preprocess(env: Env, options: EnvConfig) -> Env:
    """Apply frame skip, resizing, grey scale, frame stack and the step limit, in this order, as far as `options` ask for them."""
    if options.info_action_mask:
        env = InfoActionMask(env)
    if (options.frameskip or 1) > 1:
        env = FrameSkip(env, options.frameskip or 1)
    if options.resize is not None or options.grayscale:
        env = ImageTransform(env, options.resize, bool(options.grayscale))
    if (options.frame_stack or 1) > 1:
        env = FrameStack(env, options.frame_stack or 1)
    if options.max_episode_steps is not None:
        env = gymnasium.wrappers.TimeLimit(env, options.max_episode_steps)
    return env


APPLIED_TO_MATCHES = ("max_episode_steps", "info_action_mask", "resize", "grayscale", "frame_stack", "reward_weights")
"""Settings that `headrace.envs.groups.multi_agent` applies to matches, or refuses with its own advice."""


def check_applied(env_id: str, options: EnvConfig, applied: Collection[str]) -> None:
    """Raise `ConfigError` for settings of `preprocess` and weights of the reward that are asked for, and that nothing applies
    to this environment: frames and lengths would be counted as if they held. `applied`: the names of those that the
    environment's own code applies."""
    asked = {
        "frameskip": (options.frameskip or 1) > 1, "resize": options.resize is not None, "grayscale": bool(options.grayscale),
        "frame_stack": (options.frame_stack or 1) > 1, "info_action_mask": options.info_action_mask,
        "max_episode_steps": options.max_episode_steps is not None, "reward_weights": bool(options.reward_weights),
    }  # fmt: skip
    if ignored := [name for name, is_asked in asked.items() if is_asked and name not in applied]:
        settings = ", ".join(f"envs.{name}" for name in ignored)
        off = " ".join(f"--envs.{name.replace('_', '-')} {getattr(EnvConfig(), name)}" for name in ignored)
        raise ConfigError(
            f"{env_id}: {settings}: not applied to environments of this kind. Leave it out or, where a preset has set it, give "
            f"{off}; or apply it in the environment. A function that you register says by applies=[...] which settings it "
            "applies itself"
        )


RESIZE_METHOD = "bilinear if both sides shrink by less than 2, else area averaging"
"""What `resize` does, for the contract of an exported policy."""


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Scale a uint8 image [H, W, C] to `size` (height, width) by area averaging.

    If both sides shrink by less than 2, bilinear interpolation uses every pixel, too, and takes a fifth of the time: OpenCV's, or
    the same, bit for bit, in less than half of that. An image of planes, one behind the other in memory, becomes such a one.
    """
    height, width, channels = image.shape
    if (height, width) == size:
        return image
    mild = size[0] <= height < 2 * size[0] and size[1] <= width < 2 * size[1]
    if mild and image.dtype == np.uint8 and channels <= 4 and native.BILINEAR_IS_FAST:
        planes = image.transpose(2, 0, 1)
        if image.flags.c_contiguous:
            shrunk = np.empty((*size, channels), np.uint8)
            _bilinear(image.shape, size, get_ident()).shrink(image, shrunk)
            return shrunk
        if planes.flags.c_contiguous:
            shrunk = np.empty((channels, *size), np.uint8)
            _bilinear((height, width, 1), size, get_ident()).shrink(planes, shrunk, channels)
            return shrunk.transpose(1, 2, 0)
    if channels > 4 and not mild:  # OpenCV averages four at most
        return np.concatenate([resize(image[..., k : k + 4], size) for k in range(0, channels, 4)], axis=2)
    cv2 = _opencv()
    resized = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR if mild else cv2.INTER_AREA)
    return resized if resized.ndim == 3 else resized[..., None]


def _opencv() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise MissingExtra("images are changed by OpenCV, which is not installed: pip install opencv-python-headless") from error
    return cv2


@lru_cache(maxsize=64)
def _bilinear(shape: tuple[int, ...], size: tuple[int, int], thread: int) -> native.Bilinear:
    """For images of this shape, in one thread: it has memory of its own."""
    return native.Bilinear(*shape, *size)


class FrameSkip(gymnasium.Wrapper):
    """Repeat each action for `frames` frames, or until the episode ends, and add up the rewards."""

    def __init__(self, env: Env, frames: int) -> None:
        super().__init__(env)
        self.frames = frames
        if fps := (env.metadata or {}).get("render_fps"):
            self.metadata = {**env.metadata, "render_fps": fps / frames}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.frames):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class InfoActionMask(gymnasium.Wrapper):
    """Copy `info["action_mask"]`, one flag for each choice of the discrete actions, into the observation."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        choices = action_spec(env.action_space).mask_width
        space = env.observation_space
        children = dict(space.spaces) if isinstance(space, spaces.Dict) else {PLAIN_KEY: space}
        self._is_dict = isinstance(space, spaces.Dict)
        self.observation_space = spaces.Dict({**children, MASK_KEY: spaces.MultiBinary(choices)})

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        if "action_mask" not in info:
            raise ValueError(f'info_action_mask is set, but the info has no "action_mask": its keys are {sorted(info)}')
        mask = np.asarray(info["action_mask"], np.int8).reshape(-1)
        return {**(observation if self._is_dict else {PLAIN_KEY: observation}), MASK_KEY: mask}


def with_parts(env: Env, parts: dict[str, spaces.Box]) -> Any:
    """An environment's observation space with these parts, by key as in `chosen_parts`, in the place of its own."""
    space = env.observation_space
    return spaces.Dict({**space.spaces, **parts}) if isinstance(space, spaces.Dict) else parts[PLAIN_KEY]


def chosen_parts(env: Env, chosen: Callable[[spaces.Space[Any]], bool]) -> dict[str, spaces.Box]:
    """The chosen parts of an environment's observation by key; a plain observation has the key "obs"."""
    space = env.observation_space
    children = space.spaces if isinstance(space, spaces.Dict) else {PLAIN_KEY: space}
    return {key: child for key, child in children.items() if key != MASK_KEY and chosen(child)}  # type: ignore[misc]


class ImageTransform(gymnasium.ObservationWrapper):
    """Resize images to `size` (height, width) by area averaging, and turn RGB into one channel of luminance."""

    def __init__(self, env: Env, size: tuple[int, int] | None, grayscale: bool) -> None:
        super().__init__(env)
        self._size, self._grayscale = size, grayscale
        self._images = {key: replace(leaves(part)[0], name=key) for key, part in chosen_parts(env, is_image).items()}
        if not self._images:
            raise ValueError(f"{env}: resize and grayscale need an image; the observation is {env.observation_space}")
        channels = {leaf.spec.shape[0] for leaf in self._images.values()}
        if grayscale and not channels & {1, 3}:
            raise ValueError(f"{env}: grayscale needs an image of 3 channels, red, green and blue; there are {sorted(channels)}")
        self._ready = {key for key, leaf in self._images.items() if _is_ready(leaf.source)}
        """Keys of images that need not be converted before."""
        self.observation_space = with_parts(env, {key: self._space(key, leaf) for key, leaf in self._images.items()})

    def _space(self, key: str, leaf: Leaf) -> spaces.Box:
        return spaces.Box(0, 255, self._image(key, np.zeros(leaf.source.shape or (), leaf.source.dtype)).shape, np.uint8)

    def _image(self, key: str, image: Any) -> np.ndarray:
        leaf = self._images[key]
        declared = isinstance(image, np.ndarray) and (image.shape, image.dtype) == (leaf.source.shape, leaf.source.dtype)
        image = image if declared and key in self._ready else _pixels(leaf, image)  # which checks the others
        if self._grayscale and image.shape[2] == 3:
            cv2 = _opencv()
            image = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None]
        return image if self._size is None else resize(image, self._size)

    def observation(self, observation: Any) -> Any:
        if isinstance(observation, dict):
            return observation | {key: self._image(key, observation[key]) for key in self._images}
        return self._image(PLAIN_KEY, observation)


def _is_ready(space: Any) -> bool:
    """Whether images of this space are uint8 [H, W, C] from 0 to 255."""
    return space.dtype == np.uint8 and len(space.shape) == 3 and is_channels_last(space.shape) and space.high.max() == 255


def _pixels(leaf: Leaf, image: Any) -> np.ndarray:
    """An image of any form as uint8 [H, W, C], as networks see it."""
    channels_first = np.empty(leaf.spec.shape, np.uint8)
    leaf.put_value(channels_first, image)
    return np.ascontiguousarray(np.moveaxis(channels_first, 0, -1))


class FrameStack(gymnasium.Wrapper):
    """The last `depth` observations as one, oldest first; an episode starts with copies of its first one.

    Stacks the images of an observation along their channels, or the vectors, along the last axis, if there is no image. Raises
    `ValueError` where there is neither, and where all images are nested deeper.
    """

    def __init__(self, env: Env, depth: int) -> None:
        super().__init__(env)
        parts = chosen_parts(env, is_image)
        if not parts and (deeper := [leaf.name for leaf in leaves(env.observation_space) if is_image(leaf.source)]):
            raise ValueError(
                f"{env}: frame_stack does not see the image {deeper[0]!r} inside of another Dict or Tuple: make it an entry of "
                "the observation's Dict in a gymnasium.ObservationWrapper, or stack it there"
            )
        parts = parts or chosen_parts(env, lambda space: isinstance(space, spaces.Box) and len(space.shape) > 0)
        if not parts:
            raise ValueError(f"{env}: frame_stack needs images or vectors; the observation is {env.observation_space}")
        self._depth = depth
        self._leaves = {key: replace(leaves(part)[0], name=key) for key, part in parts.items()}
        self._axes = {key: _stacking_axis(part.shape) for key, part in parts.items()}
        stacked = {key: self._space(part, self._axes[key]) for key, part in parts.items()}
        self._stacks = {key: np.zeros(part.shape, part.dtype) for key, part in stacked.items()}
        self.observation_space = with_parts(env, stacked)

    def _space(self, space: spaces.Box, axis: int) -> spaces.Box:
        low, high = (bound[..., None] if bound.ndim == 2 else bound for bound in (space.low, space.high))
        repeat = [1] * low.ndim
        repeat[axis] = self._depth
        return spaces.Box(np.tile(low, repeat), np.tile(high, repeat), dtype=space.dtype)  # type: ignore[arg-type]

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        return self._push(observation, self._depth), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._push(observation, 1), reward, terminated, truncated, info

    def _push(self, observation: Any, times: int) -> Any:
        stacked = {}
        for key, stack in self._stacks.items():
            part = self._leaves[key].checked(observation[key] if isinstance(observation, dict) else observation)
            part = part[..., None] if part.ndim == 2 else part
            axis = self._axes[key]
            frames, newest = np.moveaxis(stack, axis, 0), np.moveaxis(part, axis, 0)  # views
            width = len(newest)
            for _ in range(times):
                frames[:-width] = frames[width:]
                frames[-width:] = newest
            stacked[key] = stack.copy()
        return observation | stacked if isinstance(observation, dict) else stacked[PLAIN_KEY]


def _stacking_axis(shape: tuple[int, ...]) -> int:
    """The axis along which observations of this shape are joined: the channels of an image, or the images of a stack."""
    if has_image_shape(shape) and len(shape) == 4:
        return 0
    return -3 if has_image_shape(shape) and len(shape) == 3 and not is_channels_last(shape) else -1
