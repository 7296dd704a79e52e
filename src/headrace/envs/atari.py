"""``atari/<game>``: Atari 2600 games under the two usual evaluation protocols.

                             dqn                                      ale-v5
    sticky actions           none                                     probability 0.25 in every frame
    an episode begins with   1 to 30 no-ops, then FIRE                nothing
    a picture shows          the brighter of the last two frames      the last frame
    a lost life              ends training episodes                   nothing

`dqn`: Mnih et al. 2015 (Nature 518), methods: frame skip 4, the maximum of two frames, 84x84 grey, 4 of them stacked, up to 30
no-ops, episodes that end with a life when training, rewards clipped to [-1, 1]. From 1 no-op on, and FIRE after them in games
that have it, are of OpenAI Baselines (`NoopResetEnv`, `FireResetEnv` in common/atari_wrappers.py), whose wrappers most published
results use. There FIRE is held for a step and followed by a step of action 2; here it is one frame.

`ale-v5`: what ``gymnasium.make("ALE/<Game>-v5")`` of ale-py 0.12 makes: sticky actions of Machado et al. 2018 (JAIR 61),
section 5, frame skip 4, the minimal action set, whole games. Its pictures are then made 84x84 and grey and stacked as under
`dqn`. Of a step that ends an episode the last frame is not looked at (see docs/atari.md).

Both: rewards clipped to [-1, 1] by default (`EnvConfig.reward_clip`), episodes of 108,000 frames at most (30 minutes of play at
60 frames per second; Mnih et al. and Machado et al. evaluate 5 minutes: `--envs.max-episode-steps 4500`), area averaging.

A life lost in training ends an episode, never the game: the game goes on with one NOOP step in the row between the two episodes.
Reported returns are of whole games and unclipped; evaluation has no life-loss episodes.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import ale_py
import gymnasium
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from headrace.config import ConfigError, EnvConfig
from headrace.config.machine import default_device
from headrace.envs.atari_starts import TrainingStarts
from headrace.envs.contract import EnvGroup
from headrace.envs.group import LIFE_LOST
from headrace.envs.vector_group import vector_group
from headrace.envs.wrappers import Env

FRAMESKIP = 4
OBSERVATIONS = "images"
MAX_FRAMES = 108_000
"""30 minutes at 60 frames per second."""
TWO_PLAYERS_ONLY = frozenset({"combat", "joust", "maze_craze", "warlords"})
"""ROMs that have no single-player settings: ALE ends the process when it loads them."""


def ids() -> list[str]:
    """The games, in ale-py's spelling."""
    return sorted(set(roms.get_all_rom_ids()) - TWO_PLAYERS_ONLY)


def knows(name: str) -> bool:
    """Whether there is such a game."""
    return name in ids()


def vector_options(options: EnvConfig) -> dict[str, Any]:
    """The settings as keyword arguments of `AtariVector`; those of `ale_py.vector_env.AtariVectorEnv` are the same but for
    `noop_min`. Rewards stay raw and a lost life ends nothing: `VectorGroup` clips rewards, `TrainingEpisodes` ends episodes."""
    frameskip = options.frameskip or FRAMESKIP
    height, width = options.resize or (84, 84)
    dqn = options.protocol == "dqn"
    frames = MAX_FRAMES if options.max_episode_steps is None else min(MAX_FRAMES, options.max_episode_steps * frameskip)
    # a user's own noop_max means ale-py's no-ops: 0 to noop_max - 1 frames, the first of which is FIRE
    noops = {"noop_min": 1, "noop_max": 30} if dqn and "noop_max" not in options.kwargs else {"noop_max": 0}
    return {
        "frameskip": frameskip,
        "img_height": height,
        "img_width": width,
        "grayscale": options.grayscale is not False,
        "stack_num": options.frame_stack or 4,
        "maxpool": dqn,
        "repeat_action_probability": 0.0 if dqn else 0.25,
        "full_action_space": False,
        **noops,
        "use_fire_reset": dqn,
        "max_num_frames_per_episode": frames,
        "episodic_life": False,
        "reward_clipping": False,
        **options.kwargs,
    }


