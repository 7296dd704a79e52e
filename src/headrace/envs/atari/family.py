"""``atari/<game>``: Atari 2600 games under the two usual evaluation protocols.

                             dqn                                      ale-v5
    sticky actions           none                                     probability 0.25 in every frame
    an episode begins with   1 to 30 no-ops, then FIRE                nothing
    a picture shows          the brighter of the last two frames      the last frame
    a lost life              ends training episodes                   nothing

`dqn`: Mnih et al. 2015 (Nature 518), methods: frame skip 4, the maximum of two frames, 84x84 grey, stacks of 4, up to 30 no-ops,
training episodes that end with a life, rewards clipped to [-1, 1]. At least 1 no-op, and FIRE after the no-ops in games that have
it, follow OpenAI Baselines (`NoopResetEnv`, `FireResetEnv` in common/atari_wrappers.py), whose wrappers most published results
use. There FIRE is held for a step and followed by a step of action 2; here it is one frame.

`ale-v5`: the environment of ``gymnasium.make("ALE/<Game>-v5")`` in ale-py 0.12: sticky actions of Machado et al. 2018 (JAIR 61),
section 5, frame skip 4, the minimal action set, whole games. Its pictures are scaled to 84x84, made grey and stacked as in `dqn`.
The last frame of a step that ends an episode is ignored (see docs/atari.md).

Both: rewards clipped to [-1, 1] by default (`EnvConfig.reward_clip`), episodes of 108,000 frames at most (30 minutes of play at
60 frames per second; Mnih et al. and Machado et al. evaluate 5 minutes: `--envs.max-episode-steps 4500`), area averaging.

A life lost in training ends an episode, never the game: the game goes on with one NOOP step in the row between the two episodes.
Reported returns are of whole games and unclipped; evaluation has no life-loss episodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode, VectorEnv

from headrace.config import ConfigError, EnvConfig
from headrace.config.hardware import default_device
from headrace.envs.atari.training import TrainingEpisodes, TrainingStarts
from headrace.envs.core.contract import EnvGroup
from headrace.envs.core.family_interface import Family
from headrace.envs.core.spaces import PLAIN_KEY, observation_spec
from headrace.envs.core.wrappers import check_applied
from headrace.envs.groups.vector import VectorGroup
from headrace_atari import AtariVector

FRAMESKIP = 4
MAX_FRAMES = 108_000  # 30 minutes at 60 frames per second
TWO_PLAYERS_ONLY = frozenset({"combat", "joust", "maze_craze", "warlords"})
"""ROMs without a single-player mode: ALE ends the process when it loads them."""


def ids() -> list[str]:
    """The games, in ale-py's spelling."""
    return sorted(set(roms.get_all_rom_ids()) - TWO_PLAYERS_ONLY)


def vector_options(options: EnvConfig) -> dict[str, Any]:
    """The settings as keyword arguments of `AtariVector`, and except for `noop_min` of `ale_py.vector_env.AtariVectorEnv`.
    Rewards stay raw and a lost life does not end episodes: `VectorGroup` clips rewards, `TrainingEpisodes` ends episodes."""
    check_applied("atari", options, ["frameskip", "resize", "grayscale", "frame_stack", "max_episode_steps"])
    frameskip = options.kwargs.get("frameskip", options.frameskip or FRAMESKIP)
    height, width = options.resize or (84, 84)
    dqn = options.protocol == "dqn"
    frames = MAX_FRAMES if options.max_episode_steps is None else min(MAX_FRAMES, options.max_episode_steps * frameskip)
    # with the user's own noop_max, no-ops are ale-py's: 0 to noop_max - 1 frames, the first of which is FIRE
    noops = {"noop_min": 1, "noop_max": 30} if dqn and "noop_max" not in options.kwargs else {"noop_max": 0}
    return {
        "frameskip": frameskip, "img_height": height, "img_width": width, "grayscale": options.grayscale is not False,
        "stack_num": options.frame_stack or 4, "maxpool": dqn, "repeat_action_probability": 0.0 if dqn else 0.25,
        "full_action_space": False, **noops, "use_fire_reset": dqn, "max_num_frames_per_episode": frames,
        "episodic_life": False, "reward_clipping": False,
        **options.kwargs,
    }  # fmt: skip


