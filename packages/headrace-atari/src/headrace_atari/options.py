"""The options of an Atari environment and of its kernels on a GPU, with their defaults, meanings and ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

import headrace_atari._native.atari as native

OBSERVATIONS = {
    "gray": native.ObservationType.GRAY,
    "rgb": native.ObservationType.RGB,
    "ram": native.ObservationType.RAM,
}
WIDTH = 160
"""Columns of a console's picture."""
RAM = 128
"""Bytes of a console's memory."""
WARP = 32
"""Lanes of a GPU that run together."""
LARGEST = 2**31 - 1
"""The largest number that the native core takes."""
MOST_COMPILED = 4
"""Most games of a batch whose programs "auto" compiles."""


def require(condition: bool, message: str) -> None:
    """Raise `ValueError` with this message unless the condition holds."""
    if not condition:
        raise ValueError(message)


_KINDS: dict[Any, Any] = {int: (int, np.integer), float: (int, float, np.number)}
"""By annotation, the types that an argument may have. A bool is no number."""


def require_types(code: Any, **values: Any) -> None:
    """Raise `TypeError`, with the name, for a value of another type than the annotation in this class or function says."""
    hints = get_type_hints(code)
    for name, value in values.items():
        hint = getattr(hints[name], "type", hints[name])  # of an InitVar, that of what it holds
        if not _fits(value, hint):
            raise TypeError(f"{name} is {value!r:.60}, must be {hint.__name__ if isinstance(hint, type) else hint}")


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return any(_fits(value, option) for option in get_args(hint))
    return isinstance(value, _KINDS.get(hint, get_origin(hint) or hint)) and (hint is bool or not isinstance(value, bool))


@dataclass(kw_only=True)
class AtariOptions:
    """The keyword arguments of `AtariVector` that change an environment's behaviour: names and defaults of
    `ale_py.AtariVectorEnv`, and some more. Raises `ValueError` for an option out of its range, `TypeError` for one of another
    type; the message says which."""

    max_num_frames_per_episode: int = 108_000
    """Frames, resets not counted, after which an episode is truncated."""
    repeat_action_probability: float = 0.0
    """Probability, per frame, that the action of the frame before is repeated."""
    full_action_space: bool | Literal["all"] = False
    """The legal actions of ALE instead of those the game uses: all 18, or 9 in Skiing and Lost Luggage. "all", and several games
    with different sets, mean all 18; an action that is not legal in a game is NOOP there."""
    continuous: bool = False
    """Actions are (radius 0..1, angle in radians, fire 0..1) instead of indices."""
    continuous_action_threshold: float = 0.5
    """Beyond it, a component counts as a direction or as FIRE."""
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP
    """NEXT_STEP or SAME_STEP."""
    img_height: int | None = 84
    """Rows of an image, at most those of the game; None leaves them as they are."""
    img_width: int | None = 84
    """Columns of an image, at most 160; None leaves them as they are."""
    stack_num: int = 4
    """Images per observation, the newest last."""
    frameskip: int = 4
    """Frames per step."""
    maxpool: bool = True
    """Whether an image has the brighter pixels of the last two frames of the step."""
    noop_max: int = 30
    """Episodes begin with 0 to noop_max - 1 NOOP frames, of which FIRE replaces the first."""
    noop_min: int | None = None
    """Instead, episodes begin with noop_min to noop_max NOOP frames, and FIRE follows them."""
    episodic_life: bool = False
    """Whether losing a life ends the episode. The game is then reset too."""
    life_loss_info: bool = False
    """Whether losing a life is reported as a termination, while the episode goes on."""
    reward_clipping: bool = True
    """Whether the reward of a step is clipped to -1..1."""
    use_fire_reset: bool = True
    """Whether episodes begin with FIRE, in games that have it among their actions."""
    grayscale: InitVar[bool] = True
    """Gray images, else RGB. `obs_type` has precedence."""
    obs_type: str | None = None
    """"gray", "rgb" or "ram"."""
    mode: int | None = None
    """Game mode; None is the game's default."""
    difficulty: int = 0
    """Difficulty switches: bit 0 the left one, bit 1 the right one."""
    sticky_stream: str = "ale"
    """Random numbers that repeat actions: "ale" for the stream of the Arcade Learning Environment, "counter" for one of 24 bytes
    per console instead of 2.5 KB."""

    def __post_init__(self, grayscale: bool) -> None:
        require_types(AtariOptions, grayscale=grayscale, **vars(self))
        self.obs_type = self.obs_type or ("gray" if grayscale else "rgb")
        modes = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
        known = self.autoreset_mode in {*modes, *(mode.value for mode in modes)}
        require(known, "autoreset_mode must be NEXT_STEP or SAME_STEP")
        self.autoreset_mode = AutoresetMode(self.autoreset_mode)
        low, high = self.noop_min, self.noop_max
        require(1 <= self.frameskip <= 255, f"frameskip is {self.frameskip}, must be in 1..255")
        require(1 <= self.stack_num <= 255, f"stack_num is {self.stack_num}, must be in 1..255")
        require(0 <= high <= LARGEST, f"noop_max is {high}, must be in 0..{LARGEST}")
        require(low is None or 0 <= low <= high, f"noop_min is {low}, must be in 0..noop_max ({high})")
        limit = self.max_num_frames_per_episode
        require(1 <= limit <= LARGEST, f"max_num_frames_per_episode is {limit}, must be in 1..{LARGEST}")
        require(0 <= self.repeat_action_probability < 1, "repeat_action_probability must be in [0, 1)")
        require(self.obs_type in OBSERVATIONS, f"obs_type is {self.obs_type!r}, must be one of {', '.join(OBSERVATIONS)}")
        require(self.sticky_stream in ("ale", "counter"), f"sticky_stream is {self.sticky_stream!r}, must be ale or counter")
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
        options.observation = OBSERVATIONS[str(self.obs_type)]
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
            "autoreset_mode": AutoresetMode(self.autoreset_mode).value,
            "full_action_space": list(actions),
        }
        return {name: value for name, value in options.items() if not name.startswith("continuous")}


