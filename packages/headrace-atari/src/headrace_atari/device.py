"""Consoles in a device's memory, which `AtariVector` uses in place of the thread pool.

All consoles are stepped together, so a batch is always whole. Results are tensors on the device; the host reads nothing back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

import headrace_atari._native.atari as native
from headrace_atari.kernels import CudaKernels, CudaModule
from headrace_atari.options import WARP, KernelOptions

STEP, RESET, RESTART = range(3)
"""Values of `Task` in native/atari/cuda/batch.hpp."""
LEAVE = -(2**63) + 1
"""In place of a seed: do not reset this console."""
SAVED = ("states", "screens", "noises", "twisters", "images", "pooled_pixels", "pooled_source", "noops")
"""Parts of a saved state, in the order of native/atari/host/environment.hpp."""


class DeviceVector:
    """The methods of the native vector that `AtariVector` calls, with tensors in place of arrays."""

    def __init__(
        self, games: Sequence[native.Game], options: native.StepOptions, kernels: CudaKernels, spread: KernelOptions
    ) -> None:
        self.kernels, self._spread, self._options = kernels, spread, options
        self._tables_of = native.DeviceBatch(list(games), options)
        self._count, self.device, self._per_warp = len(games), kernels.device, spread.per_warp(len(games))
        self._strides: dict[str, int] = self._tables_of.strides
        self._memory = {name: self._zeros(self._count * stride) for name, stride in self._strides.items()}
        address = {name: memory.data_ptr() for name, memory in self._memory.items()}
        if noises := self._tables_of.noises(address["twisters"]):
            self._memory["noises"][: len(noises)].copy_(_bytes(noises))
        self._tables = self._zeros(len(self._tables_of.tables(0, address)))
        self._tables.copy_(_bytes(self._tables_of.tables(self._tables.data_ptr(), address)))
        self._parts = self._load(games)
        self._seeded = np.zeros(self._count, bool)
        self._under_way: tuple[Any, ...] | None = None

    def _zeros(self, size: int) -> torch.Tensor:
        return torch.zeros(max(size, 64), dtype=torch.uint8, device=self.device)

    def _load(self, games: Sequence[native.Game]) -> list[tuple[CudaModule, torch.Tensor]]:
        """For each kernel: the kernel, and the indices of its consoles in the order of the lanes."""

        def slots(game: int) -> torch.Tensor:
            order = self._tables_of.slots(self._per_warp, game)
            return torch.tensor(order, dtype=torch.int32).to(self.device)

        if not self._spread.compiles(self._tables_of.games):
            return [(self.kernels.load(None), slots(-1))]
        parts = []
        for number in range(self._tables_of.games):
            game = games[self._tables_of.game_of.index(number)]
            parts.append((self.kernels.load(native.block_source(game)), slots(number)))
        return parts

    # -- what AtariVector calls ------------------------------------------------------------------------------------------

    def check_out(self, out: Any) -> None:
        """Raise `ValueError` unless observations can be written to `out`."""
        if not isinstance(out, torch.Tensor) or out.dtype != torch.uint8 or out.device != self.device:
            what = f"{out.dtype} on {out.device}" if isinstance(out, torch.Tensor) else type(out).__name__
            raise ValueError(f"out must be a uint8 tensor on {self.device}, not {what}")
        size = self._tables_of.observation_bytes
        if out.ndim < 2 or not out[0].is_contiguous():
            raise ValueError("each row of out must be contiguous")
        if out[0].numel() != size:
            raise ValueError(f"a row of out has {out[0].numel()} bytes, an observation has {size}")

    def send(
        self, actions: Any, strengths: np.ndarray | None, out: torch.Tensor | None, rows: np.ndarray | None, waits: bool = False
    ) -> None:
        """`waits`: whether `recv` follows at once, which does not matter on a GPU."""
        self._idle()
        if not self._seeded.all():
            raise RuntimeError("call reset before the first step; with send and recv, each send follows a reset or a recv")
        if isinstance(actions, np.ndarray):
            count = self._tables_of.num_actions(0)  # the same for all games of a batch
            if len(outside := np.flatnonzero((actions < 0) | (actions >= count))):
                raise ValueError(f"action {actions[outside[0]]} of environment {outside[0]} is not in 0..{count - 1}")
        acting = torch.as_tensor(actions).to(self.device, torch.int32, non_blocking=True).contiguous()
        strong = None if strengths is None else torch.as_tensor(strengths).to(self.device, torch.float32).contiguous()
        self._start(STEP, acting, strong, None, out, rows)

    def send_reset(self, envs: Sequence[int], seeds: Sequence[int], out: torch.Tensor | None, rows: np.ndarray | None) -> None:
        self._under_way = None
        chosen = np.full(self._count, LEAVE, np.int64)
        chosen[list(envs)] = np.where(np.asarray(seeds, np.int64) < 0, -1, seeds)
        # a console without a seed since its creation gets a random one
        unseeded = (chosen == -1) & ~self._seeded
        chosen[unseeded] = np.random.SeedSequence().generate_state(int(unseeded.sum())) & 0x7FFFFFFF
        self._seeded |= chosen != LEAVE
        self._start(RESET, None, None, torch.from_numpy(chosen).to(self.device), out, rows)

    def recv(self) -> tuple[Any, ...]:
        if self._under_way is None:
            raise RuntimeError("recv follows a send: less than a batch is under way")
        results, self._under_way = self._under_way, None
        return results

    def rgb(self, env: int) -> np.ndarray:
        return self._tables_of.rgb(env, self._bytes_of("states", env), self._bytes_of("screens", env))

    def save(self, env: int) -> bytes:
        self._idle()
        return self._tables_of.pack(env, {name: self._bytes_of(name, env) for name in SAVED})

    def load(self, env: int, state: bytes) -> None:
        self._idle()
        parts = self._tables_of.unpack(env, {name: self._bytes_of(name, env) for name in SAVED}, state)
        for name, data in parts.items():
            if data:
                stride = self._strides[name]
                self._memory[name][env * stride : env * stride + len(data)].copy_(_bytes(data))

    # -- launches --------------------------------------------------------------------------------------------------------

    def _idle(self) -> None:
        if self._under_way is not None:
            raise RuntimeError("results are under way: recv comes first")

    def _bytes_of(self, name: str, env: int) -> bytes:
        stride = self._strides[name]
        return self._memory[name][env * stride : (env + 1) * stride].cpu().numpy().tobytes()

    def _start(
        self, task: int, actions: torch.Tensor | None, strengths: torch.Tensor | None, seeds: torch.Tensor | None,
        out: torch.Tensor | None, rows: np.ndarray | None,
    ) -> None:  # fmt: skip
        n, size = self._count, self._tables_of.observation_bytes
        if out is not None and rows is None and len(out) < n:
            raise ValueError("a row lies outside out")

        def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=self.device)

        observations = empty(torch.uint8, n, size) if out is None else out
        placed = None if rows is None else torch.from_numpy(np.ascontiguousarray(rows, np.int64)).to(self.device)
        ends_in_step = self._options.same_step_autoreset
        finals = torch.zeros((n, size), dtype=torch.uint8, device=self.device) if ends_in_step else None
        rewards, lives, frames, episode_frames = (empty(torch.int32, n) for _ in range(4))
        terminated, truncated, has_final = (empty(torch.bool, n) for _ in range(3))
        stride = observations.stride(0)
        written = [observations, placed, stride, finals, rewards, terminated, truncated, has_final, lives, frames, episode_frames]
        results = [_word(each) for each in written]

        given = [_word(actions), _word(strengths), _word(seeds), int(self._spread.reconverge)]
        self._emulate(task, [*given, *results])
        self._observe(0, results)
        if ends_in_step and task == STEP:
            self._emulate(RESTART, [*given, *results])
            self._observe(1, results)
        ids = torch.arange(n, dtype=torch.int32, device=self.device)
        self._under_way = (
            *(observations, rewards, terminated, truncated, ids, lives, frames, episode_frames),
            finals if task == STEP else None,
        )

    def _emulate(self, task: int, words: list[int]) -> None:
        per_warp, threads = self._per_warp, self._spread.threads

        def launch(module: CudaModule, slots: torch.Tensor) -> None:
            warps = -(-len(slots) // per_warp)
            head = [self._tables.data_ptr(), task, len(slots), per_warp, slots.data_ptr()]
            module.launch("step", -(-warps * WARP // threads), threads, [*head, *words])

        self.kernels.together([partial(launch, *part) for part in self._parts])

    def _observe(self, restarted: int, results: list[int]) -> None:
        threads = self._spread.threads
        grid = -(-self._count * WARP // threads)
        self._parts[0][0].launch("observe", grid, threads, [self._tables.data_ptr(), restarted, *results])


def _word(value: torch.Tensor | int | None) -> int:
    return value.data_ptr() if isinstance(value, torch.Tensor) else value or 0


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
