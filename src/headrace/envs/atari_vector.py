"""Atari 2600 games on Headrace's own console, many at a time: `AtariVector`.

The rules of an environment are those of the Arcade Learning Environment 0.12 and of its vector environment
`ale_py.AtariVectorEnv`, whose options and results `AtariVector` shares, bit for bit (docs/atari.md says how that is
checked). Sources: Bellemare et al. 2013 (JAIR 47); Machado et al. 2018 (JAIR 61) for sticky actions.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import headrace._native.atari as native

OBSERVATIONS = {
    "gray": native.ObservationType.GRAY,
    "rgb": native.ObservationType.RGB,
    "ram": native.ObservationType.RAM,
}
STATE_MAGIC = b"headrace-atari-2"


@cache
def games() -> dict[str, dict[str, Any]]:
    """The facts of all games by name: index, md5, rom_size, pal, height, minimal_actions, modes, difficulties."""
    return {facts["name"]: facts | {"index": index} for index, facts in enumerate(native.games())}


def rom_path(game: str, rom_dir: str | os.PathLike[str] | None = None) -> Path:
    """The ROM file of a game, in `rom_dir` or among those that ale-py brings.

    Raises:
        ValueError: if there is no such game; the message names the nearest ones.
        FileNotFoundError: if `rom_dir` has no file `<game>.bin`.
        ImportError: if no `rom_dir` is given and ale-py is not installed.
    """
    if game not in games():
        near = difflib.get_close_matches(game.lower(), games(), n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; names are like ms_pacman"
        raise ValueError(f"there is no Atari game {game!r}{hint}")
    if rom_dir is not None:
        path = Path(rom_dir) / f"{game}.bin"
    else:
        try:
            import ale_py.roms
        except ImportError as error:
            raise ImportError("the ROMs come with ale-py: pip install ale-py, or name a folder with rom_dir") from error
        path = Path(ale_py.roms.__file__).parent / f"{game}.bin"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    return path


@cache
def load_game(game: str, rom_dir: str | None = None) -> native.Game:
    """A game with its ROM, one object for all consoles of the process. Raises as `rom_path`, and

    ValueError: if the file is not the ROM that the rules of this game are known for.
    """
    path = rom_path(game, rom_dir)
    rom, facts = path.read_bytes(), games()[game]
    digest = hashlib.md5(rom, usedforsecurity=False).hexdigest()
    if digest != facts["md5"]:
        raise ValueError(f"{path} is not the ROM of {game}: its MD5 is {digest}, expected {facts['md5']}")
    return native.make_game(facts["index"], rom)


class AtariVector(VectorEnv):
    """Atari 2600 games, emulated by a pool of threads.

    Observations are uint8 `[batch, stack_num, img_height, img_width]`, with a last axis of 3 for RGB, or
    `[batch, stack_num, 128]` for RAM; rewards int32 `[batch]`; infos `env_id`, `lives`, `frame_number`,
    `episode_frame_number` int32 `[batch]` and, with SAME_STEP autoreset, `final_obs` when an episode ended. Arrays belong
    to the caller: their memory is used again only when nothing refers to it any more.

    A *step* is one decision of an agent and lasts `frameskip` *frames* of the emulator.
    """

    def __init__(
        self,
        game: str | Sequence[str],
        num_envs: int,
        *,
        batch_size: int = 0,
        num_threads: int | None = 0,
        thread_affinity_offset: int = -1,
        max_num_frames_per_episode: int = 108_000,
        repeat_action_probability: float = 0.0,
        full_action_space: bool = False,
        continuous: bool = False,
        continuous_action_threshold: float = 0.5,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        img_height: int | None = 84,
        img_width: int | None = 84,
        grayscale: bool = True,
        stack_num: int = 4,
        frameskip: int = 4,
        maxpool: bool = True,
        noop_max: int = 30,
        episodic_life: bool = False,
        life_loss_info: bool = False,
        reward_clipping: bool = True,
        use_fire_reset: bool = True,
        obs_type: str | None = None,
        mode: int | None = None,
        difficulty: int = 0,
        sticky_stream: str = "ale",
        rom_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """
        Args:
            game: A name like "ms_pacman", or several: environment i then plays game[i % len(game)].
            num_envs: Number of consoles.
            batch_size: Results per `recv`; 0 means one per environment.
            num_threads: Size of the pool; 0 means one per processor, but no more than `num_envs`. None: no pool, the thread
                that calls `recv` (or `step`) steps the consoles itself.
            thread_affinity_offset: Binds thread i to processor offset + i; -1 leaves that to the system.
            max_num_frames_per_episode: Frames, resets not counted, after which an episode is truncated.
            repeat_action_probability: Probability, per frame, that the action of the frame before is repeated.
            full_action_space: All 18 actions instead of those the game uses. Several games with different sets need it.
            continuous: Actions are (radius 0..1, angle in radians, fire 0..1) instead of indices.
            continuous_action_threshold: Beyond it, a component counts as a direction or as FIRE.
            autoreset_mode: NEXT_STEP or SAME_STEP.
            img_height: Rows of an image, at most those of the game; None leaves them as they are.
            img_width: Columns of an image, at most 160; None leaves them as they are.
            grayscale: Gray images, else RGB. `obs_type` has precedence.
            stack_num: Images per observation, the newest last.
            frameskip: Frames per step.
            maxpool: Whether an image has the brighter pixels of the last two frames of the step.
            noop_max: Episodes begin with 0 to noop_max - 1 NOOP frames.
            episodic_life: Whether losing a life ends the episode. The game is then reset too.
            life_loss_info: Whether losing a life is reported as a termination, while the episode goes on.
            reward_clipping: Whether the reward of a step is clipped to -1..1.
            use_fire_reset: Whether episodes begin with FIRE, in games that have it among their actions.
            obs_type: "gray", "rgb" or "ram".
            mode: Game mode; None is the game's default.
            difficulty: Difficulty switches: bit 0 the left one, bit 1 the right one.
            sticky_stream: Random numbers that repeat actions: "ale" for the stream of the Arcade Learning Environment,
                "counter" for one of 24 bytes per console instead of 2.5 KB.
            rom_dir: Folder of ROM files `<game>.bin`; None means those of ale-py.

        Raises:
            ValueError: for an option out of its range; the message says which.
            FileNotFoundError, ImportError: see `rom_path`.
        """
        names = [game] if isinstance(game, str) else list(game)
        obs_type = obs_type or ("gray" if grayscale else "rgb")
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        _require(num_envs >= 1, f"num_envs is {num_envs}, must be at least 1")
        _require(len(names) >= 1, "no game is named")
        _require(0 <= batch_size <= num_envs, f"batch_size is {batch_size}, must be in 0..num_envs ({num_envs})")
        _require(num_threads is None or num_threads >= 0, f"num_threads is {num_threads}, must not be negative")
        _require(1 <= frameskip <= 255, f"frameskip is {frameskip}, must be in 1..255")
        _require(1 <= stack_num <= 255, f"stack_num is {stack_num}, must be in 1..255")
        _require(noop_max >= 0, f"noop_max is {noop_max}, must not be negative")
        _require(max_num_frames_per_episode >= 1, "max_num_frames_per_episode must be at least 1")
        _require(0 <= repeat_action_probability < 1, "repeat_action_probability must be in [0, 1)")
        _require(obs_type in OBSERVATIONS, f"obs_type is {obs_type!r}, must be one of {', '.join(OBSERVATIONS)}")
        _require(sticky_stream in ("ale", "counter"), f"sticky_stream is {sticky_stream!r}, must be ale or counter")
        _require(self.autoreset_mode != AutoresetMode.DISABLED, "autoreset_mode must be NEXT_STEP or SAME_STEP")

        loaded = {name: load_game(name, None if rom_dir is None else os.fspath(rom_dir)) for name in names}
        facts = [games()[name] for name in names]
        for name, fact in zip(names, facts, strict=True):
            _require(mode is None or mode in fact["modes"], f"{name} has no mode {mode}, only {fact['modes']}")
            _require(0 <= difficulty <= 3, f"difficulty is {difficulty}, must be in 0..3")
            _require(
                img_height is None or 1 <= img_height <= fact["height"], f"img_height must be in 1..{fact['height']}"
            )
        _require(img_width is None or 1 <= img_width <= 160, "img_width must be in 1..160")
        action_sets = {
            tuple(range(18)) if full_action_space or continuous else tuple(f["minimal_actions"]) for f in facts
        }
        if len(action_sets) > 1:
            action_sets, full_action_space = {tuple(range(18))}, True

        options = native.StepOptions()
        options.mode = -1 if mode is None else mode
        options.difficulty = difficulty
        options.repeat_action_probability = repeat_action_probability
        options.exact_noise = sticky_stream == "ale"
        options.observation = OBSERVATIONS[obs_type]
        options.height, options.width = img_height or 0, img_width or 0
        options.stack, options.frameskip, options.maxpool = stack_num, frameskip, maxpool
        options.noop_max, options.fire_reset = noop_max, use_fire_reset
        options.episodic_life, options.life_loss_info = episodic_life, life_loss_info
        options.clip_rewards = reward_clipping
        options.same_step_autoreset = self.autoreset_mode == AutoresetMode.SAME_STEP
        options.full_action_space = full_action_space or continuous
        options.max_frames = max_num_frames_per_episode

        self.num_envs, self.batch_size = num_envs, batch_size or num_envs
        self.game_names = [names[i % len(names)] for i in range(num_envs)]
        self.action_set = next(iter(action_sets))
        self.continuous, self.continuous_action_threshold = continuous, continuous_action_threshold
        self.num_threads = 0 if num_threads is None else min(num_threads or len(os.sched_getaffinity(0)), num_envs)
        self._native = native.Vector(
            [loaded[name] for name in self.game_names],
            options,
            np.random.SeedSequence().generate_state(num_envs).tolist(),
            self.batch_size,
            self.num_threads,
            thread_affinity_offset,
        )
        if obs_type == "ram":
            shape: tuple[int, ...] = (stack_num, 128)
        else:
            shape = (stack_num, img_height or facts[0]["height"], img_width or 160)
        if obs_type == "rgb":
            shape += (3,)
        self.single_observation_space = Box(0, 255, shape, np.uint8)
        if continuous:
            low, high = np.array([0, -np.pi, 0], np.float32), np.array([1, np.pi, 1], np.float32)
            self.single_action_space: gymnasium.Space = Box(low, high, dtype=np.float32)
        else:
            self.single_action_space = Discrete(len(self.action_set))
        self.observation_space = _batch_space(self.single_observation_space, self.batch_size)
        self.action_space = batch_space(self.single_action_space, self.batch_size)
        self.metadata = {"autoreset_mode": self.autoreset_mode}
        self._strengths = np.ones(self.batch_size, np.float32)
        self._out: np.ndarray | None = None
        # the options that a saved state depends on
        shape_of_state = (obs_type, shape, frameskip, maxpool, repeat_action_probability > 0, sticky_stream)
        self._signature = hashlib.sha256(repr(shape_of_state).encode()).digest()[:16]

    def reset(
        self,
        *,
        seed: int | Sequence[int] | np.ndarray | None = None,
        options: dict[str, Any] | None = None,
        out: np.ndarray | None = None,
        rows: np.ndarray | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start new episodes.

        Args:
            seed: Environment i gets seed + i, or seed[i], or goes on with its generators (None or a negative entry).
                Seeded environments start from power-on, so that what follows depends on the seed and the actions alone.
            options: `reset_mask`, bool `[num_envs]`, names the environments to reset. Needs batch_size == num_envs.
            out, rows: see `send`.

        Raises:
            TypeError, ValueError: for a mask or a seed that does not fit.
        """
        mask = (options or {}).get("reset_mask")
        if mask is None:
            envs = np.arange(self.num_envs)
        else:
            if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
                raise TypeError(f"reset_mask must be a boolean array, not {type(mask).__name__}")
            if mask.shape != (self.num_envs,) or self.batch_size != self.num_envs:
                raise ValueError(f"reset_mask has shape {mask.shape}; it needs ({self.num_envs},) and whole batches")
            (envs,) = np.nonzero(mask)
        if seed is None:
            seeds = np.full(len(envs), -1)
        elif isinstance(seed, (int, np.integer)):
            seeds = int(seed) + np.arange(len(envs))
        else:
            seeds = np.asarray(seed, np.int64)
            if seeds.shape != (len(envs),):
                raise ValueError(f"seed has shape {seeds.shape}, but {len(envs)} environments are reset")
        if (seeds >= 2**31).any():
            raise ValueError("a seed must be less than 2**31")
        self._native.send_reset(envs.tolist(), seeds.tolist(), out, rows)
        self._out = out
        observations, *_, infos = self.recv()
        return observations, infos

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """`send`, then `recv`."""
        self.send(actions)
        return self.recv()

    def send(self, actions: np.ndarray, out: np.ndarray | None = None, rows: np.ndarray | None = None) -> None:
        """Start a step of the environments that were received last.

        Args:
            actions: Integers `[batch]`, indices into `action_set`; float32 `[batch, 3]` if continuous.
            out: uint8 array `[rows, *observation]` that the observations are written to, instead of into a new array. It
                must stay alive until they were received.
            rows: int64 `[num_envs]`: the row of `out` of each environment; None means row i for environment i.

        Raises:
            ValueError: for an action outside the action set (nothing was started then), or an `out` that does not fit.
            RuntimeError: if there is nothing to act on, or results wait to be received.
        """
        strengths = self._strengths
        if self.continuous:
            indices, strengths = self._discrete(np.asarray(actions, np.float32))
        else:
            indices = np.asarray(actions)
            if indices.dtype.kind not in "iu":
                raise ValueError(f"actions must be integers, not {indices.dtype}")
            indices = np.ascontiguousarray(indices, np.int32)
        if indices.shape != (self.batch_size,):
            raise ValueError(f"actions have shape {indices.shape}, expected ({self.batch_size},)")
        self._native.send(indices, strengths, out, rows)
        self._out = out

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Wait for a batch: observations (or `out`), rewards, terminations, truncations, infos.

        With batch_size < num_envs rows come in the order in which environments finished; `infos["env_id"]` names them.

        Raises:
            RuntimeError: if less than a batch is under way.
        """
        observations, rewards, terminated, truncated, env_id, lives, frame, episode_frame, final = self._native.recv()
        infos: dict[str, Any] = {
            "env_id": env_id,
            "lives": lives,
            "frame_number": frame,
            "episode_frame_number": episode_frame,
        }
        shape = (self.batch_size, *(self.single_observation_space.shape or ()))
        if final is not None:
            infos["final_obs"] = final.reshape(shape)
        result = observations.reshape(shape) if self._out is None else self._out
        return result, rewards, terminated, truncated, infos

    def save_state(self, env: int) -> bytes:
        """Everything that decides how environment `env` goes on: console, screens, stack, counters, random numbers.

        Raises:
            IndexError: if there is no such environment.
            RuntimeError: while results wait to be received.
        """
        payload = self._native.save(self._index(env))
        header = STATE_MAGIC + bytes.fromhex(games()[self.game_names[env]]["md5"]) + self._signature
        return header + hashlib.sha256(header + payload).digest() + payload

    def load_state(self, env: int, state: bytes) -> None:
        """Make environment `env` go on where `save_state` was called, in this process or another.

        Raises:
            ValueError: if the state is damaged, or of another game, other options or another version.
            IndexError, RuntimeError: as `save_state`.
        """
        magic, game, signature, digest = state[:16], state[16:32], state[32:48], state[48:80]
        if magic != STATE_MAGIC:
            raise ValueError("this is not a saved state of an Atari console of this version")
        if hashlib.sha256(state[:48] + state[80:]).digest() != digest:
            raise ValueError("the saved state is damaged")
        name = self.game_names[self._index(env)]
        if game.hex() != games()[name]["md5"]:
            owners = [other for other, facts in games().items() if facts["md5"] == game.hex()]
            raise ValueError(f"the saved state is of {owners[0] if owners else 'an unknown game'}, not of {name}")
        if signature != self._signature:
            raise ValueError("the saved state was made with other options for observations, frames or sticky actions")
        self._native.load(env, state[80:])

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the threads."""
        del self._native

    def _index(self, env: int) -> int:
        if not 0 <= env < self.num_envs:
            raise IndexError(f"there is no environment {env}, only 0..{self.num_envs - 1}")
        return env

    def _discrete(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Actions (radius, angle, fire) as action ids and the strengths of paddles."""
        if actions.shape != (self.batch_size, 3):
            raise ValueError(f"actions have shape {actions.shape}, expected ({self.batch_size}, 3)")
        threshold = self.continuous_action_threshold
        x, y = actions[:, 0] * np.cos(actions[:, 1]), actions[:, 0] * np.sin(actions[:, 1])
        horizontal = (x > threshold).astype(np.int32) - (x < -threshold)
        vertical = (y > threshold).astype(np.int32) - (y < -threshold)
        ids = ACTION_OF_DIRECTION[horizontal + 1, vertical + 1, (actions[:, 2] > threshold).astype(np.int32)]
        return np.ascontiguousarray(ids), np.ascontiguousarray(actions[:, 0])


# [left, centre, right][down, centre, up][no fire, fire]
ACTION_OF_DIRECTION = np.array(
    [[[9, 17], [4, 12], [7, 15]], [[5, 13], [0, 1], [2, 10]], [[8, 16], [3, 11], [6, 14]]], np.int32
)


def _batch_space(single: Box, size: int) -> Box:
    """What Gymnasium's `batch_space` makes, with bounds that take no memory: there they take four times that of a batch."""
    batch: Any = batch_space(single, 1)
    batch._shape = (size, *single.shape)
    for name in ("low", "high", "bounded_below", "bounded_above"):
        setattr(batch, name, np.broadcast_to(getattr(batch, name).flat[0], batch._shape))
    return batch


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
