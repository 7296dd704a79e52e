"""``vizdoom/<scenario>``: the scenarios of the vizdoom package, for one player, with bots, or for several; ``vizdoom/your.cfg``.

One step is 4 frames (tics). Images are rendered at 160x120 and resized to 72 rows of 128. The scenario's game variables, if any,
are a second observation, "measurements". Actions: one choice among all useful combinations of buttons if there are few, else
several independent choices (`actions`). Rewards are the scenario's own, or shaped (`shaping`).

`EnvConfig.kwargs`: the fields of `player.Settings`; everything else is a setting of the configuration file, e.g. ``doom_skill``.

An episode that reaches its time limit is truncated. Its last observation is available, because this package counts the limit: the
Doom engine gives no image after the end of an episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import vizdoom

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.family_interface import Env, Family
from headrace.envs.core.wrappers import preprocess
from headrace.envs.vizdoom.env import VizdoomEnv
from headrace.envs.vizdoom.game import FILES
from headrace.envs.vizdoom.match import Match
from headrace.envs.vizdoom.player import BASE, FRAMESKIP, Player, Settings
from headrace.envs.vizdoom.shaping import PRESETS

NEEDS_OTHER_FILES = frozenset({"doom", "doom2", "oblige"})  # scenarios whose levels are not in the package


def ids() -> list[str]:
    """The scenarios with all files in the package."""
    shipped = {path.stem for path in Path(vizdoom.scenarios_path).glob("*.cfg")}
    return sorted((shipped - NEEDS_OTHER_FILES - set(FILES.values())) | set(BASE))


def knows(name: str) -> bool:
    """Whether it is a scenario, or an existing .cfg file."""
    return name in ids() or (name.endswith(".cfg") and Path(name).is_file())


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """Turn the errors of Doom that settings cause into `ConfigError`."""
    try:
        yield
    except (vizdoom.FileDoesNotExistException, vizdoom.ViZDoomErrorException, AttributeError) as error:
        raise ConfigError(f"vizdoom/{name}: {error}") from error


def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
    """One Doom engine with the settings applied; raises `ConfigError` for files and settings that Doom refuses."""
    if Settings.of(name, options).players > 1:
        raise ConfigError(f"vizdoom/{name} is a match of several players; there is no single player's environment to make")
    with _refused(name):
        env = VizdoomEnv(name, options, render_mode)
    return preprocess(env, EnvConfig(frame_stack=options.frame_stack, max_episode_steps=options.max_episode_steps))


def make_parallel(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Match | None:
    """A match; None if the settings have one player. Raises what `make` raises."""
    if Settings.of(name, options).players == 1:
        return None
    with _refused(name):
        return Match(name, options, render_mode)


def agreement(names: Sequence[str], options: EnvConfig) -> dict[str, Any]:
    """Settings that give each scenario the buttons and the game variables of all of them."""
    buttons: dict[str, None] = {}
    variables: dict[str, None] = {}
    for name in names:
        game = Player(name, options, Settings.of(name, options)).game
        buttons |= dict.fromkeys(button.name for button in game.get_available_buttons())
        variables |= dict.fromkeys(variable.name for variable in game.get_available_game_variables())
    return {"buttons": list(buttons), "variables": list(variables)}


def defaults(name: str) -> dict[str, Any]:
    """Small batches and two epochs, for tasks of some hundred thousand steps on a CPU. Rewards of the package's scenarios are
    scaled to the order of one; those of a user's own .cfg, whose scale is unknown, are not scaled.

    The published settings (Sample Factory, Table A.5: GRU of 512, batches of 2048, one pass, learning rate 1e-4) are for billions
    of frames: `--policy.encoder vizdoom-full --policy.core gru --learning.batch-size 2048 --learning.num-epochs 1
    --learning.learning-rate 1e-4`.
    """
    scale = {"my_way_home": 1.0, "defend_the_center": 1.0, "defend_the_line": 1.0, "predict_position": 1.0, "deathmatch": 1.0}
    shaped = {"envs.kwargs": {"shaping": PRESETS[BASE[name]["shaping"]]}} if name in BASE else {}
    return {
        "envs.reward_scale": 1.0 if name.endswith(".cfg") or name in BASE else scale.get(name, 0.01),
        **shaped,
        "policy.encoder": "vizdoom-full" if name in BASE else "vizdoom-simple", "policy.activation": "elu",
        "sampling.num_workers": 2, "sampling.envs_per_worker": 8, "sampling.rollout": 32,
        "learning.algorithm": "ppo", "learning.batch_size": 512, "learning.num_epochs": 2, "learning.num_minibatches": 2,
        "learning.precision": "auto", "learning.learning_rate": 3e-4, "learning.max_grad_norm": 1.0,
    }  # fmt: skip


FAMILY = Family(make, defaults, ids, knows, FRAMESKIP, make_parallel=make_parallel, agreement=agreement)
