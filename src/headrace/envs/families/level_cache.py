"""A folder of compiled levels of DeepMind Lab. It does not need the package."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path


class LevelCache:
    """The `level_cache` of `deepmind_lab.Lab`: a folder of compiled levels, since compiling one can take seconds. Files are named
    by their keys and have the package's own format, so that other programs' folders can be used. Processes may share a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / (key if re.fullmatch(r"[\w-][\w.-]{0,199}", key) else sha256(key.encode()).hexdigest())

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the level with this key to `pk3_path`; return False if there is none."""
        if there := self._path(key).exists():
            shutil.copyfile(self._path(key), pk3_path)
        return there

    def write(self, key: str, pk3_path: str) -> None:
        """Store the level at `pk3_path`, atomically for other processes."""
        if not self._path(key).exists():
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".writing-") as unfinished:
                os.replace(shutil.copy(pk3_path, unfinished), self._path(key))
