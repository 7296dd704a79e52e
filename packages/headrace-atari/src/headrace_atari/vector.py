"""Atari 2600 games on Headrace's own console, many at a time: `AtariVector`.

The rules of an environment are those of the Arcade Learning Environment 0.12 and of its vector environment
`ale_py.AtariVectorEnv`, whose options and results `AtariVector` shares, bit for bit (docs/atari.md says how that is
checked). Sources: Bellemare et al. 2013 (JAIR 47); Machado et al. 2018 (JAIR 61) for sticky actions.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import headrace_atari._native.atari as native
from headrace_atari.actions import action_space, discrete_actions
from headrace_atari.options import AtariOptions, KernelOptions, require, require_types
from headrace_atari.roms import games, load_game
from headrace_atari.starts import check_starts, play_at_random

STATE_MAGIC = b"headrace-atari-3"


class AtariVector(VectorEnv):
    """Atari 2600 games, emulated by a pool of threads.

    Observations are uint8 `[batch, stack_num, img_height, img_width]`, with a last axis of 3 for RGB, or
    `[batch, stack_num, 128]` for RAM; rewards int32 `[batch]`; infos `env_id`, `lives`, `frame_number`,
    `episode_frame_number` int32 `[batch]` and, with SAME_STEP autoreset, `final_obs` when an episode ended. Arrays belong
    to the caller: their memory is only reused when nothing refers to it any more.

    A *step* is one decision of an agent and lasts `frameskip` *frames* of the emulator.

    With `device="cuda"` consoles run on a GPU. Options and results are the same, but results are tensors, computed on PyTorch's
    current stream without waiting for it. Actions may be tensors, too; since these are not read back, an index outside the action
    set is not refused but clamped to it. Batches are whole, `num_threads` is ignored, and with SAME_STEP `final_obs` is always
    present, but only meaningful where an episode ended.

    Several threads may use a vector in turns, but not at the same time: that is a `RuntimeError`. After `close`, every method
    raises `gymnasium.error.ClosedEnvironmentError`.
    """

    def __init__(
        self,
        game: str | Sequence[str],
        num_envs: int,
        *,
        batch_size: int = 0,
        num_threads: int | None = 0,
        thread_affinity_offset: int = -1,
        rom_dir: str | os.PathLike[str] | None = None,
        render_mode: str | None = None,
        device: str = "cpu",
        kernels: KernelOptions | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            game: A name like "ms_pacman", or several: environment i then plays game[i % len(game)].
            num_envs: Number of consoles.
            batch_size: Results per `recv`; 0 means one per environment.
            num_threads: Size of the pool; 0 means one per processor, but no more than `num_envs`. None: no pool, the thread
                that calls `recv` (or `step`) steps the consoles itself.
            thread_affinity_offset: Binds thread i to the processor offset + i of those that this process may use, counted in a
                circle; -1 leaves that to the system.
            rom_dir: Folder of ROM files `<game>.bin`; None means those of ale-py.
            render_mode: "rgb_array" for `render`, or None.
            device: "cpu", or "cuda" (or "cuda:1") to emulate on an NVIDIA GPU: see the class.
            kernels: How consoles are spread over the GPU; None is `KernelOptions()`.
            options: See `AtariOptions`.

        Raises:
            TypeError, ValueError: for an unknown option, or one out of its range; the message says which.
            FileNotFoundError, ImportError: see `rom_path`; ImportError also if a GPU is asked for without cuda-core.
            RuntimeError: if a GPU is asked for and PyTorch can use none.
        """
        sizes = {"num_envs": num_envs, "batch_size": batch_size, "num_threads": num_threads}
        others = {"thread_affinity_offset": thread_affinity_offset, "rom_dir": rom_dir, "kernels": kernels}
        require_types(AtariVector.__init__, game=game, **sizes, **others)
        chosen = AtariOptions(**options)
        names = [game] if isinstance(game, str) else list(game)
        whole = batch_size in (0, num_envs)
        require(num_envs >= 1, f"num_envs is {num_envs}, must be at least 1")
        require(len(names) >= 1, "no game is named")
        require(0 <= batch_size <= num_envs, f"batch_size is {batch_size}, must be in 0..num_envs ({num_envs})")
        require(num_threads is None or num_threads >= 0, f"num_threads is {num_threads}, must not be negative")
        require(thread_affinity_offset >= -1, f"thread_affinity_offset is {thread_affinity_offset}, must be at least -1")
        require(render_mode in (None, "rgb_array"), f"render_mode is {render_mode!r}, must be rgb_array or None")
        require(str(device).partition(":")[0] in ("cpu", "cuda"), f"device is {device!r}, must be cpu, cuda or cuda:N")
        require(device == "cpu" or whole, f"on {device} batches are whole: batch_size must be num_envs ({num_envs})")
        self.num_envs, self.batch_size, self.render_mode = num_envs, batch_size or num_envs, render_mode
        self.num_threads = 0 if num_threads is None else min(num_threads or len(os.sched_getaffinity(0)), num_envs)
        self.game_names = [names[i % len(names)] for i in range(num_envs)]
        loaded = {name: load_game(name, None if rom_dir is None else os.fspath(rom_dir)) for name in names}
        step_options = chosen.step_options(self._describe(chosen, names))
        consoles = [loaded[name] for name in self.game_names]
        self._native = self._consoles(consoles, step_options, thread_affinity_offset, device, kernels)
        self._on_device, self._user, self._was_reset = device != "cpu", OneUser(), False
        self._process = os.getpid()
        self._strengths = np.ones(self.batch_size, np.float32)
        self._received = np.arange(num_envs)
        self._out: np.ndarray | None = None
        """Memory of the caller for the results that are under way, with whole batches; None: the native vector's own."""
        self._outs: list[np.ndarray | None] = [None] * num_envs
        """The same for each environment, with smaller batches. It is referred to here so that it is not freed."""

    def _describe(self, options: AtariOptions, names: list[str]) -> native.ActionChoice:
        """Set what Gymnasium says about an environment; returns how the native core is to choose the actions."""
        facts = [games()[name] for name in names]
        for name, fact in zip(names, facts, strict=True):
            options.check_game(name, fact)
        choice, self.action_set = options.action_set(facts)
        self.autoreset_mode = AutoresetMode(options.autoreset_mode)
        self.continuous, self.continuous_action_threshold = options.continuous, options.continuous_action_threshold
        self.single_observation_space = options.observation_space(facts[0]["height"])
        self.single_action_space: gymnasium.Space = action_space(options.continuous, len(self.action_set))
        self.observation_space = batch_space_of(self.single_observation_space, self.batch_size)
        self.action_space = batch_space(self.single_action_space, self.batch_size)
        fps = 60 // options.frameskip
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_modes": ["rgb_array"], "render_fps": fps}
        self._options = options.identity(self.action_set, self.single_observation_space.shape or ())
        return choice

    def _consoles(
        self, games: list[native.Game], options: native.StepOptions, offset: int, device: str, kernels: KernelOptions | None
    ) -> Any:
        """The consoles, emulated by threads or on a GPU."""
        if device == "cpu":
            seeds = np.random.SeedSequence().generate_state(self.num_envs).tolist()
            return native.Vector(games, options, seeds, self.batch_size, self.num_threads, offset)
        from headrace_atari.device import DeviceVector  # imports torch, which consoles of the CPU do not need
        from headrace_atari.kernels import CudaKernels

        return DeviceVector(games, options, CudaKernels(device), kernels or KernelOptions())

    @property
    def tensor_device(self) -> Any:
        """The torch device of the results. Raises `AttributeError` for consoles of the CPU, whose results are arrays."""
        return self._open().device

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
            seed: Environment i gets seed + i, or seed[i], or keeps its generators (None or a negative entry). Seeded
                environments start from power-on, so that they depend on the seed and the actions alone.
            options: `reset_mask`, bool `[num_envs]`: the environments to reset. `random_steps`: every environment plays a random
                number of random steps, from 0 to this; infos then have `played_steps` and `played_return` `[num_envs]`.
                `states`: environment i continues the state `states[i % len(states)]` of `save_state`. All need
                batch_size == num_envs, and the last two reset all environments.
            out, rows: see `send`.

        Raises:
            TypeError, ValueError: for a mask, a seed, memory or other options that do not fit; nothing was reset then, unless a
                state cannot be loaded.
            RuntimeError: if the first reset is not of all environments.
        """
        chosen = {} if options is None else options
        check_starts(chosen)
        elsewhere = {"states", "random_steps"} & chosen.keys()
        if len(elsewhere) > 1 or (elsewhere and ("reset_mask" in chosen or rows is not None or self.batch_size < self.num_envs)):
            raise ValueError(f"{' and '.join(sorted(elsewhere))} cannot be with each other, reset_mask, rows or smaller batches")
        begun = self._begin(seed, chosen.get("reset_mask"), out, rows)
        if "states" in chosen:
            return self._begin_in(chosen["states"], out)
        if "random_steps" in chosen:
            ended, played, total = play_at_random(self, chosen["random_steps"], seed)
            observations, infos = self._begin(None, ended, out, None)  # also writes the others' observations to `out`
            return observations, infos | {"played_steps": played, "played_return": total}
        return begun

    def _begin_in(self, states: Sequence[bytes], out: Any) -> tuple[np.ndarray, dict[str, Any]]:
        for i in range(self.num_envs):
            self.load_state(i, states[i % len(states)])
        noop = np.zeros((self.num_envs, 3), np.float32) if self.continuous else np.zeros(self.num_envs, np.int64)
        observations, *_, infos = self.step(noop, out)
        return observations, infos

    def _begin(self, seed: Any, mask: Any, out: Any, rows: Any) -> tuple[np.ndarray, dict[str, Any]]:
        with self._user:
            vector = self._open()
            envs = self._chosen(mask)
            seeds = seeds_of(seed, len(envs))
            out, rows = self._memory(out, rows)
            vector.send_reset(envs.tolist(), seeds.tolist(), out, rows)
            self._was_reset = True
            self._out, self._outs = out, [out] * self.num_envs
            observations, *_, infos = self._receive()
            return observations, infos

    def step(
        self, actions: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """`send`, then `recv`; the calling thread steps consoles in the place of one of the pool, unless that is bound to
        processors."""
        with self._user:
            self._send(actions, out, None, waits=True)
            return self._receive()

    def send(self, actions: np.ndarray, out: np.ndarray | None = None, rows: np.ndarray | None = None) -> None:
        """Start a step of the environments of the last `recv` or `reset`.

        Args:
            actions: Integers `[batch]`, indices into `action_set`; float32 `[batch, 3]` if continuous.
            out: Writable uint8 array `[rows, *observation]` that the observations are written to until they are received.
            rows: Integers `[num_envs]`: the row of `out` of each environment; None means row i for environment i.

        Raises:
            ValueError: for an action outside the action set (nothing was started then), or an `out` that does not fit.
            RuntimeError: if there is nothing to act on, or results wait to be received.
        """
        with self._user:
            self._send(actions, out, rows)

    def _send(self, actions: np.ndarray, out: Any, rows: Any, waits: bool = False) -> None:
        vector, strengths = self._open(), self._strengths
        if self.continuous:
            actions = np.asarray(actions, np.float32)
            if actions.shape != (self.batch_size, 3):
                raise ValueError(f"actions have shape {actions.shape}, expected ({self.batch_size}, 3)")
            indices, strengths = discrete_actions(actions, self.continuous_action_threshold)
        elif self._on_device and not isinstance(actions, np.ndarray):
            indices, strengths = self._device_indices(actions), None
        else:
            indices = self._indices(np.asarray(actions))
        out, rows = self._memory(out, rows)
        vector.send(indices, strengths, out, rows, waits)
        self._out = out
        if self.batch_size < self.num_envs:
            for env in self._received:
                self._outs[env] = out

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Wait for a batch: observations, rewards, terminations, truncations, infos. Ctrl-C ends the wait; a later `recv` returns
        the batch.

        With batch_size == num_envs observations are the `out` of `send` or `reset`, if given. With smaller batches they are
        always an array of their own, even if they were also written to `out`; its rows are in the order in which environments
        finished, see `infos["env_id"]`.

        Raises:
            RuntimeError: if less than a batch is under way.
        """
        with self._user:
            return self._receive()

    def _receive(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        observations, rewards, terminated, truncated, env_id, lives, frame, episode_frame, final = self._open().recv()
        infos: dict[str, Any] = {
            "env_id": env_id,
            "lives": lives,
            "frame_number": frame,
            "episode_frame_number": episode_frame,
        }
        shape = self.observation_space.shape
        if final is not None:
            infos["final_obs"] = final.reshape(shape)
        whole = self.batch_size == self.num_envs
        result = self._out if whole and self._out is not None else observations.reshape(shape)
        if not whole:
            self._received = env_id
            for env in env_id:
                self._outs[env] = None
        return result, rewards, terminated, truncated, infos

    def render(self) -> tuple[np.ndarray, ...] | None:  # type: ignore[override]
        """The newest emulated screen of each environment: uint8 `[rows, 160, 3]`. None without a render mode.

        Raises:
            RuntimeError: while results wait to be received.
        """
        if self.render_mode is None:
            return None
        with self._user:
            vector = self._open()
            return tuple(vector.rgb(env) for env in range(self.num_envs))

    def save_state(self, env: int) -> bytes:
        """The whole state of environment `env`: console, screens, stack, counters, random numbers.

        Raises:
            IndexError: if there is no such environment.
            RuntimeError: while results wait to be received.
        """
        with self._user:
            payload = self._open().save(self._index(env))
        header = json.dumps({"game": self.game_names[env], "md5": games()[self.game_names[env]]["md5"], "options": self._options})
        body = len(header).to_bytes(4, "little") + header.encode() + payload
        return STATE_MAGIC + hashlib.sha256(body).digest() + body

    def load_state(self, env: int, state: bytes) -> None:
        """Restore environment `env` from a state of `save_state`, also of another process.

        Raises:
            ValueError: if the state is damaged, or of another game, other options or another version.
            IndexError, RuntimeError: as `save_state`.
        """
        magic, digest, body = state[:16], state[16:48], state[48:]
        if magic != STATE_MAGIC:
            raise ValueError("this is not a saved state of an Atari console of this version")
        if hashlib.sha256(body).digest() != digest:
            raise ValueError("the saved state is damaged")
        size = int.from_bytes(body[:4], "little")
        header, payload = json.loads(body[4 : 4 + size]), body[4 + size :]
        name = self.game_names[self._index(env)]
        if header["md5"] != games()[name]["md5"]:
            raise ValueError(f"the saved state is of {header['game']}, not of {name}")
        theirs, ours = dict(header["options"]), dict(self._options)
        for chosen in (theirs, ours):
            chosen["mode"] = games()[name]["default_mode"] if chosen["mode"] is None else chosen["mode"]
        if differing := [f"{key} {theirs.get(key)} instead of {ours[key]}" for key in ours if theirs.get(key) != ours[key]]:
            raise ValueError(f"the saved state was made with other options: {', '.join(differing)}")
        with self._user:
            self._open().load(env, payload)

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the threads. Results that were not received are lost."""
        self._native = None
        self._out, self._outs = None, []

    def _open(self) -> Any:
        if self._native is None:
            raise gymnasium.error.ClosedEnvironmentError("this AtariVector was closed")
        if self.num_threads and os.getpid() != self._process:
            raise RuntimeError(
                f"this AtariVector was made in process {self._process}, and this process, a fork of it, lacks its threads: "
                "make it here, or with num_threads=None"
            )
        return self._native

    def _chosen(self, mask: Any) -> np.ndarray:
        """The environments to reset."""
        if mask is None:
            return np.arange(self.num_envs)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            kind = f"one of {mask.dtype}" if isinstance(mask, np.ndarray) else type(mask).__name__
            raise TypeError(f"reset_mask must be a boolean array, not {kind}")
        if mask.shape != (self.num_envs,) or self.batch_size != self.num_envs:
            raise ValueError(f"reset_mask has shape {mask.shape}; it needs ({self.num_envs},) and whole batches")
        if not self._was_reset and not mask.all():
            raise RuntimeError("the first reset must be of all environments")
        return np.flatnonzero(mask)

    def _memory(self, out: Any, rows: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The caller's memory in the form that the native vector takes; the vector checks its size."""
        if out is None:
            if rows is not None:
                raise ValueError("rows needs out: it names rows of that array")
            return None, None
        if self._on_device:
            self._native.check_out(out)
        elif not isinstance(out, np.ndarray) or out.dtype != np.uint8 or not out.flags.writeable:
            kind = f"of {out.dtype}" if isinstance(out, np.ndarray) else type(out).__name__
            raise ValueError(f"out must be a writable uint8 array, not {'read-only or ' if kind == 'of uint8' else ''}{kind}")
        if rows is None:
            return out, None
        rows = np.asarray(rows)
        if rows.dtype.kind not in "iu" or rows.shape != (self.num_envs,):
            raise ValueError(f"rows must be integers of shape ({self.num_envs},), not {rows.dtype} of shape {rows.shape}")
        if len(np.unique(rows)) != len(rows):
            raise ValueError("rows names a row of out for two environments")
        if self._on_device and ((rows < 0) | (rows >= len(out))).any():
            raise ValueError("a row lies outside out")
        return out, np.ascontiguousarray(rows, np.int64)

    def _indices(self, actions: np.ndarray) -> np.ndarray:
        if actions.dtype.kind not in "iu":
            raise ValueError(f"actions must be integers, not {actions.dtype}")
        if actions.shape != (self.batch_size,):
            raise ValueError(f"actions have shape {actions.shape}, expected ({self.batch_size},)")
        if actions.dtype == np.uint64 and len(rows := np.flatnonzero(actions >= 2**63)):
            raise ValueError(f"action {actions[rows[0]]} in row {rows[0]} is not in 0..{len(self.action_set) - 1}")
        return np.ascontiguousarray(actions, np.int64)

    def _device_indices(self, actions: Any) -> Any:
        """A tensor of actions, whose values are not checked."""
        if actions.is_floating_point() or tuple(actions.shape) != (self.batch_size,):
            raise ValueError(f"actions must be integers of shape ({self.batch_size},), not {actions.dtype} {list(actions.shape)}")
        return actions

    def _index(self, env: int) -> int:
        if not 0 <= env < self.num_envs:
            raise IndexError(f"there is no environment {env}, only 0..{self.num_envs - 1}")
        return env


class OneUser:
    """A context that one thread at a time may enter. Raises `RuntimeError` in the second thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "two threads use this AtariVector at the same time; give each thread a vector of its own, or let them take turns"
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def batch_space_of(single: Box, size: int) -> Box:
    """Gymnasium's `batch_space` with broadcast bounds, which take no memory; Gymnasium's take four times that of a batch."""
    batch: Any = batch_space(single, 1)
    batch._shape = (size, *single.shape)
    for name in ("low", "high", "bounded_below", "bounded_above"):
        setattr(batch, name, np.broadcast_to(getattr(batch, name).flat[0], batch._shape))
    return batch


def seeds_of(seed: Any, count: int) -> np.ndarray:
    """One seed for each environment that is reset; negative ones keep its generators."""
    if seed is None:
        return np.full(count, -1)
    if isinstance(seed, (int, np.integer)):
        seeds = int(seed) + np.arange(count) if seed >= 0 else np.full(count, -1)
    else:
        seeds = np.asarray(seed)
        if seeds.dtype.kind not in "iu":
            raise TypeError(f"seed must be an integer or an array of integers, not {seed!r}")
        if seeds.shape != (count,):
            raise ValueError(f"seed has shape {seeds.shape}, but {count} environments are reset")
    if (seeds >= 2**31).any():
        raise ValueError("a seed must be less than 2**31")
    return seeds.astype(np.int64)
