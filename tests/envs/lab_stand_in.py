"""A stand-in for the package `deepmind_lab`, which is in no registry: the interface of its docs/users/python_api.md, with a world
of one number. It is stricter than the package: what that leaves undefined is an error here.

Importing this file makes it importable as `deepmind_lab`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

compiled: list[str] = []
"""Keys of levels that were compiled, since no cache had them."""


class Lab:
    """Frame t of an episode with seed s shows the colour (s + t) % 256; moving forward pays 1 per frame."""

    def __init__(
        self,
        level: str,
        observations: Sequence[str],
        config: Mapping[str, str] = {},
        renderer: str = "software",
        level_cache: Any = None,
    ) -> None:
        assert all(type(key) is str and type(value) is str for key, value in config.items()), "key-value string pairs"
        assert renderer in ("software", "hardware")
        if level == "no/such/level":
            raise RuntimeError(f"Failed to load level {level}")
        self.level, self.config, self.cache, self.names = level, dict(config), level_cache, list(observations)
        height, width = int(config.get("height", "240")), int(config.get("width", "320"))
        self.picture = np.zeros((height, width, 3), np.uint8)
        self.frames, self.running, self.closed = 0, False, False
        self.last_frame = int(float(config.get("episodeLengthSeconds", "90")) * 60)

    def reset(self, episode: int = -1, seed: int | None = None) -> None:
        assert not self.closed
        assert seed is None or (type(seed) is int and 0 <= seed < 2**31)
        self.seed, self.frames, self.running = seed or 0, 0, True
        self._load(f"{self.level.replace('/', '_')}_{self.seed}")

    def _load(self, key: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pk3 = Path(folder, "level.pk3")
            if self.cache is not None and self.cache.fetch(key, str(pk3)) is True:
                assert pk3.read_bytes() == b"PK3" + key.encode()
                return
            compiled.append(key)
            pk3.write_bytes(b"PK3" + key.encode())
            if self.cache is not None:
                self.cache.write(key, str(pk3))

    def is_running(self) -> bool:
        return self.running

    def num_steps(self) -> int:
        return self.frames

    def step(self, action: np.ndarray, num_steps: int = 1) -> float:
        assert self.running, "step after the end of the episode"
        assert isinstance(action, np.ndarray)
        assert (action.dtype, action.shape) == (np.intc, (7,))
        assert (np.abs(action) <= [512, 512, 1, 1, 1, 1, 1]).all()
        assert (action[4:] >= 0).all()
        done = min(num_steps, self.last_frame - self.frames)
        self.frames += done
        self.running = self.frames < self.last_frame
        return float(max(0, action[3]) * done)

    def observations(self) -> dict[str, Any]:
        assert self.running, "there is nothing to observe after the end of an episode"
        self.picture[:] = (self.seed + self.frames) % 256  # its own memory, every time
        possible = {"RGB_INTERLEAVED": self.picture, "INSTR": f"pick the red object {self.frames}"}
        return {name: possible[name] for name in self.names}

    def action_spec(self) -> list[dict[str, Any]]:
        return [{"max": 512, "min": -512, "name": "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME"}]

    def close(self) -> None:
        self.running, self.closed = False, True


_module = ModuleType("deepmind_lab")
_module.Lab = Lab  # type: ignore[attr-defined]
sys.modules["deepmind_lab"] = _module
