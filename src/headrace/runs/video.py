"""Writing videos."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from headrace.config import ConfigError


class VideoWriter:
    """An mp4 file (H.264) that is written frame by frame; a context manager.

    The file appears under its name when it is complete. Raises `ConfigError` if the `video` extra is not installed.
    """

    def __init__(self, path: os.PathLike[str] | str, fps: float = 30.0) -> None:
        try:
            import imageio_ffmpeg
        except ModuleNotFoundError as error:
            raise ConfigError('writing videos needs a package that is not installed: pip install "headrace[video]"') from error
        self.path, self.fps = Path(path), fps
        self._aside = self.path.with_name(f".tmp-{self.path.stem}.mp4")
        self._ffmpeg = imageio_ffmpeg
        self._writer: Any = None
        self._shape: tuple[int, ...] = ()

    def add(self, frame: np.ndarray) -> None:
        """Append one frame, uint8 [H, W, 3]. Raises `ValueError` if its shape is not that of the first."""
        if frame.ndim != 3 or frame.shape[-1] != 3 or frame.dtype != np.uint8 or (self._shape and frame.shape != self._shape):
            expected = self._shape or "[H, W, 3]"
            raise ValueError(f"a video frame must be uint8 {expected}, not {frame.dtype} {frame.shape}")
        if self._writer is None:
            self._shape = frame.shape
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Every player can show yuv420p, which needs an even width and height.
            even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
            self._writer = self._ffmpeg.write_frames(
                str(self._aside),
                frame.shape[1::-1],
                fps=self.fps,
                macro_block_size=1,
                output_params=even,
                ffmpeg_log_level="error",
            )
            self._writer.send(None)
        self._writer.send(np.ascontiguousarray(frame))

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()
            if error is None:
                os.replace(self._aside, self.path)
            else:
                self._aside.unlink(missing_ok=True)
