"""``dmlab/<level>``: levels of DeepMind Lab (Beattie et al. 2016, arXiv 1612.03801), by name (``dmlab/rooms_watermaze``) or by
path (``dmlab/contributed/dmlab30/rooms_watermaze``). The package `deepmind_lab` has to be built. This adapter has been tested
with a stand-in that has its documented interface (tests/envs/lab_stand_in.py), never with the package itself."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import deepmind_lab
import gymnasium
import numpy as np

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.family_interface import Env, Family
from headrace.envs.core.reference_scores import DMLAB_30
from headrace.envs.core.wrappers import preprocess
from headrace.envs.families.level_cache import LevelCache

FRAMESKIP, SIZE = 4, (72, 96)
PICTURE, INSTRUCTION = "RGB_INTERLEAVED", "INSTR"
FOLDER = "contributed/dmlab30/"  # the package's folder of the levels of DMLab-30
BUCKETS, MOST_WORDS = 1000, 16  # instructions: the hash of a word gives its bucket, 1 to 999; 0 means no word
WORDS = {
    "buckets": gymnasium.spaces.Box(0, BUCKETS - 1, (MOST_WORDS,), np.float32),  # of the words in their order
    "bag": gymnasium.spaces.Box(0, 1, (BUCKETS,), np.float32),  # 1 for each bucket that occurs
}
ACTIONS = {
    "impala": (
        (0, 0, 0, 1, 0), (0, 0, 0, -1, 0), (0, 0, -1, 0, 0), (0, 0, 1, 0, 0), (-20, 0, 0, 0, 0), (20, 0, 0, 0, 0),
        (-20, 0, 0, 1, 0), (20, 0, 0, 1, 0), (0, 0, 0, 0, 1),
    ),
    "extended": (
        (0, 0, 0, 1, 0), (0, 0, 0, -1, 0), (0, 0, -1, 0, 0), (0, 0, 1, 0, 0), (-10, 0, 0, 0, 0), (10, 0, 0, 0, 0),
        (-60, 0, 0, 0, 0), (60, 0, 0, 0, 0), (0, 10, 0, 0, 0), (0, -10, 0, 0, 0), (-10, 0, 0, 1, 0), (10, 0, 0, 1, 0),
        (-60, 0, 0, 1, 0), (60, 0, 0, 1, 0), (0, 0, 0, 0, 1),
    ),
}  # fmt: skip
"""Look right and look down (pixels per frame), strafe right, forward, fire; jump and crouch are never used. `impala`: table D.2
of Espeholt et al. 2018. `extended`: the 15 of the code of Petrenko et al. 2020 (Sample Factory), with small and large turns."""


def ids() -> list[str]:
    """The levels of DMLab-30 for training, then those for tests whose names differ. The package does not list other levels."""
    return [*(name.replace("_test", "_train") for name in DMLAB_30), *(name for name in DMLAB_30 if name.endswith("_test"))]


def knows(name: str) -> bool:
    """Whether the name is a valid path; only loading a level shows whether it exists."""
    return re.fullmatch(r"[\w./-]+", name) is not None


class LabEnv(gymnasium.Env):
    """One level.

    Observation: uint8 [H, W, 3]; with `instructions` a Dict of this image as "obs" and one of `WORDS` as "instruction". Rewards
    are raw, summed over frames. Episodes end with a termination. docs/environments.md explains the arguments.
    """

    def __init__(
        self, name: str, options: EnvConfig, render_mode: str | None = None, *, actions: str = "extended",
        instructions: Literal["buckets", "bag"] | None = None, level_cache: str | None = None, level_seeds: int | None = None,
        renderer: str = "software", config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if actions not in ACTIONS:
            raise ConfigError(f"dmlab: there are no actions {actions!r}; there are {', '.join(ACTIONS)}")
        if instructions not in (None, *WORDS):
            raise ConfigError(f"dmlab: instructions is {instructions!r}; it must be null, {' or '.join(WORDS)}")
        if level_seeds is not None and level_seeds < 1:
            raise ConfigError(f"dmlab: level_seeds is {level_seeds}; it must be at least 1")
        size, self._frameskip = options.resize or SIZE, options.frameskip or FRAMESKIP
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 60 / self._frameskip}
        self.render_mode, self._instructions, self._level_seeds, self._seed_offset = render_mode, instructions, level_seeds, 0
        self._actions = np.pad(np.array(ACTIONS[actions], np.intc), ((0, 0), (0, 2)))
        self.lab = deepmind_lab.Lab(
            FOLDER + name if name in ids() else name,
            [PICTURE, INSTRUCTION] if instructions else [PICTURE],
            config={key: str(value) for key, value in {"width": size[1], "height": size[0], **(config or {})}.items()},
            renderer=renderer,
            level_cache=None if level_cache is None else LevelCache(level_cache),
        )
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        image = gymnasium.spaces.Box(0, 255, (*size, 3), np.uint8)
        self.observation_space: gymnasium.Space[Any] = image
        if instructions:
            self.observation_space = gymnasium.spaces.Dict({"obs": image, "instruction": WORDS[instructions]})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None and self._level_seeds:  # training seeds are below 2**29, evaluation seeds are not
            self._seed_offset = (seed >> 29) * self._level_seeds
        self.lab.reset(seed=self._seed_offset + int(self.np_random.integers(self._level_seeds or 2**31 - 1)))
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(self.lab.step(self._actions[action], num_steps=self._frameskip))
        over = not self.lab.is_running()
        # After the end the package has no picture: the last one is repeated. A terminated episode is never bootstrapped.
        return self._last if over else self._observe(), reward, over, False, {}

    def _observe(self) -> Any:
        observations = self.lab.observations()
        self._last = self._picture = observations[PICTURE].copy()  # a copy: the package may reuse the memory
        if self._instructions:
            words = str(np.asarray(observations[INSTRUCTION]).item()).split()
            buckets = [1 + zlib.crc32(word.encode()) % (BUCKETS - 1) for word in words]
            in_order = (buckets + [0] * MOST_WORDS)[:MOST_WORDS]
            numbers = np.isin(np.arange(BUCKETS), buckets) if self._instructions == "bag" else in_order
            self._last = {"obs": self._picture, "instruction": np.array(numbers, np.float32)}
        return self._last

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The last picture, three times as large: uint8 [3 H, 3 W, 3]."""
        return self._picture.repeat(3, axis=0).repeat(3, axis=1) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.lab.close()


def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
    """One level with the settings applied; `options.kwargs` are those of `LabEnv`."""
    try:
        env = LabEnv(name, options, render_mode, **options.kwargs)
    except TypeError as error:
        raise ConfigError(f"dmlab/{name}: {error}") from error
    rest = EnvConfig(grayscale=options.grayscale, frame_stack=options.frame_stack, max_episode_steps=options.max_episode_steps)
    return preprocess(env, rest)


def defaults(name: str) -> dict[str, Any]:
    """The clipping of rewards, network, trajectories, learning rate and policy lag of Petrenko et al. 2020 (Sample Factory) for
    DMLab-30, in smaller batches; they have not been tried here."""
    return {
        "envs.reward_soft_clip": 5.0, "policy.encoder": "impala-resnet", "policy.core": "lstm", "policy.core_size": 256,
        "sampling.num_workers": 2, "sampling.envs_per_worker": 8, "sampling.rollout": 32, "learning.algorithm": "appo",
        "learning.batch_size": 512, "learning.precision": "auto", "learning.learning_rate": 1e-4, "learning.max_policy_lag": 35,
    }  # fmt: skip


FAMILY = Family(make, defaults, ids, knows, FRAMESKIP)
