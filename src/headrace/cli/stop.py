"""headrace stop."""

from __future__ import annotations

import dataclasses
import os
import select
import signal
from pathlib import Path
from typing import IO

from headrace.cli.options import RunWord, parse
from headrace.processes.output import show
from headrace.runs.folder import NotRunning, training_process

LOOK_INTERVAL = 0.5  # seconds between two looks at the log


@dataclasses.dataclass(kw_only=True)
class Stop:
    """End a running training as Ctrl-C in its terminal would: it writes a last checkpoint, and all of its processes end, on every
    machine of a cluster. The command is given on the machine where the run trains. It waits until the run has ended, and shows
    its log meanwhile."""

    run: RunWord
    """Run folder."""


def run(arguments: list[str]) -> int:
    asked: Stop = parse(Stop, "stop", arguments)
    pid = training_process(asked.run)
    try:
        process = os.pidfd_open(pid)
        training_process(asked.run)  # that id means the same process still
        stopped, ignores_hangups = _state(pid)
        if stopped:
            show(f"process {pid} is stopped (Ctrl-Z, SIGSTOP) and ends when it goes on: kill -CONT {pid}")
        with (asked.run / "log.txt").open(errors="replace") as log:
            log.seek(0, os.SEEK_END)
            # A second SIGHUP does no harm, but `nohup` has a process ignore it.
            signal.pidfd_send_signal(process, signal.SIGTERM if ignores_hangups else signal.SIGHUP)
            while not select.select([process], [], [], LOOK_INTERVAL)[0]:
                _show_new(log)
            _show_new(log)
    except ProcessLookupError as error:
        raise NotRunning(f"no training is going on in {asked.run}: process {pid} has just ended") from error
    show(f"{asked.run}: process {pid} has ended")
    return 0


def _state(pid: int) -> tuple[bool, bool]:
    """Whether a process is stopped, and whether it ignores SIGHUP. Raises `ProcessLookupError` where there is none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError as error:
        raise ProcessLookupError from error
    status = dict(line.partition(":\t")[::2] for line in lines)
    return status["State"].startswith("T"), bool(int(status["SigIgn"], 16) >> (signal.SIGHUP - 1) & 1)


def _show_new(log: IO[str]) -> None:
    """Show what was written since the last call."""
    if text := log.read().rstrip("\n"):
        show(text)
