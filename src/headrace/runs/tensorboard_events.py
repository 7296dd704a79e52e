"""TensorBoard event files, written without a thread: each event is in the file when `add_scalars` returns.

TensorBoard's own `EventFileWriter` writes from a thread, which a fork does not copy and a kill cuts short, and it loses what does
not fit on a full disk. So only its record format is used here.
"""

from __future__ import annotations

import io
import os
import socket
import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING

from headrace.runs.files import AppendFile

_TEXT = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))


class EventFile:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads a folder's files in the order of their names.
        name = f"events.out.tfevents.{time.time_ns() // 10**6:014d}.{socket.gethostname()}.{os.getpid()}"
        self._file = AppendFile(folder / name)
        self._add(file_version="brain.Event:2")

    def hide_from(self, step: int) -> str | None:
        """Have TensorBoard hide the earlier events from that step on, in this file and those before it."""
        return self._add(step=step, session_log=SessionLog(status=SessionLog.SessionStatus.START))

    def add_scalars(self, values: dict[str, float], step: int) -> str | None:
        """Write one event with all scalars by tag. Returns what `AppendFile.append` returns."""
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        return self._add(step=step, summary=Summary(value=scalars))

    def add_text(self, tag: str, markdown: str) -> str | None:
        """Write a text that TensorBoard shows under its Text tab."""
        tensor = TensorProto(dtype=DT_STRING, string_val=[markdown.encode(errors="replace")])
        return self._add(summary=Summary(value=[Summary.Value(tag=tag, metadata=_TEXT, tensor=tensor)]))

    def _add(self, **content: Any) -> str | None:
        from tensorboard.summary.writer.record_writer import RecordWriter  # half a second; readers of metrics need none

        record = io.BytesIO()
        RecordWriter(record).write(Event(wall_time=time.time(), **content).SerializeToString())
        return self._file.append(record.getvalue())

    def close(self) -> None:
        self._file.close()
