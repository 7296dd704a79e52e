"""The options of `headrace.envs.atari.vector.AtariVector` that change an environment's behaviour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

import headrace._native.atari as native
from headrace.envs.atari.arguments import require

OBSERVATIONS = {
    "gray": native.ObservationType.GRAY,
    "rgb": native.ObservationType.RGB,
    "ram": native.ObservationType.RAM,
}
WIDTH = 160
"""Columns of a console's picture."""
RAM = 128
"""Bytes of a console's memory."""


@dataclass(frozen=True, kw_only=True)
class AtariOptions:
    """Names, meanings and defaults are those of `AtariVector`'s arguments."""

    max_num_frames_per_episode: int
    repeat_action_probability: float
    full_action_space: bool | Literal["all"]
    continuous: bool
    continuous_action_threshold: float
    autoreset_mode: AutoresetMode
    img_height: int | None
    img_width: int | None
    stack_num: int
    frameskip: int
    maxpool: bool
    noop_max: int
    noop_min: int | None
    episodic_life: bool
    life_loss_info: bool
    reward_clipping: bool
    use_fire_reset: bool
    obs_type: str
    mode: int | None
    difficulty: int
    sticky_stream: str

    @classmethod
    def from_arguments(cls, given: Mapping[str, Any]) -> AtariOptions:
        """The options among all arguments of `AtariVector`.

        Raises:
            ValueError: for an option out of its range; the message says which.
        """
        settled = {
            "obs_type": given["obs_type"] or ("gray" if given["grayscale"] else "rgb"),
            "autoreset_mode": AutoresetMode(given["autoreset_mode"]),
        }
        return cls(**{field.name: given[field.name] for field in fields(cls)} | settled)

    def __post_init__(self) -> None:
        low, high = self.noop_min, self.noop_max
        require(1 <= self.frameskip <= 255, f"frameskip is {self.frameskip}, must be in 1..255")
        require(1 <= self.stack_num <= 255, f"stack_num is {self.stack_num}, must be in 1..255")
        require(0 <= high < 2**31, f"noop_max is {high}, must not be negative")
        require(low is None or 0 <= low <= high, f"noop_min is {low}, must be in 0..noop_max ({high})")
        require(self.max_num_frames_per_episode >= 1, "max_num_frames_per_episode must be at least 1")
        require(0 <= self.repeat_action_probability < 1, "repeat_action_probability must be in [0, 1)")
        require(self.obs_type in OBSERVATIONS, f"obs_type is {self.obs_type!r}, must be one of {', '.join(OBSERVATIONS)}")
        require(self.sticky_stream in ("ale", "counter"), f"sticky_stream is {self.sticky_stream!r}, must be ale or counter")
        require(self.autoreset_mode != AutoresetMode.DISABLED, "autoreset_mode must be NEXT_STEP or SAME_STEP")
        require(0 <= self.difficulty <= 3, f"difficulty is {self.difficulty}, must be in 0..3")
        require(self.img_width is None or 1 <= self.img_width <= WIDTH, f"img_width must be in 1..{WIDTH}")

    def check_game(self, name: str, facts: Mapping[str, Any]) -> None:
        """Raise `ValueError` if this game of `games()` lacks the mode or the height."""
        require(self.mode is None or self.mode in facts["modes"], f"{name} has no mode {self.mode}, only {facts['modes']}")
        height = facts["height"]
        require(self.img_height is None or 1 <= self.img_height <= height, f"img_height must be in 1..{height}")

    def action_set(self, facts: Sequence[Mapping[str, Any]]) -> tuple[native.ActionChoice, tuple[int, ...]]:
        """The native core's choice of action set for these games together, and its actions."""
        sets = {tuple(fact["legal_actions" if self.full_action_space else "minimal_actions"]) for fact in facts}
        if len(sets) > 1 or self.continuous or self.full_action_space == "all":
            return native.ActionChoice.ALL, tuple(range(18))
        return native.ActionChoice.LEGAL if self.full_action_space else native.ActionChoice.MINIMAL, sets.pop()

    def step_options(self, actions: native.ActionChoice) -> native.StepOptions:
        """The options as the native core takes them."""
        options = native.StepOptions()
        options.mode = -1 if self.mode is None else self.mode
        options.difficulty = self.difficulty
        options.repeat_action_probability = self.repeat_action_probability
        options.exact_noise = self.sticky_stream == "ale"
        options.observation = OBSERVATIONS[self.obs_type]
        options.height, options.width = self.img_height or 0, self.img_width or 0
        options.stack, options.frameskip, options.maxpool = self.stack_num, self.frameskip, self.maxpool
        options.noop_max, options.noop_min = self.noop_max, -1 if self.noop_min is None else self.noop_min
        options.fire_reset = self.use_fire_reset
        options.episodic_life, options.life_loss_info = self.episodic_life, self.life_loss_info
        options.clip_rewards = self.reward_clipping
        options.same_step_autoreset = self.autoreset_mode == AutoresetMode.SAME_STEP
        options.actions = actions
        options.max_frames = self.max_num_frames_per_episode
        return options

    def observation_space(self, height: int) -> Box:
        """The space of one environment whose picture has `height` rows."""
        if self.obs_type == "ram":
            return Box(0, 255, (self.stack_num, RAM), np.uint8)
        colors = (3,) if self.obs_type == "rgb" else ()
        return Box(0, 255, (self.stack_num, self.img_height or height, self.img_width or WIDTH, *colors), np.uint8)

    def identity(self, actions: Sequence[int], shape: Sequence[int]) -> dict[str, Any]:
        """The options as JSON types; a saved state can only be loaded if they are equal. `actions`: the action set; `shape`: of
        an observation."""
        rows, columns = (None, None) if self.obs_type == "ram" else shape[1:3]
        options = asdict(self) | {
            "img_height": rows,
            "img_width": columns,
            "autoreset_mode": str(self.autoreset_mode.value),
            "full_action_space": list(actions),
        }
        return {name: value for name, value in options.items() if not name.startswith("continuous")}