@dataclass(frozen=True)
class KernelOptions:
    """How consoles run on a GPU.

    `emulator` "blocks" compiles the games' programs, which takes a minute or two each at first use; "interpreter" runs all games
    with one kernel; "auto" is "blocks" for up to `MOST_COMPILED` games. `consoles_per_warp`, 1 to 32: with few consoles, fewer
    per warp are faster, because diverging lanes wait for each other; None chooses by the number of consoles. `threads` of a CUDA
    block: a multiple of 32 up to 128. `reconverge`: a warp always runs the program block of the console that is furthest behind;
    otherwise each lane runs its own.
    """

    emulator: Literal["auto", "blocks", "interpreter"] = "auto"
    consoles_per_warp: int | None = None
    threads: int = 64
    reconverge: bool = True

    def __post_init__(self) -> None:
        if self.emulator not in ("auto", "blocks", "interpreter"):
            raise ValueError(f"emulator is {self.emulator!r}, must be auto, blocks or interpreter")
        if self.consoles_per_warp is not None and not 1 <= self.consoles_per_warp <= WARP:
            raise ValueError(f"consoles_per_warp is {self.consoles_per_warp}, must be in 1..{WARP}")
        if not WARP <= self.threads <= 128 or self.threads % WARP:
            raise ValueError(f"threads is {self.threads}, must be 32, 64, 96 or 128")

    def compiles(self, games: int) -> bool:
        """Whether the programs of a batch with `games` games are compiled."""
        return self.emulator == "blocks" or (self.emulator == "auto" and games <= MOST_COMPILED)

    def per_warp(self, consoles: int) -> int:
        """Consoles per warp in a batch of `consoles`. An H100 runs 528 warps at a time, one on each of its schedulers. So up to
        1023 consoles get a warp each; more share warps. Not tuned on a GPU yet."""
        return self.consoles_per_warp or max(1, min(WARP, consoles // 512))