def make_vector(name: str | Sequence[str], options: EnvConfig, num_envs: int, threads: int | None = None) -> VectorEnv:
    """A vector environment of emulators, on `threads` threads; None: on the caller's, which saves two wake-ups per step.

    With several names, emulator i plays game i modulo their number (native consoles only). Raises `ConfigError` for settings that
    ale-py does not support.
    """
    kwargs = vector_options(options) | {"autoreset_mode": AutoresetMode.NEXT_STEP}
    if options.atari_backend == "native":
        return AtariVector(name, num_envs, **{"num_threads": threads} | kwargs)
    if "noop_min" in kwargs:
        raise ConfigError(
            "ale-py's vector environment cannot begin episodes as the dqn protocol does, with 1 to 30 no-ops before FIRE: use "
            "--envs.atari-backend native or --envs.protocol ale-v5, or give both backends ale-py's own no-ops (0 to 29, the "
            """first of which is FIRE) with --envs.kwargs '{"noop_max": 30}'"""
        )
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    assert isinstance(name, str)
    return AtariVectorEnv(name, num_envs, **{"num_threads": threads or 1} | kwargs)


def make_group(
    name: str | Sequence[str],
    options: EnvConfig,
    num_envs: int,
    *,
    training: bool = True,
    threads: int | None = None,
    device: str | None = None,
) -> EnvGroup:
    """A group of emulators, in the memory of `device` if it is a GPU. With `training` and the `dqn` protocol, lost lives end
    episodes. With several names, environment i plays game i modulo their number. Raises `ConfigError` for what cannot be learned
    from."""
    life_loss = training and options.protocol == "dqn"
    env_id = f"atari/{name}" if isinstance(name, str) else ",".join(f"atari/{each}" for each in name)
    starts = TrainingStarts(options) if training and (options.random_start or options.start_states is not None) else None
    if starts is not None and options.atari_backend != "native":
        raise ConfigError("envs.random_start and envs.start_states need native consoles (envs.atari_backend native)")
    made = vector_options(options)  # with the user's kwargs, which go before the settings
    shown = made.get("obs_type") or ("gray" if made["grayscale"] else "rgb")
    if shown == "ram":
        raise ConfigError(f"{env_id}: envs.kwargs has obs_type 'ram', but training is on pictures; headrace.make_vec gives RAM")
    gpu = None
    if device not in (None, "cpu") and _on_a_gpu(options, shown == "gray"):
        consoles: Any = AtariVector(name, num_envs, **made, device=device)
        gpu = str(consoles.tensor_device)
    else:
        consoles = make_vector(name, options, num_envs, threads)
    # colours are the last dimension of the emulators' images but the first of the engine's, so colour images must be copied, as
    # must be what the engine sees as vectors
    space = consoles.single_observation_space
    written = observation_spec(space)[PLAIN_KEY]
    in_place = options.atari_backend == "native" and (written.shape, written.dtype) == (space.shape, space.dtype)
    counted, stack = replace(options, frameskip=made["frameskip"]), made["stack_num"]
    return VectorGroup(TrainingEpisodes(consoles, life_loss, starts), counted, env_id, FRAMESKIP, in_place, stack, gpu)


def agreement(names: Sequence[str], options: EnvConfig) -> dict[str, Any]:
    """Settings that give every game all 18 actions. The native core turns illegal actions of a game into NOOP; with ale-py,
    Skiing and Lost Luggage keep their 9."""
    return {"full_action_space": "all" if options.atari_backend == "native" else True}


