"""A world that misbehaves: in the way `fault` (or several, joined by +), at step `at` of an episode. With `once`, a folder, every
fault happens only once, in the first process that gets there."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from headrace.config import EnvConfig
from headrace.envs.core.registry import register


class Faulty(gymnasium.Env[np.ndarray, int]):
    """Two numbers, two actions, episodes of 50 steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, fault: str = "", at: int = 30, once: str = "") -> None:
        # Never two of a group at the same step, where only one would be told of.
        Faulty.made += 1
        self._fault, self._at, self._once, self._step = fault, at + Faulty.made % 7, once, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        self._step = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, or misbehave."""
        self._step += 1
        observation: Any = np.full(2, 0.5, np.float32)
        reward: Any = float(action)
        if self._step == self._at:
            for fault in filter(self._claim, self._fault.split("+")):
                if fault == "raise":
                    raise RuntimeError("the world is broken")
                if fault == "hang":
                    time.sleep(3600)
                if fault == "segfault":
                    ctypes.string_at(0)
                if fault == "leak":
                    leak()
                if fault == "helpers":
                    helpers()
                if fault == "programs":
                    programs()
                if fault == "exit":
                    os._exit(7)
                if fault == "shape":
                    observation = np.zeros(3, np.float32)
                if fault == "nan":
                    observation = np.array([0.5, np.nan], np.float32)
                if fault == "reward":
                    reward = float("inf")
                break
        return observation, reward, False, self._step == 50, {}

    def _claim(self, fault: str) -> bool:
        if not self._once:
            return True
        try:
            Path(self._once, fault).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def helpers() -> None:
    """Fork a process that never ends by itself, and which forks another one."""
    if os.fork() == 0:
        os.fork()
        while True:
            time.sleep(3600)


def programs() -> None:
    """Start programs that never end by themselves: one as a game is, one as a launcher that ends leaves it behind."""
    subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL)
    subprocess.run(["sh", "-c", "setsid sleep 3600 > /dev/null 2>&1 &"], check=True)


def leak() -> None:
    """Take memory until there is none left: here until this process may have no more."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    kept = []
    while True:
        kept.append(bytearray(1 << 20))


@register("faulty")
def make(options: EnvConfig, *, render_mode: str | None = None) -> gymnasium.Env[np.ndarray, int]:
    """The world."""
    return Faulty(**options.kwargs)
