"""``vizdoom/<scenario>``: the single-player scenarios of the vizdoom package, or ``vizdoom/path/to/your.cfg``.

One step is 4 frames (tics); images are rendered at 160x120 and resized to 72 rows of 128; where the scenario has game variables
they are the second observation "measurements". Actions: one choice among all useful combinations of buttons if there are few,
else several independent choices (`vizdoom_actions`). Rewards are the scenario's own.

`EnvConfig.kwargs`: ``buttons`` (list of names, or "full" for the seven heads of `FULL_BUTTONS`), ``variables`` (list of names),
``measurements`` (False: images only); everything else is a setting of the configuration file, e.g. ``doom_skill``.

An episode that reaches its time limit is truncated, and its last observation is the true last one: the limit is counted here
and not by the Doom engine, which gives no image after the end of an episode.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import vizdoom

from headrace.config import ConfigError, EnvConfig
from headrace.envs.vizdoom_actions import FULL_BUTTONS, combine, heads_for
from headrace.envs.wrappers import Env, preprocess, resize

FRAMESKIP = 4
OBSERVATIONS = "images"
SIZE = (72, 128)
NOT_SINGLE_PLAYER = frozenset({"cig", "multi", "multi_duel"})
NEEDS_OTHER_FILES = frozenset({"doom", "doom2", "oblige"})
"""Scenarios whose levels are not in the package."""

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
"""Divisor and upper limit of game variables by the longest prefix of their name; others are left as they are."""


def ids() -> list[str]:
    """The single-player scenarios whose files are all in the package."""
    shipped = {path.stem for path in Path(vizdoom.scenarios_path).glob("*.cfg")}
    return sorted(shipped - NOT_SINGLE_PLAYER - NEEDS_OTHER_FILES)


def knows(name: str) -> bool:
    """Whether it is a scenario, or an existing .cfg file."""
    return name in ids() or (name.endswith(".cfg") and Path(name).is_file())


class VizdoomEnv(gymnasium.Env):
    """One Doom engine, a process of its own, started at the first reset.

    Observation: uint8 [H, W, C], or a Dict of it as "obs" and "measurements" float32 [V]. Reward: raw, summed over the frames.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 35 // FRAMESKIP}  # noqa: RUF012

    def __init__(self, name: str, options: EnvConfig, render_mode: str | None = None) -> None:
        settings = dict(options.kwargs)
        buttons, variables = settings.pop("buttons", None), settings.pop("variables", None)
        measurements = settings.pop("measurements", True)
        self.render_mode = render_mode
        self._frameskip = options.frameskip or FRAMESKIP
        self._size = options.resize or SIZE
        self.game = _configured(name, settings, gray=bool(options.grayscale))
        if buttons is not None:
            names = FULL_BUTTONS if buttons == "full" else buttons
            self.game.set_available_buttons([getattr(vizdoom.Button, button) for button in names])
        if variables is not None:
            self.game.set_available_game_variables([getattr(vizdoom.GameVariable, variable) for variable in variables])
        self._limit = self.game.get_episode_timeout()
        self.game.set_episode_timeout(0)
        self.heads = combine(heads_for([button.name for button in self.game.get_available_buttons()]))
        counts = [len(head.presses) for head in self.heads]
        discrete = [gymnasium.spaces.Discrete(count) for count in counts]
        self.action_space = discrete[0] if len(discrete) == 1 else gymnasium.spaces.Tuple(discrete)
        scales = [_scale(variable.name) for variable in self.game.get_available_game_variables()] if measurements else []
        self._divisor, self._highest = np.array(scales, np.float64).reshape(-1, 2).T
        shape = (*self._size, 1 if options.grayscale else 3)
        image = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = image
        if scales:
            numbers = gymnasium.spaces.Box(-np.inf, np.inf, (len(scales),), np.float32)
            self.observation_space = gymnasium.spaces.Dict({"obs": image, "measurements": numbers})
        self._started = 0
        self._screen = np.zeros((120, 160, shape[-1]), np.uint8)
        self._observation: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.game.set_seed(int(self.np_random.integers(2**31)))
        if self.game.is_running():
            self.game.new_episode()
        else:
            _guard(self.game)
            self.game.init()
        self._started = self.game.get_episode_time()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        choices = (action,) if len(self.heads) == 1 else action
        presses = sum(head.presses[choice] for head, choice in zip(self.heads, choices, strict=True))
        frames = self._frameskip
        if self._limit:
            frames = max(1, min(frames, self._limit - self.game.get_episode_time() + self._started))
        reward = self.game.make_action(presses.tolist(), frames)  # type: ignore[union-attr]
        terminated = self.game.is_episode_finished()
        truncated = not terminated and 0 < self._limit <= self.game.get_episode_time() - self._started
        # after a termination there is no image; the one before it is given again, and is never bootstrapped from
        return self._observation if terminated else self._observe(), reward, terminated, truncated, {}

    def _observe(self) -> Any:
        state: Any = self.game.get_state()
        screen = state.screen_buffer
        self._screen = screen if screen.ndim == 3 else screen[..., None]
        image = resize(self._screen, self._size)
        if len(self._divisor):
            numbers = np.minimum(state.game_variables[: len(self._divisor)] / self._divisor, self._highest)
            self._observation = {"obs": image, "measurements": numbers.astype(np.float32)}
        else:
            self._observation = image
        return self._observation

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The screen before resizing, three times as large: uint8 [360, 480, 3]."""
        if self.render_mode != "rgb_array":
            return None
        return np.broadcast_to(self._screen, (*self._screen.shape[:2], 3)).repeat(3, axis=0).repeat(3, axis=1)

    def close(self) -> None:
        self.game.close()


def _configured(name: str, settings: dict[str, Any], gray: bool) -> vizdoom.DoomGame:
    """A game with the scenario's settings, then the user's, then what this module relies on."""
    game = vizdoom.DoomGame()
    path = Path(name) if name.endswith(".cfg") else Path(vizdoom.scenarios_path) / f"{name}.cfg"
    game.load_config(str(path.resolve()))
    if settings:
        game.set_config(settings)
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    game.set_screen_format(vizdoom.ScreenFormat.GRAY8 if gray else vizdoom.ScreenFormat.RGB24)
    for switch_off in (
        game.set_depth_buffer_enabled,
        game.set_labels_buffer_enabled,
        game.set_automap_buffer_enabled,
        game.set_audio_buffer_enabled,
        game.set_objects_info_enabled,
        game.set_sectors_info_enabled,
    ):
        switch_off(False)
    return game


def _scale(variable: str) -> tuple[float, float]:
    prefixes = [prefix for prefix in SCALES if variable.startswith(prefix)]
    return SCALES[max(prefixes, key=len)] if prefixes else (1.0, np.inf)


def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
    """One Doom engine with the settings applied; raises `ConfigError` for files and settings that Doom refuses."""
    try:
        env = VizdoomEnv(name, options, render_mode)
    except (vizdoom.FileDoesNotExistException, vizdoom.ViZDoomErrorException, AttributeError) as error:
        raise ConfigError(f"vizdoom/{name}: {error}") from error
    rest = EnvConfig(frame_stack=options.frame_stack, max_episode_steps=options.max_episode_steps)
    return preprocess(env, rest)


def defaults(name: str) -> dict[str, Any]:
    """Small batches and two epochs, for tasks of some hundred thousand steps on a CPU. Rewards of the package's scenarios are
    scaled to the order of one; what those of a user's own .cfg are like is not known, so they stay as they are.

    The published settings (Sample Factory, Table A.5: GRU of 512, batches of 2048, one pass, learning rate 1e-4) are for billions
    of frames: `--policy.core gru --learning.batch-size 2048 --learning.num-epochs 1 --learning.learning-rate 1e-4`.
    """
    scale = {"my_way_home": 1.0, "defend_the_center": 1.0, "defend_the_line": 1.0, "predict_position": 1.0, "deathmatch": 1.0}
    return {
        "envs.reward_scale": 1.0 if name.endswith(".cfg") else scale.get(name, 0.01),
        "policy.encoder": "vizdoom-simple",
        "policy.activation": "elu",
        "sampling.num_workers": 2,
        "sampling.envs_per_worker": 8,
        "sampling.rollout": 32,
        "learning.batch_size": 512,
        "learning.num_minibatches": 2,
        "learning.num_epochs": 2,
        "learning.algorithm": "ppo",
        "learning.precision": "auto",
        "learning.learning_rate": 3e-4,
        "learning.max_grad_norm": 1.0,
    }


# -- nothing is left behind ---------------------------------------------------------------------------------------------

_REAPER = """
read -r _
for file in $(grep -laF "$0/" /proc/[0-9]*/cmdline); do
    instance=$(tr '\\0' '\\n' <"$file" | sed -n '/^+viz_instance_id$/{n;p;}')
    [ -n "$instance" ] || continue
    pid=${file#/proc/}
    kill -9 "${pid%/cmdline}"
    rm -f "/dev/shm/ViZDoomSM$instance" "/dev/shm/ViZDoomMQCtr$instance" "/dev/shm/ViZDoomMQDoom$instance"
done
rm -rf "$0"
"""
"""Waits until its input is closed, which is when this process has ended in whatever way; then kills the Doom engines that were
started with our folder, and removes the folder and their shared memory."""


@cache
def _process_folder(pid: int) -> Path:
    """A folder for the Doom engines of this process, and a watcher that removes both when this process has ended."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-vizdoom-"))
    _watchers.append(
        subprocess.Popen(
            ["sh", "-c", _REAPER, str(folder)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    )
    return folder


_watchers: list[subprocess.Popen[bytes]] = []
"""Referenced, so that their input stays open as long as this process runs."""


def _guard(game: vizdoom.DoomGame) -> None:
    """Have the engine started in this process's folder, under its watcher. (Forked processes have folders of their own.)"""
    folder = _process_folder(os.getpid())
    os.environ["HEADRACE_VIZDOOM_FOLDER"] = str(folder)
    os.environ["HEADRACE_VIZDOOM_ENGINE"] = str(Path(vizdoom.__file__).parent / "vizdoom")
    game.set_vizdoom_path(str(Path(__file__).with_name("vizdoom_engine.sh")))
    game.set_doom_config_path(str(folder / f"settings-{id(game)}.ini"))
