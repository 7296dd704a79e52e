"""One Atari 2600 game as a `gymnasium.Env` with plain pictures, frame by frame equal to `gymnasium.make("ALE/<Game>-v5")`.

`AtariVector` steps many games with the usual preprocessing.
"""

from __future__ import annotations

import operator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import seeding

import headrace_atari._native.atari as native
from headrace_atari.actions import action_space, discrete_actions
from headrace_atari.options import LARGEST, require, require_types
from headrace_atari.roms import games, load_game

OBSERVATIONS = {"rgb": "rgb", "grayscale": "gray", "ram": "ram"}  # by name: the console's function


class AtariEnv(gymnasium.Env[np.ndarray, Any]):
    """Observations uint8: `[rows, 160, 3]` (rgb), `[rows, 160]` (grayscale) or `[128]` (ram), of the last frame of a step.
    Rewards are raw. Infos: `lives`, `frame_number`, `episode_frame_number`, and `seeds` after a seeded reset.

    `copy.deepcopy` and `pickle` copy it with its game, which goes on alike in the copy. After `close` every method raises
    `gymnasium.error.ClosedEnvironmentError`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012

    def __init__(
        self,
        game: str,
        *,
        mode: int | None = None,
        difficulty: int | None = None,
        obs_type: str = "rgb",
        frameskip: int | tuple[int, int] | list[int] = 4,
        repeat_action_probability: float = 0.25,
        full_action_space: bool = False,
        continuous: bool = False,
        continuous_action_threshold: float = 0.5,
        max_num_frames_per_episode: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """The arguments of `ale_py.env.AtariEnv`, without sound. Raises `ValueError` for an option out of its range, `TypeError`
        for one of another type, and what `rom_path` raises.

        Args:
            frameskip: Frames per step; (low, high): a random number from low to high - 1 for each step.
            max_num_frames_per_episode: Frames, those of the reset counted, after which an episode is truncated. None or 0: never.
        """
        require_types(AtariEnv.__init__, **{name: value for name, value in locals().items() if name != "self"})
        load_game(game)  # what is wrong with it is said first
        facts = games()[game]
        skips = frameskip if isinstance(frameskip, tuple | list) else (frameskip, frameskip + 1)
        whole = len(skips) == 2 and all(isinstance(frames, int | np.integer) for frames in skips)
        modes, levels = facts["modes"], facts["difficulties"]
        order = "must be positive, or (low, high) with 0 < low < high"
        require(whole and 1 <= skips[0] < skips[1], f"frameskip is {frameskip}, {order}")
        require(obs_type in OBSERVATIONS, f"obs_type is {obs_type!r}, must be one of {', '.join(OBSERVATIONS)}")
        require(mode is None or mode in modes, f"{game} has no mode {mode}, only {modes}")
        require(difficulty is None or difficulty in levels, f"{game} has no difficulty {difficulty}, only {levels}")
        sticky, limit = repeat_action_probability, max_num_frames_per_episode or 0
        require(0 <= sticky < 1, f"repeat_action_probability is {sticky}, must be in [0, 1)")
        require(0 <= limit <= LARGEST, f"max_num_frames_per_episode is {limit}, must be None or in 0..{LARGEST}")
        require(render_mode in (None, "rgb_array"), f"render_mode is {render_mode!r}, must be rgb_array or None")
        self.render_mode = render_mode
        self.metadata = type(self).metadata | {"render_fps": 60 // skips[0]}
        self._frames = tuple(skips)
        self._game, self._was_reset = game, False
        self._settings = -1 if mode is None else mode, difficulty or 0, sticky, True, limit
        self._native: native.Emulator | None = self._switched_on()
        self._threshold = continuous_action_threshold
        self._actions = facts["legal_actions" if full_action_space or continuous else "minimal_actions"]
        self.action_space: gymnasium.Space[Any] = action_space(continuous, len(self._actions))
        self._picture = OBSERVATIONS[obs_type]
        self.observation_space = Box(0, 255, self._observe().shape, np.uint8)
        self._seed(None)

    def _switched_on(self) -> native.Emulator:
        return native.Emulator(load_game(self._game), *self._settings)

    @property
    def _console(self) -> native.Emulator:
        if self._native is None:
            raise gymnasium.error.ClosedEnvironmentError("this AtariEnv was closed")
        return self._native

    def _observe(self) -> np.ndarray:
        return getattr(self._console, self._picture)()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_native": self._console.save()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._native = self._switched_on()
        self._native.restore(state["_native"])

    def close(self) -> None:
        self._native = None

    def get_action_meanings(self) -> list[str]:
        """The names of the actions, as ale-py's environment gives them."""
        import ale_py  # which may be missing where there are no games

        return [ale_py.Action(action).name for action in self._actions]

    def _seed(self, seed: int | None) -> tuple[int, int]:
        """Seed both generators, of random frame skips and of sticky actions, as ale-py does."""
        words = np.random.SeedSequence(seed).generate_state(n_words=2)
        self._np_random, _ = seeding.np_random(int(words[0]))
        self._console.load(int(words[1]))
        return words[0], words[1]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; with a seed, from power-on."""
        super().reset(seed=seed, options=options)
        seeds = None if seed is None else self._seed(seed)
        self._console.reset()
        self._was_reset = True
        return self._observe(), self._info() | ({} if seeds is None else {"seeds": seeds})

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat an action for the step's frames; after the end of an episode do nothing. Raises `ValueError` for an action
        outside the action space, `TypeError` where it is no integer, and `gymnasium.error.ResetNeeded` before the first reset."""
        chosen, strength = self._chosen(action)
        if not self._was_reset:
            raise gymnasium.error.ResetNeeded("call reset before the first step")
        least, most = self._frames
        frames = least if most == least + 1 else int(self.np_random.integers(least, most))
        console, reward = self._console, 0.0
        for _ in range(frames):
            reward += console.act(chosen, strength)
        return self._observe(), reward, console.game_over, console.truncated, self._info()

    def _chosen(self, action: Any) -> tuple[int, float]:
        """The console's action, 0 to 17, and its strength."""
        if isinstance(self.action_space, Box):
            given = np.asarray(action, np.float32)
            require(given.shape == (3,), f"the action has shape {given.shape}, expected (3,)")
            ids, strengths = discrete_actions(given[None], self._threshold)
            return int(ids[0]), float(strengths[0])
        try:
            index = operator.index(action)
        except TypeError:
            raise TypeError(f"the action is {action!r:.60}, must be an integer") from None
        require(0 <= index < len(self._actions), f"action {index} is not in 0..{len(self._actions) - 1}")
        return self._actions[index], 1.0

    def _info(self) -> dict[str, Any]:
        console = self._console
        return {
            "lives": console.lives,
            "episode_frame_number": console.episode_frame_number,
            "frame_number": console.frame_number,
        }

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The screen, uint8 `[rows, 160, 3]`; None without a render mode."""
        return None if self.render_mode is None else self._console.rgb()
