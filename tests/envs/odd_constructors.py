"""An environment whose constructor does what constructors should not; read with `import_files`."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.registry import register


class Silent(BaseException):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def construct(env: gymnasium.Env, way: str, file: str | None) -> None:
    """Do it."""
    match way:
        case "segfault":
            ctypes.string_at(1)
        case "abort":
            os.abort()
        case "kill":
            os.kill(os.getpid(), 9)
        case "killed once" | "fork server killed once":
            assert file
            if not Path(file).exists():
                Path(file).touch()
                os.kill(os.getpid() if way == "killed once" else os.getppid(), 9)
                time.sleep(1000)
        case "exit at once":
            os._exit(3)
        case "sys.exit":
            sys.exit("no licence")
        case "raise":
            raise OSError("no display")
        case "raise KeyboardInterrupt":
            raise KeyboardInterrupt
        case "raise in silence":
            raise Silent
        case "raise in a thread":
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        case "leave a thread":
            threading.Thread(target=time.sleep, args=(1000,)).start()
        case "leave a process":
            assert file
            Path(file).write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
        case "hang":
            if file:
                Path(file).write_text(str(os.getpid()))
            time.sleep(1000)
        case "print":
            print("a simulator's greeting")
            os.write(1, b"and another\n")
        case "warn":
            warnings.warn("only a prototype", stacklevel=1)
        case "text":
            env.observation_space = gymnasium.spaces.Text(5)
        case "mask":
            mask = gymnasium.spaces.MultiBinary(9)
            env.observation_space = gymnasium.spaces.Dict({"obs": env.observation_space, "action_mask": mask})
        case "look around":
            shape = (int(Path("height").read_text()), int(os.environ["HEADRACE_TEST_WIDTH"]))
            env.observation_space = gymnasium.spaces.Box(0, 1, shape, np.float32)
        case "fine":
            pass
        case _:
            raise ConfigError(f"odd/env takes no such way: {way}")


class Odd(gymnasium.Env[Any, Any]):
    """Only constructed, never stepped."""

    def __init__(self, way: str, file: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        construct(self, way, file)


@register("odd/env")
def make(options: EnvConfig, *, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """The environment."""
    return Odd(**options.kwargs)
