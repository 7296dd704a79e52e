"""Writing videos."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from headrace.config.errors import ConfigError, UserError, package
from headrace.config.file_reading import shortened
from headrace.runs.files import replaceable


class VideoFailed(UserError):
    """The program that writes the video failed; the message has what it said."""


class VideoWriter:
    """An mp4 file (H.264) that is written frame by frame; a context manager.

    The file appears under its name when it is complete. Raises `ConfigError` if the `video` extra is not installed, the name does
    not end with .mp4, or something is there that is no regular file; `VideoFailed` from `add` and at the end of the context.
    """

    # `imageio_ffmpeg.write_frames` drives ffmpeg too, but ignores its exit code and leaves its messages on the terminal.
    _process: subprocess.Popen[bytes] | None = None
    _messages: IO[bytes]  # a file without a name that gets ffmpeg's messages: a pipe could fill up
    _shape: tuple[int, ...] = ()

    def __init__(self, path: os.PathLike[str] | str, fps: float = 30.0) -> None:
        imageio_ffmpeg = package("imageio_ffmpeg", "video", "writing videos needs a package that is not installed")
        try:
            self.path, self.fps = replaceable(Path(path)), fps
        except OSError as error:
            raise ConfigError(f"the video {path} cannot be written: {error.strerror}") from error
        if Path(path).suffix.lower() != ".mp4":
            raise ConfigError(f"the video {path} would be an mp4 file: its name must end with .mp4")
        self._unfinished = self.path.with_name(f".tmp-{self.path.stem}.mp4")
        self._program: str = imageio_ffmpeg.get_ffmpeg_exe()

    def add(self, frame: np.ndarray) -> None:
        """Append one frame, uint8 [H, W, 3]. Raises `ValueError` if its shape is not that of the first."""
        if frame.ndim != 3 or frame.shape[-1] != 3 or frame.dtype != np.uint8 or (self._shape and frame.shape != self._shape):
            expected = self._shape or "[H, W, 3]"
            raise ValueError(f"a video frame must be uint8 {expected}, not {frame.dtype} {frame.shape}")
        if self._process is None:
            self._shape = frame.shape
            self._process = self._start(frame.shape[1], frame.shape[0])
        assert self._process.stdin
        try:
            self._process.stdin.write(np.ascontiguousarray(frame).data)
        except BrokenPipeError:
            raise self._failure(self._process.wait()) from None

    def _start(self, width: int, height: int) -> subprocess.Popen[bytes]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(self.fps), "-i", "-"]
        # Every player can show yuv420p, which needs an even width and height.
        wanted = ["-an", "-vcodec", "libx264", "-pix_fmt", "yuv420p", "-crf", "25", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `__exit__`)
        # A process group of its own: Ctrl-C is for this process to answer.
        return subprocess.Popen(
            [self._program, "-y", "-v", "error", *given, *wanted, str(self._unfinished)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._messages, process_group=0,
        )  # fmt: skip

    def _failure(self, code: int) -> VideoFailed:
        self._messages.seek(0)
        text = self._messages.read().decode(errors="replace").strip()
        return VideoFailed(shortened(f"the video {self.path} cannot be written: ffmpeg ended with exit code {code}: {text}"))

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is None:
            return
        try:
            if error is None:
                self._process.communicate()  # sends what is buffered, and waits
                if self._process.returncode:
                    raise self._failure(self._process.returncode)
                os.replace(self._unfinished, self.path)
        finally:
            self._process.kill()  # after an error, or Ctrl-C while it was waited for
            self._process.communicate()
            self._messages.close()
            self._unfinished.unlink(missing_ok=True)
