"""A run folder on two machines: what has changed in it on one is sent as pieces of files, and written on the other.

The files are listed before any is read, and checkpoints are sent last. So the metrics that have arrived reach as far as the
newest checkpoint, as in the folder of a run that was killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.runs.files import write_whole

MOST = 32 << 20  # bytes of the pieces that are sent at once


@dataclass
class Changes:
    """What one side sends to the other."""

    pieces: list[tuple[str, int, bytes]] = field(default_factory=list)
    """Path of a file below the folder, where the piece begins in it, and the piece."""
    removed: list[str] = field(default_factory=list)
    more: bool = False  # whether there was no room for all changes

    def write(self, folder: Path) -> None:
        """Write them to the other folder. Raises `OSError`."""
        for name, start, data in self.pieces:
            (path := folder / name).parent.mkdir(parents=True, exist_ok=True)
            if not start:
                write_whole(path, data)
                continue
            with open(path, "r+b") as file:
                file.seek(start)
                file.write(data)
                file.truncate()
        for name in self.removed:
            (folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                os.removedirs((folder / name).parent)


class Mirror:
    """What has changed in a folder since the last look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent: dict[str, tuple[tuple[int, int], int]] = {}
        """By path: which file it was (inode; time of its last change if it is replaced as a whole), and its bytes sent."""

    def changes(self) -> Changes:
        """Raises `OSError`."""
        found, room, names = Changes(), MOST, set[str]()
        for name in self._files():
            names.add(name)
            with suppress(FileNotFoundError), open(self._folder / name, "rb") as file:
                facts = os.fstat(file.fileno())
                grows = name.endswith((".jsonl", ".txt")) or "tfevents" in name  # it is only ever added to
                same = (facts.st_ino, 0 if grows else facts.st_mtime_ns)
                known, sent = self._sent.get(name, (None, 0))
                start = sent if known == same and sent <= facts.st_size else 0
                if known == same and start == facts.st_size:
                    continue
                if not room:
                    found.more = True
                    continue
                file.seek(start)
                data = file.read(min(room, facts.st_size - start))
                room -= len(data)
                found.more |= start + len(data) < facts.st_size
                found.pieces.append((name, start, data))
                self._sent[name] = (same, start + len(data))
        found.removed = [name for name in self._sent if name not in names]
        for name in found.removed:
            del self._sent[name]
        return found

    def all(self) -> Iterator[Changes]:
        """Changes until there are no more."""
        while (found := self.changes()).more:
            yield found
        yield found

    def _files(self) -> list[str]:
        """Paths of the files below the folder, checkpoints last; what is not finished yet (.tmp-) is left out."""
        found = [os.path.join(folder, name) for folder, _, names in os.walk(self._folder) for name in names]
        paths = [os.path.relpath(path, self._folder) for path in found]
        return sorted((path for path in paths if ".tmp-" not in path), key=lambda path: ("checkpoints" in path, path))
