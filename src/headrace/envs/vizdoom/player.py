"""One player of Doom: converts actions to buttons, and the engine's state to observations and rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import vizdoom

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.contract import OBJECTIVE
from headrace.envs.core.wrappers import RESIZE_METHOD, resize
from headrace.envs.vizdoom.actions import AIM_CHOICES, AIM_DEGREES, FULL_BUTTONS, combine, heads_for
from headrace.envs.vizdoom.game import configured
from headrace.envs.vizdoom.shaping import Shaping, weights_of

FRAMESKIP = 4
SIZE = (72, 128)
MATCH_FRAMES = 8400  # 4 minutes: the default length of a match
ENTRY_FRAMES = 2
"""Frames of a network game before its episode begins. In the first, bots enter, maybe where the player stands, who then dies, and
the level's script sets everybody's health; in the second the dead are back."""

SCALES: dict[str, tuple[float, float]] = {
    "HEALTH": (30, np.inf),
    "ARMOR": (30, np.inf),
    "AMMO": (15, 5),
    "SELECTED_WEAPON_AMMO": (15, 5),
    "KILLCOUNT": (10, np.inf),
    "FRAGCOUNT": (10, np.inf),
    "DEATHCOUNT": (10, np.inf),
    "HITCOUNT": (10, np.inf),
    "DAMAGECOUNT": (100, np.inf),
    "DAMAGE_TAKEN": (100, np.inf),
    "PLAYER_COUNT": (5, np.inf),
    "POSITION": (1000, np.inf),
    "VELOCITY": (10, np.inf),
    "ANGLE": (360, np.inf),
}
"""Divisor and upper limit of game variables, by the longest matching prefix of their name; others are not scaled."""

FULL_VARIABLES = (
    *("SELECTED_WEAPON", "SELECTED_WEAPON_AMMO", "HEALTH", "ARMOR", "KILLCOUNT", "FRAGCOUNT", "ATTACK_READY", "PLAYER_COUNT"),
    *(f"WEAPON{slot}" for slot in range(8)),
    *(f"AMMO{slot}" for slot in range(8)),
)
"""The measurements of Petrenko et al. 2020 (Sample Factory): what the status bar and the score board show a human player. 24
numbers: the 23 of its published code, and the score, which the paper adds."""

_FULL: dict[str, Any] = {"buttons": "full", "variables": "full", "episode_timeout": MATCH_FRAMES}
_DUEL: dict[str, Any] = {
    "variables": ["HEALTH", "SELECTED_WEAPON_AMMO", "ATTACK_READY", "FRAGCOUNT"],
    "episode_timeout": MATCH_FRAMES // 4,
}
BASE: dict[str, dict[str, Any]] = {
    "cig": {"bots": 7, "shaping": "bots", **_FULL},
    "deathmatch_bots": {"bots": 7, "shaping": "bots", **_FULL},
    "duel_bots": {"bots": 1, "shaping": "bots", **_DUEL},
    "multi_duel": {"players": 2, "shaping": "self_play", **_DUEL},
    "multi_deathmatch": {"players": 4, "shaping": "self_play", **_FULL},
    "multi_cig": {"players": 4, "shaping": "self_play", **_FULL},
}
"""Default settings by name; `EnvConfig.kwargs` override them."""


@dataclass
class Settings:
    """Settings of a scenario: its defaults (`BASE`), overridden by `EnvConfig.kwargs`."""

    buttons: list[str] | str | None = None
    """Names of buttons, or "full" for the seven heads of `FULL_BUTTONS`. None: those of the configuration file."""
    variables: list[str] | str | None = None
    """Names of game variables to observe, or "full" for `FULL_VARIABLES`. None: those of the configuration file."""
    measurements: bool = True  # observe the game variables besides the picture
    aim_degrees: float = AIM_DEGREES  # largest angle (degrees per frame) of the aim head
    aim_choices: int = AIM_CHOICES  # angles of the aim head, an odd number
    shaping: dict[str, float] | str | None = None
    """Weights of reward shaping, or the name of a preset. None: the scenario's own rewards."""
    bots: int = 0  # scripted opponents (the engine's own bots) in the game
    bots_file: str | None = None  # file with the skills of the bots. None: bots.cfg of the vizdoom package.
    players: int = 1  # players, each with a game process. More than one: the environment is a `Match`.
    step_timeout: float = 10.0
    """Matches: seconds that a step of all players may take before the match is aborted and restarted."""
    start_timeout: float = 30.0  # matches: seconds that starting may take before it is tried again on another port
    game: dict[str, Any] = field(default_factory=dict)
    """All other `EnvConfig.kwargs`: settings of the configuration file."""

    @staticmethod
    def of(name: str, options: EnvConfig) -> Settings:
        """The settings of a scenario. Raises `ConfigError` for invalid values."""
        kwargs = BASE.get(name, {}) | options.kwargs
        own = {key: value for key, value in kwargs.items() if key in _NAMES}
        settings = Settings(**own, game={key: value for key, value in kwargs.items() if key not in _NAMES})
        if not 0 <= settings.bots <= 15 or not 1 <= settings.players <= 16 or settings.bots + settings.players > 16:
            raise ConfigError("Doom has 16 players at most, bots among them, and at least one that is no bot")
        if name in ("duel_bots", "multi_duel") and settings.bots + settings.players > 2:
            # the engine crashes where all places to start are taken and the level has no other start
            raise ConfigError(f"the level of vizdoom/{name} has room for two, bots among them")
        if settings.aim_choices < 3 or settings.aim_choices % 2 == 0:
            raise ConfigError(f"aim_choices must be an odd number of at least 3, not {settings.aim_choices}")
        return settings

    @property
    def bot_args(self) -> str:
        """Arguments about bots for the command line of the hosting engine."""
        return f"+viz_bots_path {self.bots_file}" if self.bots_file else ""