def make_vector(name: str | Sequence[str], options: EnvConfig, num_envs: int, threads: int | None = None) -> VectorEnv:
    """Emulators behind ale-py's vector interface, on `threads` threads. Of several games, emulator i plays game i modulo their
    number (the native core only).

    None: on the caller's. Raises `ConfigError` without the native core."""
    kwargs = vector_options(options) | {"autoreset_mode": AutoresetMode.NEXT_STEP}
    if options.atari_backend == "native":
        try:
            from headrace.envs.atari_vector import AtariVector
        except ImportError as error:
            raise ConfigError("this installation has no native Atari core; use --envs.atari-backend ale") from error
        # None: the calling thread emulates; a step by another thread would cost two wake-ups
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


class TrainingEpisodes(VectorWrapper):
    """With `life_loss`, a lost life ends the episode (`terminated`, info "life_lost") if others are left.

    The game goes on: the next step is the reset of the new episode, as in NEXT_STEP autoreset. Its action is ignored; one step of
    NOOP is made.
    """

    def __init__(self, env: VectorEnv, life_loss: bool, starts: TrainingStarts | None = None) -> None:
        """`starts`: where episodes begin, of native consoles; None: as the protocol says."""
        super().__init__(env)
        self._life_loss, self._starts = life_loss, starts
        self._over = np.zeros(env.num_envs, bool)
        self._lives = np.zeros(env.num_envs, np.int32)
        self._lost = np.zeros(env.num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._starts is not None:
            options = self._starts.reset_options(seed, self.num_envs)
        observations, infos = self.env.reset(seed=seed, options=options)
        self._lives, self._lost, self._over = infos["lives"].copy(), *np.zeros((2, self.num_envs), bool)
        return observations, infos

    def step(self, actions: np.ndarray, out: np.ndarray | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Like `VectorEnv.step`; the native vector writes its observations to `out`."""
        if self._lost.any():
            actions = np.where(self._lost, 0, actions)  # NOOP is the first action of every game
        if self._starts is not None and self._starts.in_states and self._over.any():
            self._starts.begin(cast(Any, self.env), np.flatnonzero(self._over))
            actions = np.where(self._over, 0, actions)
        if out is None:
            stepped = self.env.step(actions)
        else:
            native = cast(Any, self.env)
            native.send(actions, out)
            stepped = native.recv()
        observations, rewards, terminated, truncated, infos = stepped
        self._over = terminated | truncated
        if not self._life_loss:
            return stepped
        lives = infos["lives"]
        # a life lost during the NOOP step ends no episode, since the new one has not begun
        self._lost = (lives < self._lives) & (lives > 0) & ~terminated & ~truncated & ~self._lost
        self._lives = lives.copy()
        return observations, rewards, terminated | self._lost, truncated, infos | {LIFE_LOST: self._lost}

    def get_state(self) -> dict[str, Any] | None:
        """Lives, and every console as bytes; None from ale-py's vector environment, which cannot be saved."""
        native = cast(Any, self.env)
        if not hasattr(native, "save_state"):
            return None
        consoles = [np.frombuffer(native.save_state(i), np.uint8) for i in range(self.num_envs)]
        state = {"lives": self._lives.copy(), "lost": self._lost.copy(), "consoles": consoles}
        return state if self._starts is None else state | {"over": self._over.copy(), "starts": self._starts.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` gave. Raises `ValueError` for states of another game or other options."""
        self.env.reset()  # a vector environment is stepped only after a reset
        self._lives, self._lost = state["lives"].copy(), state["lost"].copy()
        if self._starts is not None:
            self._over = state["over"].copy()
            self._starts.set_state(state["starts"])
        for i, console in enumerate(state["consoles"]):
            cast(Any, self.env).load_state(i, console.tobytes())


def make_group(
    name: str | Sequence[str],
    options: EnvConfig,
    num_envs: int,
    *,
    training: bool = True,
    threads: int | None = None,
    device: str | None = None,
) -> EnvGroup:
    """A group of emulators. With `training` and the `dqn` protocol, lost lives end episodes. On a GPU, consoles in its memory.
    Several names: environment i plays game i modulo their number."""
    life_loss = training and options.protocol == "dqn"
    env_id = f"atari/{name}" if isinstance(name, str) else ",".join(f"atari/{each}" for each in name)
    starts = TrainingStarts(options) if training and (options.random_start or options.start_states is not None) else None
    if starts is not None and options.atari_backend != "native":
        raise ConfigError("envs.random_start and envs.start_states need native consoles (envs.atari_backend native)")
    stack = vector_options(options)["stack_num"]
    if device not in (None, "cpu") and _on_a_gpu(options):
        from headrace.envs.atari_group import AtariTensorGroup
        from headrace.envs.atari_vector import AtariVector

        consoles = AtariVector(name, num_envs, **vector_options(options), device=cast(str, device))
        frames = {"frameskip": options.frameskip or FRAMESKIP, "frame_stack": stack}
        return AtariTensorGroup(consoles, options, env_id, life_loss=life_loss, starts=starts, **frames)
    vector = TrainingEpisodes(make_vector(name, options, num_envs, threads), life_loss, starts)
    # colours are the last dimension of the emulators' images and the first of the engine's, so those have to be copied
    in_place = options.atari_backend == "native" and options.grayscale is not False
    return vector_group(vector, options, env_id, FRAMESKIP, in_place, stack)


def agreement(names: Sequence[str], options: EnvConfig) -> dict[str, Any]:
    """Several games have all 18 actions. The native core makes a NOOP of one that is not legal in a game; with ale-py, Skiing and
    Lost Luggage keep their 9."""
    return {"full_action_space": "all" if options.atari_backend == "native" else True}


def make_mixed_group(
    names: Sequence[str], options: EnvConfig, num_envs: int, *, training: bool, threads: int | None, device: str | None
) -> EnvGroup | None:
    """Several games in one batch of the native core; None with ale-py, whose batches are of one game."""
    if options.atari_backend != "native":
        return None
    return make_group(names, options, num_envs, training=training, threads=threads, device=device)


def _on_a_gpu(options: EnvConfig) -> bool:
    """Whether the native consoles can be in the memory of a GPU; a warning says why not."""
    if options.atari_backend != "native":
        return False
    why = ""
    if options.grayscale is False:
        why = "colours are not written into trajectories there (envs.grayscale)"
    elif importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        why = "that needs the package cuda-core: pip install 'headrace[cuda]'"
    if why:
        warnings.warn(f"Atari consoles are emulated by the CPU and not by the GPU: {why}", stacklevel=2)
    return not why


class AtariGame(gymnasium.Env):
    """One emulator with the same picture as the vector environment, and with `render`: for watching and for tests.

    Observations uint8 [stack, H, W] (RGB: [stack, H, W, 3]); one step is `frameskip` frames; rewards are raw.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, name: str, options: EnvConfig, render_mode: str | None = None) -> None:
        import cv2

        self._cv2 = cv2
        self.render_mode = render_mode
        self._o = vector_options(options)
        if unknown := options.kwargs.keys() - (vector_options(EnvConfig()).keys() - {"episodic_life"}):
            raise ConfigError(f"single Atari games take no further arguments; got {sorted(unknown)}")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", self._o["repeat_action_probability"])
        self._rom = cast(Path, roms.get_rom_path(name))
        self.ale.setInt("random_seed", 0)
        self.ale.loadROM(self._rom)
        full, legal = self._o["full_action_space"], self.ale.getLegalActionSet()
        self._actions = legal if full else self.ale.getMinimalActionSet()
        if full == "all":
            self._actions = [a if a in legal else ale_py.Action.NOOP for a in ale_py.Action.__members__.values()]
        self._frames = 0
        height, width = self.ale.getScreenDims()
        channels = () if self._o["grayscale"] else (3,)
        self._screens = np.zeros((2, height, width, *channels), np.uint8)
        shape = (self._o["stack_num"], self._o["img_height"], self._o["img_width"], *channels)
        self._stack = np.zeros(shape, np.uint8)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.ale.setInt("random_seed", seed)
            self.ale.loadROM(self._rom)
        self.ale.reset_game()
        self._frames = 0
        for action in self._first_actions():
            self.ale.act(action)
            if self.ale.game_over():
                self.ale.reset_game()
        self._stack[:] = 0
        self._screens[:] = 0
        self._capture(1)
        return self._observe(), {"lives": self.ale.lives()}

    def _first_actions(self) -> list[Any]:
        fire = [ale_py.Action.FIRE] * (self._o["use_fire_reset"] and ale_py.Action.FIRE in self._actions)
        least, most = self._o.get("noop_min"), self._o["noop_max"]
        if least is None:  # ale-py's: FIRE is one of them
            noops = int(self.np_random.integers(most)) if most else 0
            return fire + [ale_py.Action.NOOP] * max(0, noops - len(fire))
        return [ale_py.Action.NOOP] * int(self.np_random.integers(least, most + 1)) + fire

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        skip = self._o["frameskip"]
        over = truncated = False
        for frame in range(skip):
            reward += self.ale.act(self._actions[action])
            self._frames += 1
            over, truncated = self.ale.game_over(), self._frames >= self._o["max_num_frames_per_episode"]
            if over or truncated:
                break
            if frame == skip - 1 or (self._o["maxpool"] and frame == skip - 2):
                self._capture(frame - (skip - 2))
        return self._observe(), reward, bool(over), truncated and not over, {"lives": self.ale.lives()}

    def _capture(self, which: int) -> None:
        screen = self._screens[which]
        if self._o["grayscale"]:
            self.ale.getScreenGrayscale(screen)
        else:
            self.ale.getScreenRGB(screen)

    def _observe(self) -> np.ndarray:
        size = (self._o["img_width"], self._o["img_height"])
        picture = self._cv2.resize(self._screens.max(axis=0), size, interpolation=self._cv2.INTER_AREA)
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = picture
        return self._stack.copy()

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The emulated screen, uint8 [210, 160, 3] (other heights in a few games)."""
        return self.ale.getScreenRGB() if self.render_mode == "rgb_array" else None


def make(name: str, options: EnvConfig, *, render_mode: str | None = None) -> Env:
    """One emulator: whole games, raw rewards."""
    return AtariGame(name, options, render_mode)


def defaults(name: str) -> dict[str, Any]:
    """Three epochs over small batches: on a CPU, Pong is learned in fewer minutes so than with one epoch over more experience.

    Pong, as an introduction, has a smaller network, which is enough for it, few environments with long trajectories and a large
    learning rate that falls linearly, with which it needs fewer steps, and a goal at which training ends. Without a GPU its
    environments, policy and learner take turns in one process, each with all cores: on few cores that is faster than processes
    that share them. The runs that decided this are in docs/performance.md.
    """
    own: dict[str, Any] = {
        "policy.encoder": "nature-cnn",
        "sampling.envs_per_worker": 32,
        "sampling.rollout": 32,
        "learning.learning_rate": 5e-4,
        "learning.entropy_coef": 0.005,
    }
    if name == "pong":
        own = {
            "policy.encoder": "impala-shallow",
            "policy.hidden": 256,
            "sampling.placement": "device" if default_device() == "cpu" else "served",
            "sampling.envs_per_worker": 8,
            "sampling.rollout": 128,
            "learning.learning_rate": 1e-3,
            "learning.lr_schedule": "linear",
            "learning.entropy_coef": 0.01,
            "learning.total_steps": 3_000_000,
            "run.goal": 18.0,
        }
    return {
        "envs.reward_clip": 1.0,
        **own,
        "sampling.num_workers": 1,
        "learning.batch_size": 1024,
        "learning.num_minibatches": 4,
        "learning.num_epochs": 3,
        "learning.algorithm": "ppo",
        "learning.precision": "auto",
        "learning.max_grad_norm": 0.5,
        "learning.optimizer_eps": 1e-5,
    }
