"""Many `headrace` commands, each in a process of its own that has imported everything already: a new one would need seconds.

A process imports the package and then forks for every command. A command runs in a session of its own, is killed with everything
it started after a deadline, and is looked after for processes that it left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "HEADRACE_COMMAND"


@dataclass
class Ended:
    """How a command ended."""

    code: int | None
    """Its exit code, negative for a signal; None: it did not end and was killed."""
    output: str
    """Standard output and standard error together."""
    seconds: float
    left: list[str]
    """Names of processes that were still there a moment after its end."""

    @property
    def problem(self) -> str:
        """What no command may do, in one word; empty where it did nothing of the kind."""
        if self.code is None:
            return "hang"
        if "Traceback (most recent call last)" in self.output:
            return "traceback"
        if self.code < 0:
            return f"signal {-self.code}"
        if self.left:
            return "processes left"
        return ""

    @property
    def message(self) -> str:
        """The text of the error it ended with; empty without one."""
        return self.output.rpartition("headrace: ")[2].strip() if "headrace: " in self.output else ""


class Commands:
    """`run` runs commands one after the other; a context manager. `environ`: variables beside those of this process."""

    def __init__(self, **environ: str) -> None:
        self._environ = {**os.environ, **environ}

    def __enter__(self) -> Commands:
        self._scratch = tempfile.TemporaryDirectory(prefix="headrace-commands-")
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environ, text=True
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.communicate()
        self._scratch.cleanup()

    def run(
        self,
        arguments: list[str],
        folder: Path,
        deadline: float = 150.0,
        interrupt: float | None = None,
        limits: dict[str, int] | None = None,
        environ: dict[str, str] | None = None,
    ) -> Ended:
        """Run `headrace` with these arguments in `folder`.

        `interrupt`: seconds after which it gets a SIGINT. `limits`: soft and hard resource limits by name, e.g. {"NOFILE": 20}.
        """
        out = Path(self._scratch.name, "out")
        out.write_bytes(b"")
        request = {"arguments": arguments, "folder": str(folder), "deadline": deadline, "out": str(out), "interrupt": interrupt}
        request |= {"limits": limits or {}, "environ": environ or {}}
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return Ended(output=out.read_text(errors="replace"), **answer)


# -- the process that forks -------------------------------------------------------------------------------------------


def serve() -> None:
    """Import, and run the commands that standard input asks for."""
    import torch

    import headrace.cli
    import headrace.envs.families.gym
    import headrace.evaluation.evaluate
    import headrace.evaluation.video
    import headrace.runs.plots
    import headrace.train  # noqa: F401

    torch.set_num_threads(1)  # no threads before a fork
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    mark = uuid.uuid4().hex
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _command(request, mark)
    code: int | None = None
    interrupted = request["interrupt"] is None
    while time.monotonic() < began + request["deadline"]:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        if not interrupted and time.monotonic() > began + request["interrupt"]:
            interrupted = True
            os.kill(child, signal.SIGINT)
        time.sleep(0.01)
    seconds = time.monotonic() - began
    if code is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    until = time.monotonic() + 60  # a fork server ends when it has imported what it had begun to
    while (left := _marked(mark)) and time.monotonic() < until:
        time.sleep(0.02)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):  # it may end by itself between the look and the kill
            os.kill(pid, signal.SIGKILL)
    return {"code": code, "seconds": round(seconds, 2), "left": sorted(left.values())}


def _marked(mark: str) -> dict[int, str]:
    """Names of living processes with this mark in their environment, by pid."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"{MARK}={mark}".encode() not in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                continue
            if Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found[int(entry)] = Path(f"/proc/{entry}/comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def _command(request: dict[str, Any], mark: str) -> None:
    """What the forked process does: the same as a process started with these arguments."""
    import resource

    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        null, out = os.open(os.devnull, os.O_RDONLY), os.open(request["out"], os.O_WRONLY | os.O_APPEND)
        for number, fd in ((0, null), (1, out), (2, out)):
            os.dup2(fd, number)
        os.environ |= request["environ"] | {MARK: mark}
        os.chdir(request["folder"])
        for name, limit in request["limits"].items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
        sys.argv = ["headrace", *request["arguments"]]
        from headrace.cli import main

        code = main()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        code = 0 if stop.code is None else stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def paragraph(text: str) -> str:
    """`text` with the numbers of this run and folders taken out, to compare and count messages."""
    return re.sub(r"/\S*/", "", re.sub(r"\d[\d,.]*", "N", text))


if __name__ == "__main__":
    serve()
