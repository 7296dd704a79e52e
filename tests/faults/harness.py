"""A real `headrace train` as a process of its own, whose parts can be found, killed and stopped, and whose traces are looked
for afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.processes import leftovers

COUNTING = Path(__file__).parents[1] / "sampling" / "counting.py"
MARK = "HEADRACE_FAULT_RUN"
PATIENCE = float(os.environ.get("HEADRACE_PATIENCE", 1))
"""All limits of time are so many times longer, on a machine that others use."""

SMALL = {
    "sampling.num_workers": 2,
    "sampling.envs_per_worker": 6,
    "sampling.rollout": 7,
    "learning.batch_size": 7 * 3 * 4,
    "learning.device": "cpu",
    "learning.num_threads": 1,
    "sampling.max_restarts": 1_000_000,
    "run.log_interval": 0.2,
    "run.checkpoint_interval": 0.5,
}


def _hear_ctrl_c() -> None:
    """A shell that runs the tests in the background has them, and so their children, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Run:
    """One training run. `settings` are dotted configuration names; the run folder is `folder`."""

    launch: Callable[..., subprocess.Popen[Any]] = subprocess.Popen
    """Starts the command; another one may start it elsewhere."""

    def __init__(self, folder: Path, *, env: str, imports: Path | None = None, **settings: Any):
        self.folder, self._env = folder, env
        self.temporary = folder.with_name(folder.name + "-tmp")
        self.temporary.mkdir(exist_ok=True)
        self.mark = uuid.uuid4().hex
        self._shared_memory = set(os.listdir("/dev/shm"))
        self.environ = {**os.environ, MARK: self.mark, "TMPDIR": str(self.temporary)}
        # torch's cache of compiled kernels outlives runs on purpose
        self.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.with_name("inductor"))
        self.command = [sys.executable, "-m", "headrace.cli", "train", "--env", env, "--run.folder", str(folder)]
        self.command += ["--run.no-dashboard", "--run.no-video"]
        if imports:
            self.command += ["--import", str(imports)]
        for name, value in {**SMALL, **settings}.items():
            self.command += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else (value,))]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, stdout: int | None = None) -> Run:
        """Start it, or start it once more; `stdout`: a descriptor that gets what is printed, instead of `output`."""
        with open(self.folder.with_name(self.folder.name + ".out"), "ab") as out:
            self.process = self.launch(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out if stdout is None else stdout,
                stderr=out,
                env=self.environ,
                start_new_session=True,
                preexec_fn=_hear_ctrl_c,
            )
        return self

    def kill_and_start_again(self) -> None:
        """kill -9 of the whole run and the same command once more; nothing was left behind in between, but for what that command
        removes: whoever cleans up behind a run, its fork server, may have been killed just before."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.assert_nothing_left(but=leftovers.MARK)
        self.start()

    def __enter__(self) -> Run:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):  # it may end by itself between the look and the kill
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    @property
    def output(self) -> str:
        """Everything it printed, of all its starts."""
        out = self.folder.with_name(self.folder.name + ".out")
        return out.read_text(errors="replace") if out.exists() else ""

    @property
    def story(self) -> str:
        """What it printed last, without the lines of metrics."""
        return "\n".join(line for line in self.output.splitlines() if " | step " not in line)[-6000:]

    def pids(self, role: str = "") -> list[int]:
        """Living processes of this run, found by their environment, whoever their parent is now; `role` as in `rollout-1`."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if f"{MARK}={self.mark}".encode() not in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    continue
                name = Path(f"/proc/{entry}/comm").read_text().strip()
                state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if name.startswith(role) and state != "Z":
                found.append(int(entry))
        return found

    def fork_server(self) -> int | None:
        """The process from which all parts come; None where no part is alive at this moment."""
        assert self.process is not None
        for pid in self.pids("rollout-") + self.pids("learner"):
            with contextlib.suppress(OSError):
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if parent in self.pids() and parent != self.process.pid:
                    return parent
        return None

    def signal(self, role: str, number: int) -> int | None:
        """Send a signal to a process of that role; its pid, or None where there is none at this moment."""
        for pid in self.pids(role):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            return pid
        return None

    def wait_for(self, what: str, condition: Callable[[], Any], seconds: float = 120) -> Any:
        """Poll until `condition()` is true; an AssertionError with the run's output if that takes longer or the run ends."""
        deadline = time.monotonic() + seconds * PATIENCE
        while not (value := condition()):
            assert self.process is not None
            code = self.process.poll()
            if time.monotonic() > deadline or (code is not None and not condition()):
                raise AssertionError(f"no {what} (exit code {code}):\n{self.story}")
            time.sleep(0.02)
        return value

    def end(self, seconds: float = 90) -> int:
        """Wait for its end; the exit code."""
        assert self.process is not None
        try:
            return self.process.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"does not end:\n{self.story}") from None

    def interrupt(self, seconds: float = 90) -> None:
        """Ctrl-C: the run ends in this time, and nothing is left."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        assert self.end(seconds) == 130, self.story
        self.assert_nothing_left()

    def metrics(self, policy: str = "") -> list[dict[str, float]]:
        """Lines of metrics so far; `policy` as in `policy-1` where there are several."""
        path = self.folder / policy / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def step(self, policy: str = "") -> int:
        """The newest global_step, 0 before the first."""
        path = self.folder / policy / "metrics.jsonl"
        if not path.exists():
            return 0
        with open(path, "rb") as file:  # the end of it: a run of an hour has written much, and this is asked 50 times a second
            file.seek(max(0, path.stat().st_size - (1 << 16)))
            lines = file.read().split(b"\n")
        rows = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
        steps = [int(row["global_step"]) for row in rows if "global_step" in row]
        return steps[-1] if steps else 0

    def checkpoints(self, policy: str = "") -> list[Path]:
        """Finished checkpoints, oldest first."""
        return sorted(p for p in (self.folder / policy / "checkpoints").glob("[0-9]*") if p.is_dir() and p.suffix == "")

    def assert_nothing_left(self, but: str = "") -> None:
        """No process, no shared memory, no temporary file of this run is left; what ends by itself is waited for. `but`: folders
        that hold a file of this name may be."""
        # A fork server that was just started ends when it has imported what it had begun to: seconds, or many on a busy machine.
        deadline = time.monotonic() + 60
        while (pids := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not pids, f"left alive: {dict(zip(pids, map(_name, pids), strict=True))}"
        while (orphans := self._orphans()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not orphans, f"left in /dev/shm: {orphans}"
        found = [path for path in self.temporary.iterdir() if not (but and (path / but).exists())]
        assert not found, f"left in the temporary folder: {found}"

    def _orphans(self) -> set[str]:
        """Names in /dev/shm that came since this run was made and that no living process uses. Semaphores of multiprocessing and
        tensors of torch are other programs': a run makes none."""
        others = ("sem.mp-", "torch_") if self._env.startswith("vizdoom") else ("sem.mp-", "torch_", "ViZDoom")
        new = {name for name in os.listdir("/dev/shm") if not name.startswith(others)} - self._shared_memory
        for entry in filter(str.isdigit, os.listdir("/proc") if new else ()):
            try:
                maps = Path(f"/proc/{entry}/maps").read_text()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            new = {name for name in new if f"/dev/shm/{name}" not in maps}
        return new & set(os.listdir("/dev/shm"))


def _name(pid: int) -> str:
    """Of a process, which may end at any moment."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return "ended by now"