def make_mixed_group(names: Sequence[str], options: EnvConfig, num_envs: int, **how: Any) -> EnvGroup | None:
    """Several games in one batch of the native core; None with ale-py, whose batches hold one game."""
    return make_group(names, options, num_envs, **how) if options.atari_backend == "native" else None


def _on_a_gpu(options: EnvConfig, gray: bool) -> bool:
    """Whether consoles can run on a GPU; `gray`: their pictures. If not, warns of the reason, except with ale-py."""
    if options.atari_backend != "native":
        return False
    why = ""
    if not gray:
        why = "colours are not written into trajectories there (envs.grayscale)"
    else:
        try:
            import cuda.core  # noqa: F401
        except ModuleNotFoundError:
            why = "that needs the package cuda-core: pip install 'headrace[cuda]'"
        except ImportError as error:
            why = f"the package cuda-core is installed but cannot be imported: {error}"
    if why:
        warnings.warn(f"Atari consoles are emulated by the CPU and not by the GPU: {why}", stacklevel=2)
    return not why


class AtariGame(gymnasium.Env[np.ndarray, Any]):
    """One native console with the observations of the vector environment and with `render`, for watching and videos.

    Observations uint8 [stack, H, W] (RGB: [stack, H, W, 3]); one step is `frameskip` frames; rewards are raw; info: `lives`.
    """

    def __init__(self, name: str, options: EnvConfig, render_mode: str | None = None) -> None:
        shown = render_mode if render_mode == "rgb_array" else None  # `make_env` refuses others with a message
        self._vector = AtariVector(name, 1, render_mode=shown, **{"num_threads": None} | vector_options(options))
        self.render_mode, self.metadata = render_mode, self._vector.metadata
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        observations, infos = self._vector.reset(seed=seed)
        return observations[0], {"lives": int(infos["lives"][0])}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = self._vector.step(np.array([action]))
        info = {"lives": int(infos["lives"][0])}
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The emulated screen, uint8 [210, 160, 3] (other heights in a few games)."""
        screens = self._vector.render()
        return None if screens is None else screens[0]

    def close(self) -> None:
        self._vector.close()


def defaults(name: str) -> dict[str, Any]:
    """PQN with a small network, which learned Pong and Battle Zone in fewer steps and minutes than PPO (docs/results.md). The
    other settings are of PPO, where PQN does not have its own: three epochs over small batches, which on a CPU learn in fewer
    minutes than one epoch over more experience.

    Without a GPU environments, policy and learner take turns in one process, each with all cores: on few cores that is faster
    than processes that share them. docs/performance-results.md has the measurements.

    Pong, as an introduction, has a goal at which training ends, and for the other algorithms few environments with long
    trajectories and a large learning rate that falls linearly.
    """
    settings: dict[str, Any] = {
        "envs.reward_clip": 1.0,
        "policy.encoder": "impala-shallow",
        "sampling.placement": "device" if default_device() == "cpu" else "served",
        "sampling.num_workers": 1, "sampling.envs_per_worker": 32, "sampling.rollout": 32,
        "learning.algorithm": "pqn", "learning.batch_size": 1024, "learning.num_epochs": 3, "learning.num_minibatches": 4,
        "learning.precision": "auto", "learning.learning_rate": 5e-4, "learning.entropy_coef": 0.005,
        "learning.max_grad_norm": 0.5, "learning.optimizer_eps": 1e-5,
    }  # fmt: skip
    if name == "pong":
        settings |= {
            "policy.hidden": 256, "sampling.envs_per_worker": 8, "sampling.rollout": 128,
            "learning.total_steps": 3_000_000,
            "learning.learning_rate": 1e-3, "learning.lr_schedule": "linear", "learning.entropy_coef": 0.01,
            "run.goal": 18.0,
        }  # fmt: skip
    return settings


FAMILY = Family(
    AtariGame,  # whichever backend is set
    defaults,
    ids,
    frameskip=FRAMESKIP,
    make_group=make_group,
    make_mixed_group=make_mixed_group,
    make_vector=make_vector,
    agreement=agreement,
)
