"""The settings of `EnvConfig` that apply to every environment, as Gymnasium wrappers.

Images are uint8 H x W x C (or H x W) and may be entries of a Dict observation. Other entries, nested ones included, pass
unchanged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from headrace.config import EnvConfig
from headrace.envs.core.actions import action_spec
from headrace.envs.core.contract import MASK_KEY
from headrace.envs.core.family_interface import Env
from headrace.envs.core.spaces import PLAIN_KEY, SMALLEST_IMAGE


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


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Scale a uint8 image [H, W, C] to `size` (height, width) by area averaging.

    If both sides shrink by less than 2, bilinear interpolation uses every pixel, too, and takes a fifth of the time.
    """
    import cv2

    height, width = image.shape[:2]
    if (height, width) == size:
        return image
    mild = size[0] <= height < 2 * size[0] and size[1] <= width < 2 * size[1]
    resized = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR if mild else cv2.INTER_AREA)
    return resized if resized.ndim == 3 else resized[..., None]


class FrameSkip(gymnasium.Wrapper):
    """Repeat each action for `frames` frames, or until the episode ends, and add up the rewards."""

    def __init__(self, env: Env, frames: int) -> None:
        super().__init__(env)
        self.frames = frames

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


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether a space is an image: uint8, H x W or H x W x C, large enough for a convolutional encoder."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return False
    return min(space.shape[:2]) >= SMALLEST_IMAGE


def with_parts(env: Env, parts: dict[str, spaces.Box]) -> Any:
    """An environment's observation space with these parts, by key as in `chosen_parts`, in the place of its own."""
    space = env.observation_space
    return spaces.Dict({**space.spaces, **parts}) if isinstance(space, spaces.Dict) else parts[PLAIN_KEY]


def chosen_parts(env: Env, chosen: Callable[[spaces.Space[Any]], bool]) -> dict[str, spaces.Box]:
    """The chosen parts of an environment's observation by key; a plain observation has the key "obs"."""
    space = env.observation_space
    children = space.spaces if isinstance(space, spaces.Dict) else {PLAIN_KEY: space}
    return {key: child for key, child in children.items() if chosen(child)}  # type: ignore[misc]


class ImageTransform(gymnasium.ObservationWrapper):
    """Resize images to `size` (height, width) by area averaging, and turn RGB into one channel of luminance."""

    def __init__(self, env: Env, size: tuple[int, int] | None, grayscale: bool) -> None:
        super().__init__(env)
        self._size, self._grayscale = size, grayscale
        self._keys = chosen_parts(env, is_image)
        if not self._keys:
            raise ValueError(
                f"{env}: resize and grayscale need an image (uint8, H x W x C); the observation is {env.observation_space}"
            )
        self.observation_space = with_parts(env, {key: self._space(part) for key, part in self._keys.items()})

    def _space(self, space: spaces.Box) -> spaces.Box:
        return spaces.Box(0, 255, self._image(np.zeros(space.shape, np.uint8)).shape, np.uint8)

    def _image(self, image: np.ndarray) -> np.ndarray:
        import cv2

        if image.ndim == 2:
            image = image[..., None]
        elif self._grayscale and image.shape[2] == 3:
            image = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None]
        return image if self._size is None else resize(image, self._size)

    def observation(self, observation: Any) -> Any:
        if isinstance(observation, dict):
            return observation | {key: self._image(observation[key]) for key in self._keys}
        return self._image(observation)


class FrameStack(gymnasium.Wrapper):
    """The last `depth` observations as one, along the last axis, oldest first; an episode starts with copies of its first one.

    Stacks the images of an observation, or the vectors if there is no image. Raises `ValueError` where there is neither.
    """

    def __init__(self, env: Env, depth: int) -> None:
        super().__init__(env)
        parts = chosen_parts(env, is_image)
        parts = parts or chosen_parts(env, lambda space: isinstance(space, spaces.Box) and len(space.shape) > 0)
        if not parts:
            raise ValueError(f"{env}: frame_stack needs images or vectors; the observation is {env.observation_space}")
        self._depth = depth
        stacked = {key: self._space(part) for key, part in parts.items()}
        self._stacks = {key: np.zeros(part.shape, part.dtype) for key, part in stacked.items()}
        self.observation_space = with_parts(env, stacked)

    def _space(self, space: spaces.Box) -> spaces.Box:
        low, high = (bound[..., None] if bound.ndim == 2 else bound for bound in (space.low, space.high))
        repeat = (1,) * (low.ndim - 1) + (self._depth,)
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
            part = observation[key] if isinstance(observation, dict) else observation
            part = part[..., None] if part.ndim == 2 else part
            width = part.shape[-1]
            for _ in range(times):
                stack[..., :-width] = stack[..., width:]
                stack[..., -width:] = part
            stacked[key] = stack.copy()
        return observation | stacked if isinstance(observation, dict) else stacked[PLAIN_KEY]