_NAMES = frozenset(Settings.__dataclass_fields__) - {"game"}


def _scale(variable: str) -> tuple[float, float, float]:
    """Divisor, lower and upper limit."""
    prefixes = [prefix for prefix in SCALES if variable.startswith(prefix)]
    divisor, highest = SCALES[max(prefixes, key=len)] if prefixes else (1.0, math.inf)
    # the engine takes a million from the health of a player in whose place another one appears
    return divisor, 0.0 if variable == "HEALTH" else -math.inf, highest


class Player:
    """One engine with its spaces, observations and rewards. The owner starts the engine (`headrace.envs.vizdoom.game`).

    Observation: uint8 [H, W, C], or a Dict of it as "obs" and "measurements" float32 [V].
    """

    def __init__(self, name: str, options: EnvConfig, settings: Settings) -> None:
        self.settings = settings
        self.frameskip = options.frameskip or FRAMESKIP
        self._size = options.resize or SIZE
        game = self.game = configured(name, settings.game, gray=bool(options.grayscale))
        if settings.buttons is not None:
            names = FULL_BUTTONS if settings.buttons == "full" else settings.buttons
            game.set_available_buttons([getattr(vizdoom.Button, button) for button in names])
        if settings.variables is not None:
            chosen = FULL_VARIABLES if settings.variables == "full" else settings.variables
            game.set_available_game_variables([getattr(vizdoom.GameVariable, variable) for variable in chosen])
        several = settings.players > 1 or settings.bots  # in their games nothing else ends an episode
        self.limit = game.get_episode_timeout() or (MATCH_FRAMES if several else 0)
        """Frames of an episode; 0: no limit. The owner counts them: the engine gives no picture after the end of an episode."""
        game.set_episode_timeout(0)
        buttons = [button.name for button in game.get_available_buttons()]
        self.heads = combine(heads_for(buttons, settings.aim_degrees, settings.aim_choices))
        self._presses: list[list[list[float]]] = [head.presses.tolist() for head in self.heads]
        discrete = [gymnasium.spaces.Discrete(len(head.presses)) for head in self.heads]
        self.action_space: gymnasium.Space[Any] = discrete[0] if len(discrete) == 1 else gymnasium.spaces.Tuple(discrete)
        observed = [variable.name for variable in game.get_available_game_variables()] if settings.measurements else []
        self._scales = [_scale(variable) for variable in observed]
        shape = (*self._size, 1 if options.grayscale else 3)
        image = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.observation_space: gymnasium.Space[Any] = image
        if observed:
            numbers = gymnasium.spaces.Box(-np.inf, np.inf, (len(observed),), np.float32)
            self.observation_space = gymnasium.spaces.Dict({"obs": image, "measurements": numbers})
        self.shaping = None if settings.shaping is None else Shaping(weights_of(settings.shaping))
        self.screen = np.zeros((120, 160, shape[-1]), np.uint8)  # uint8 [120, 160, C]: the last picture, before resizing
        self.observation: Any = None  # the last observation
        self._deaths = 0.0
        self._scenario_return = 0.0

    def presses(self, action: Any) -> list[float]:
        """The value of each button for an element of the action space."""
        choices = (action,) if len(self._presses) == 1 else action
        first, *others = (presses[choice] for presses, choice in zip(self._presses, choices, strict=True))
        return [sum(values) for values in zip(first, *others, strict=True)] if others else first

    def meanings(self, head: int) -> tuple[str, ...]:
        """What each choice of a head presses, a delta button with its degrees."""
        buttons = [button.name for button in self.game.get_available_buttons()]
        pressed = [
            [name if value == 1 else f"{name} {value:g}" for name, value in zip(buttons, row, strict=True) if value]
            for row in self.heads[head].presses.tolist()
        ]
        return tuple("+".join(names) or "nothing" for names in pressed)

    def preparation(self) -> list[dict[str, Any]]:
        """What `observe` does to the engine's state, for the contract of an exported policy; no limit is None."""
        variables = [variable.name for variable in self.game.get_available_game_variables()][: len(self._scales)]
        scaled = {"variables": variables} | {
            name: [x if math.isfinite(x) else None for x in column]
            for name, column in zip(("divisors", "low", "high"), zip(*self._scales, strict=True), strict=False)
        }
        return [
            {"step": "render", "height": 120, "width": 160, "grey": self.screen.shape[-1] == 1},
            {"step": "resize", "height": self._size[0], "width": self._size[1], "method": RESIZE_METHOD},
            *([{"step": "divide and clip the measurements", **scaled}] if variables else []),
        ]

    def value(self, variable: str) -> float:
        """A game variable, observed or not."""
        return self.game.get_game_variable(getattr(vizdoom.GameVariable, variable))

    def observe(self) -> Any:
        """The observation of the engine's state; the last one again after the end of the episode, when there is no state."""
        state: Any = self.game.get_state()
        if state is None:
            return self.observation
        screen = state.screen_buffer  # [C, H, W], or gray [H, W]
        self.screen = screen.transpose(1, 2, 0) if screen.ndim == 3 else screen[..., None]
        image = resize(self.screen, self._size)
        if self._scales:
            values = state.game_variables[: len(self._scales)].tolist()
            numbers = [min(max(x / d, low), high) for x, (d, low, high) in zip(values, self._scales, strict=True)]
            self.observation = {"obs": image, "measurements": np.array(numbers, np.float32)}
        else:
            self.observation = image
        return self.observation

    def step_frames(self, played: int) -> int:
        """Frames of a step that begins `played` frames after its episode: fewer than usual at the time limit."""
        return max(1, min(self.frameskip, self.limit - played)) if self.limit else self.frameskip

    def add_bots(self) -> None:
        """Replace the bots at the beginning of an episode. Only for the player that hosts the game."""
        if self.settings.bots:
            self.game.send_game_command("removebots")
            for _ in range(self.settings.bots):
                self.game.send_game_command("addbot")

    def begin(self) -> None:
        self._deaths, self._scenario_return = self.value("DEATHCOUNT"), 0.0
        if self.shaping is not None:
            self.shaping.begin(self.value)

    def score(self) -> dict[str, float]:
        """The episode's score, for its last info: "true_objective", by which population-based training may compare policies with
        different weights of shaping, is the frags against opponents, else the scenario's own return. Against opponents there are
        also "frags" and "deaths". (In a network game the engine does not reset its count of deaths between episodes.)"""
        if not self.settings.bots and self.settings.players == 1:
            return {OBJECTIVE: self._scenario_return}
        frags = self.value("FRAGCOUNT")
        return {"frags": frags, "deaths": self.value("DEATHCOUNT") - self._deaths, OBJECTIVE: frags}

    def reward(self, scenario: float, frames: int) -> float:
        """The reward of a step of `frames` frames; `scenario`: the scenario's own reward."""
        self._scenario_return += scenario
        return scenario if self.shaping is None else self.shaping.reward(scenario, self.value, frames)

    def set_shaping(self, weights: Mapping[str, float] | str) -> None:
        """Replace the weights of reward shaping, from the next step on. Raises `ConfigError` for unknown terms."""
        checked = weights_of(weights)
        if self.shaping is None:
            self.shaping = Shaping(checked)
            if self.game.is_running():
                self.shaping.begin(self.value)
        else:
            self.shaping.weights = checked

    def set_reward_weights(self, weights: Mapping[str, float]) -> None:
        """Replace these weights of reward shaping and keep the others. Raises what `set_shaping` raises."""
        self.set_shaping({**({} if self.shaping is None else self.shaping.weights), **weights})

    def render(self) -> np.ndarray:
        """The screen before resizing, three times as large: uint8 [360, 480, 3]."""
        return np.broadcast_to(self.screen, (*self.screen.shape[:2], 3)).repeat(3, axis=0).repeat(3, axis=1)
