"""Writing videos."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from headrace.config import ConfigError
from headrace.config.errors import UserError
from headrace.config.reading import shortened


class VideoFailed(UserError):
    """The program that writes the video failed; the message has what it said."""


class VideoWriter:
    """An mp4 file (H.264) that is written frame by frame; a context manager.

    The file appears under its name when it is complete. Raises `ConfigError` if the `video` extra is not installed, and
    `VideoFailed` from `add` and at the end of the context.
    """

    def __init__(self, path: os.PathLike[str] | str, fps: float = 30.0) -> None:
        try:
            import imageio_ffmpeg
        except ModuleNotFoundError as error:
            raise ConfigError('writing videos needs a package that is not installed: pip install "headrace[video]"') from error
        self.path, self.fps = Path(path), fps
        self._aside = self.path.with_name(f".tmp-{self.path.stem}.mp4")
        self._program: str = imageio_ffmpeg.get_ffmpeg_exe()
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes]
        """A file without a name that gets ffmpeg's messages: a pipe could fill up."""
        self._shape: tuple[int, ...] = ()

    def add(self, frame: np.ndarray) -> None:
        """Append one frame, uint8 [H, W, 3]. Raises `ValueError` if its shape is not that of the first."""
        if frame.ndim != 3 or frame.shape[-1] != 3 or frame.dtype != np.uint8 or (self._shape and frame.shape != self._shape):
            expected = self._shape or "[H, W, 3]"
            raise ValueError(f"a video frame must be uint8 {expected}, not {frame.dtype} {frame.shape}")
        if self._process is None:
            self._shape = frame.shape
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._process = self._start(frame.shape[1], frame.shape[0])
        assert self._process.stdin
        try:
            self._process.stdin.write(np.ascontiguousarray(frame).data)
        except BrokenPipeError:
            raise self._failed(self._process.wait()) from None

    def _start(self, width: int, height: int) -> subprocess.Popen[bytes]:
        given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(self.fps), "-i", "-"]
        # Every player can show yuv420p, which needs an even width and height.
        wanted = ["-an", "-vcodec", "libx264", "-pix_fmt", "yuv420p", "-crf", "25", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `__exit__`)
        # A process group of its own: Ctrl-C is for this process to answer.
        return subprocess.Popen(
            [self._program, "-y", "-v", "error", *given, *wanted, str(self._aside)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._said, process_group=0,
        )  # fmt: skip

    def _failed(self, code: int) -> VideoFailed:
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()
        return VideoFailed(shortened(f"the video {self.path} cannot be written: ffmpeg ended with exit code {code}: {said}"))

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is None:
            return
        assert self._process.stdin
        try:
            if error is not None:
                self._process.kill()
            with suppress(BrokenPipeError):  # it has ended; why is told below
                self._process.stdin.close()  # what is buffered goes to it
            code = self._process.wait()
            if error is None and code != 0:
                raise self._failed(code)
            if error is None:
                os.replace(self._aside, self.path)
        finally:
            if self._process.poll() is None:  # an exception while it was waited for, as Ctrl-C raises one
                self._process.kill()
                self._process.wait()
            self._said.close()
            self._aside.unlink(missing_ok=True)
