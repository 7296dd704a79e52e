"""``dmlab/<level>``: levels of DeepMind Lab (Beattie et al. 2016, arXiv 1612.03801), by name (``dmlab/rooms_watermaze``) or by
path (``dmlab/contributed/dmlab30/rooms_watermaze``, ``dmlab/demos/extra_entities``).

The package `deepmind_lab` is in no registry: it has to be built
(https://github.com/google-deepmind/lab/blob/master/docs/users/build.md). This adapter has been tested with a stand-in for it that
has its documented interface (tests/envs/lab_stand_in.py), never with the package itself.

One step is 4 frames. Pictures are RGB, rendered at 96x72 (`envs.resize`). Actions are the 15 of Petrenko et al. 2020 (Sample
Factory), or the 9 of Espeholt et al. 2018 (IMPALA). An episode ends in a state that has no future, as in both: the end of a level
is not known before, and there is no picture after it. Settings of `EnvConfig.kwargs`: the arguments of `LabEnv`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import deepmind_lab
import gymnasium
import numpy as np

from headrace.config import ConfigError, EnvConfig
from headrace.envs.wrappers import Env, preprocess

FRAMESKIP = 4
OBSERVATIONS = "images"
SIZE = (72, 96)
PICTURE, WORDS = "RGB_INTERLEAVED", "INSTR"

ACTIONS: dict[str, tuple[tuple[int, ...], ...]] = {
    "impala": (
        (0, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, -1, 0, 0, 0),
        (0, 0, -1, 0, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0),
        (-20, 0, 0, 0, 0, 0, 0),
        (20, 0, 0, 0, 0, 0, 0),
        (-20, 0, 0, 1, 0, 0, 0),
        (20, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, 0, 1, 0, 0),
    ),
    "extended": (
        (0, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, -1, 0, 0, 0),
        (0, 0, -1, 0, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0),
        (-10, 0, 0, 0, 0, 0, 0),
        (10, 0, 0, 0, 0, 0, 0),
        (-60, 0, 0, 0, 0, 0, 0),
        (60, 0, 0, 0, 0, 0, 0),
        (0, 10, 0, 0, 0, 0, 0),
        (0, -10, 0, 0, 0, 0, 0),
        (-10, 0, 0, 1, 0, 0, 0),
        (10, 0, 0, 1, 0, 0, 0),
        (-60, 0, 0, 1, 0, 0, 0),
        (60, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, 0, 1, 0, 0),
    ),
}
"""Look right and look down (pixels per frame), strafe right, forward, fire, jump, crouch. `impala`: table D.2 of Espeholt et al.
2018. `extended`: that of the code of Petrenko et al. 2020, with small and large turns and looking up and down."""

DMLAB_30 = (
    "rooms_collect_good_objects_train", "rooms_exploit_deferred_effects_train", "rooms_select_nonmatching_object",
    "rooms_watermaze", "rooms_keys_doors_puzzle", "language_select_described_object", "language_select_located_object",
    "language_execute_random_task", "language_answer_quantitative_question", "lasertag_one_opponent_small",
    "lasertag_three_opponents_small", "lasertag_one_opponent_large", "lasertag_three_opponents_large", "natlab_fixed_large_map",
    "natlab_varying_map_regrowth", "natlab_varying_map_randomized", "skymaze_irreversible_path_hard",
    "skymaze_irreversible_path_varied", "psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition",
    "psychlab_sequential_comparison", "psychlab_visual_search", "explore_object_locations_small",
    "explore_object_locations_large", "explore_obstructed_goals_small", "explore_obstructed_goals_large",
    "explore_goal_locations_small", "explore_goal_locations_large", "explore_object_rewards_few", "explore_object_rewards_many",
)  # fmt: skip
"""The training levels of the benchmark; two are tested on others, whose names end in `_test`."""
TESTED = ("rooms_collect_good_objects_test", "rooms_exploit_deferred_effects_test")
FOLDER = "contributed/dmlab30/"
"""Where the package has the levels of DMLab-30."""
BUCKETS, MOST_WORDS = 1000, 16
"""Words of an instruction: bucket 1 to 999 by their hash, 0 for none."""


def ids() -> list[str]:
    """The levels of DMLab-30. The package has others, which it does not list."""
    return [*DMLAB_30, *TESTED]


def knows(name: str) -> bool:
    """Whether it may be a level: the package says so only when it is asked to load it."""
    return re.fullmatch(r"[\w./-]+", name) is not None


class LevelCache:
    """Compiled levels in a folder, for `deepmind_lab.Lab(level_cache=...)`: compiling one can take seconds. Files are as the
    package wrote them, named by their keys, so that folders of others can be used; processes may share one."""

    def __init__(self, folder: os.PathLike[str] | str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        plain = re.fullmatch(r"[\w-][\w.-]{0,199}", key)
        return self.folder / (key if plain else sha256(key.encode()).hexdigest())

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the level with this key to `pk3_path`; False if there is none."""
        try:
            shutil.copyfile(self._path(key), pk3_path)
        except FileNotFoundError:
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Keep the level at `pk3_path`. Nobody ever finds half of it."""
        path = self._path(key)
        if path.exists():
            return
        descriptor, name = tempfile.mkstemp(dir=self.folder, prefix=".writing-")
        os.close(descriptor)
        try:
            shutil.copyfile(pk3_path, name)
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)


class LabEnv(gymnasium.Env):
    """One level.

    Observation: uint8 [H, W, 3]; with `instructions` a Dict of it as "obs" and "instruction": the words' buckets in order,
    float32 [16] from 0 to 999 ("buckets"), or which of them occur, float32 [1000] ("bag"). Rewards are raw, summed over the
    frames.

    Args:
        actions: a name in `ACTIONS`.
        instructions: "buckets" or "bag"; None: they are not observed.
        level_cache: folder of compiled levels. None: no cache, every episode of many levels is compiled anew.
        level_seeds: number of different seeds that episodes have; each is drawn at random, so that levels come again and a cache
            is of use. Evaluation has others than training, as many. None: no limit.
        renderer: "software" or "hardware".
        config: further settings of the package and of the level, such as {"datasetPath": ...}.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60 // FRAMESKIP}  # noqa: RUF012

    def __init__(
        self,
        name: str,
        size: tuple[int, int] = SIZE,
        frameskip: int = FRAMESKIP,
        render_mode: str | None = None,
        *,
        actions: str = "extended",
        instructions: Literal["buckets", "bag"] | None = None,
        level_cache: str | None = None,
        level_seeds: int | None = None,
        renderer: str = "software",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if actions not in ACTIONS:
            raise ConfigError(f"dmlab: there are no actions {actions!r}; there are {', '.join(ACTIONS)}")
        if instructions not in (None, "buckets", "bag"):
            raise ConfigError(f"dmlab: instructions is {instructions!r}; it must be null, buckets or bag")
        if level_seeds is not None and level_seeds < 1:
            raise ConfigError(f"dmlab: level_seeds is {level_seeds}; it must be at least 1")
        self.render_mode, self._frameskip, self._instructions = render_mode, frameskip, instructions
        self._actions = np.array(ACTIONS[actions], np.intc)
        self._level_seeds, self._seed_offset = level_seeds, 0
        settings = {"width": size[1], "height": size[0], **(config or {})}
        self.lab = deepmind_lab.Lab(
            name if "/" in name or name not in ids() else FOLDER + name,
            [PICTURE, WORDS] if instructions else [PICTURE],
            config={key: str(value) for key, value in settings.items()},
            renderer=renderer,
            level_cache=None if level_cache is None else LevelCache(level_cache),
        )
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        image = gymnasium.spaces.Box(0, 255, (*size, 3), np.uint8)
        self.observation_space: gymnasium.Space[Any] = image
        if instructions:
            words = MOST_WORDS if instructions == "buckets" else BUCKETS
            numbers = gymnasium.spaces.Box(0, BUCKETS - 1 if instructions == "buckets" else 1, (words,), np.float32)
            self.observation_space = gymnasium.spaces.Dict({"obs": image, "instruction": numbers})
        self._picture = np.zeros((*size, 3), np.uint8)
        self._last: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._level_seeds is None:
            level_seed = int(self.np_random.integers(2**31 - 1))
        else:
            if seed is not None:  # those of training are below 2**29, those of evaluations from there on
                self._seed_offset = (seed >> 29) * self._level_seeds
            level_seed = self._seed_offset + int(self.np_random.integers(self._level_seeds))
        self.lab.reset(seed=level_seed)
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(self.lab.step(self._actions[action], num_steps=self._frameskip))
        over = not self.lab.is_running()
        # there is no picture after the end; the one before it is given again, and is never bootstrapped from
        return self._last if over else self._observe(), reward, over, False, {}

    def _observe(self) -> Any:
        observations = self.lab.observations()
        self._picture = observations[PICTURE].copy()  # whose memory may be the package's
        self._last = self._picture
        if self._instructions:
            self._last = {"obs": self._picture, "instruction": self._words(observations[WORDS])}
        return self._last

    def _words(self, instruction: Any) -> np.ndarray:
        text = instruction if isinstance(instruction, str) else str(np.asarray(instruction).item())
        buckets = [1 + zlib.crc32(word.encode()) % (BUCKETS - 1) for word in text.split()]
        if self._instructions == "bag":
            bag = np.zeros(BUCKETS, np.float32)
            bag[buckets] = 1
            return bag
        row = np.zeros(MOST_WORDS, np.float32)
        row[: len(buckets[:MOST_WORDS])] = buckets[:MOST_WORDS]
        return row

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The last picture, three times as large: uint8 [3 H, 3 W, 3]."""
        return self._picture.repeat(3, axis=0).repeat(3, axis=1) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.lab.close()


def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
    """One level with the settings applied; `options.kwargs` are those of `LabEnv`."""
    try:
        env = LabEnv(name, options.resize or SIZE, options.frameskip or FRAMESKIP, render_mode, **options.kwargs)
    except TypeError as error:
        raise ConfigError(f"dmlab/{name}: {error}") from error
    rest = EnvConfig(grayscale=options.grayscale, frame_stack=options.frame_stack, max_episode_steps=options.max_episode_steps)
    return preprocess(env, rest)


def defaults(name: str) -> dict[str, Any]:
    """The clipping of rewards, network, trajectories, learning rate and policy lag of Petrenko et al. 2020 (Sample Factory) for
    DMLab-30, in smaller batches; nobody has tried them here."""
    return {
        "envs.reward_soft_clip": 5.0,
        "policy.encoder": "impala-resnet",
        "policy.core": "lstm",
        "policy.core_size": 256,
        "sampling.num_workers": 2,
        "sampling.envs_per_worker": 8,
        "sampling.rollout": 32,
        "learning.algorithm": "appo",
        "learning.batch_size": 512,
        "learning.learning_rate": 1e-4,
        "learning.max_policy_lag": 35,
        "learning.precision": "auto",
    }
