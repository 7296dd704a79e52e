"""The run folder: its lock and its files.

    config.json      the run's settings
    system.json      versions, machine, git commit, command line (never the environment's variables)
    log.txt          messages, each with its time
    population.jsonl decisions of population-based training, see `headrace.population.records`
    metrics.jsonl    one line of metrics per interval, see `headrace.runs.metrics`
    curve.jsonl      the learning curve: returns of the last episodes, several points per interval
    checkpoints/     see `headrace.runs.checkpoint`
    evaluating/      checkpoints that wait for their evaluation, see `headrace.evaluation.background`
    tensorboard/     the same metrics as TensorBoard events

Only one process may train in a folder. The kernel holds the lock (`flock`) and releases it however the process ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType

from headrace import config as config_module
from headrace.config import Config, ConfigError
from headrace.config.errors import UserError
from headrace.config.file_reading import Unreadable, read_json
from headrace.runs.changed_settings import compare
from headrace.runs.error_texts import reason
from headrace.runs.files import AppendFile, close_own, free_space, is_open, occupy_standard_streams, write_whole
from headrace.runs.system_facts import system_facts

LOCK_BYTES = 300  # most bytes of run.lock: a process id, and the name of its machine


class FolderInUse(UserError, RuntimeError):
    """Another process trains in this folder. The message has its process id."""

    exit_code = 2


class FolderUnusable(UserError, RuntimeError):
    """The folder of a run cannot be created or written. The message has the reason and the free space."""

    exit_code = 2


class RunFolder:
    """A run's folder, locked for this process until `close`.

    Raises `FolderInUse` if another process holds it, `FolderUnusable` if it cannot be made or written.
    """

    _settings = ""  # what config.json holds

    def __init__(self, path: os.PathLike[str] | str) -> None:
        with explained(Path(path)):
            self.path = Path(path).absolute()
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            try:
                self._log = AppendFile(self.path / "log.txt")
            except OSError:
                os.close(self._lock)
                raise

    def _take_lock(self) -> None:
        self._lock = _lock(self.path / "run.lock")
        self._lock_file = os.fstat(self._lock)

    @classmethod
    def open(cls, config: Config) -> tuple[RunFolder, list[str]]:
        """Lock the folder of `config`, and save the settings of the run that starts or is resumed there.

        Returns the folder and, for each setting that differs from the run's earlier settings, a line for the user.
        Raises what the constructor raises, and `ConfigError` if the run in the folder cannot be resumed with these settings or
        `config.run.must_be_new` is set.
        """
        folder = cls(config.run_folder)
        try:
            changes: list[str] = []
            begun = has_checkpoints(folder.path)
            if not folder.has_run and begun:
                raise ConfigError(
                    f"{folder.path} holds checkpoints, but not the config.json that says what network they belong to: put it "
                    "back, or choose another run.folder or run.name"
                )
            if folder.has_run:
                if config.run.must_be_new:
                    raise ConfigError(
                        f"{folder.path} already holds a run, and run.must_be_new is set: choose another run.folder or run.name"
                    )
                changes = compare(config_module.load(folder.config_path), config, folder.path, begun)
                if not begun:
                    changes.append(f"{folder.path} holds a run without a checkpoint: training starts from the beginning")
            folder._settings = config_module.to_json(config)
            with explained(folder.path):
                write_whole(folder.config_path, folder._settings)
                changes += folder._write_system()
        except BaseException:
            folder.close()
            raise
        return folder, changes

    @property
    def config_path(self) -> Path:
        """The run's settings as JSON."""
        return self.path / "config.json"

    @property
    def has_run(self) -> bool:
        """Whether the folder holds a run that was started before, in whatever state its config.json is."""
        return os.path.lexists(self.config_path)

    def check(self) -> None:
        """Check that the folder is still there and still belongs to this process.

        Raises `FolderUnusable` if it was deleted meanwhile: it is then made again, with the settings, for a last checkpoint.
        Raises `FolderInUse` if another run has begun where it was: nothing more may be written there.
        """
        lock, here = self.path / "run.lock", self._lock_file
        try:
            there = os.stat(lock)
        except FileNotFoundError:
            with explained(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                before = self._lock
                self._take_lock()
                close_own(before, here)
                if self._settings:
                    write_whole(self.config_path, self._settings)
            raise FolderUnusable(
                f"the run folder {self.path} was deleted or moved while its run was going on. It is made again for a last "
                "checkpoint, and the run ends: the same command goes on with it"
            ) from None
        except OSError:  # a network drive that is away; whatever is written meanwhile fails with its own message
            return
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            raise FolderInUse(f"another run has begun in {self.path}, which was deleted while this run was going on: it ends")
        if not is_open(self._lock, here):
            occupy_standard_streams()
            with explained(self.path):
                self._take_lock()
            warnings.warn("An environment has closed files of this process. Those of the run are opened again", stacklevel=2)

    def log(self, text: str) -> None:
        """Append `text` to log.txt, each line with the local time. On a full disk the lines are kept until there is room."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        for line in text.splitlines():
            self._log.append(f"{stamp}  {line}\n".encode(errors="surrogateescape"))  # names of files may be no text

    def _write_system(self) -> list[str]:
        """Add this process to system.json, and return what the user should know. A damaged file is kept under another name."""
        path, history, problem = self.path / "system.json", [], []
        if os.path.lexists(path):
            try:
                history = read_json(path)
                if not isinstance(history, list):
                    raise Unreadable(path, "it holds no list")
            except Unreadable as error:
                aside = path.with_name("system.json.damaged")
                os.replace(path, aside)
                history, problem = [], [f"{error}. It is kept as {aside.name}, and a new one begins"]
        write_whole(path, json.dumps([*history, system_facts()], indent=2) + "\n")
        return problem

    def close(self) -> None:
        """Close the log and release the lock. Raises `FolderUnusable` if the last lines of the log cannot be written."""
        try:
            with explained(self.path):
                self._log.close()
        finally:
            close_own(self._lock, self._lock_file)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(FolderUnusable) if error is not None else nullcontext():  # the first error is the one to show
            self.close()


def has_checkpoints(run: Path) -> bool:
    """Whether a run folder holds checkpoints, of whichever policy, in whatever state they are. One that was not finished is
    none."""
    folders = [run / "checkpoints", *run.glob("policy-*/checkpoints")]
    return any(os.path.lexists(folder) and (not folder.is_dir() or any(folder.glob("[0-9]*-step-*"))) for folder in folders)


def _lock(path: Path) -> int:
    """Lock `path` for this process. The file has its id and host, for `training_process` and for a second process's error."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid, host = _written(os.pread(fd, LOCK_BYTES, 0))
        os.close(fd)
        where = f" of {host}" if host not in ("", platform.node()) else ""
        raise FolderInUse(
            f"{path.parent} is in use by process {pid or 'unknown'}{where}: two runs in one folder would overwrite each other. "
            "Wait for it, stop it, or choose another run.folder, run.name or seed"
        ) from None
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {platform.node()}\n".encode()[:LOCK_BYTES], 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def _written(lock: bytes) -> tuple[int, str]:
    """Process id and host that a lock file names; 0 for what is no id."""
    pid, _, host = lock[:LOCK_BYTES].decode(errors="replace").strip().partition(" ")
    return int(pid) if pid.isascii() and pid.isdigit() else 0, host


class NotRunning(UserError, RuntimeError):
    """No process of this machine that can be asked trains in a run folder; the message says what is known."""

    exit_code = 2


def training_process(run: Path) -> int:
    """The id of the process that trains in a run folder. It is on this machine, and has the folder's lock file open.

    Raises `NotRunning` where there is none: the run has ended, or is on another machine, or nobody has ever trained there.
    """
    lock = run / "run.lock"
    try:
        here = os.stat(lock)
        pid, host = _written(lock.read_bytes())
    except OSError as error:
        raise NotRunning(f"{run} is no run folder: {reason(error)} (run.lock)") from error
    try:
        open_files = list(Path(f"/proc/{pid}/fd").iterdir()) if pid else []
        for file in open_files:
            with suppress(FileNotFoundError):  # it was closed meanwhile
                if os.path.samestat(os.stat(file), here):
                    return pid
    except PermissionError as error:
        raise NotRunning(f"process {pid}, which has trained in {run}, belongs to another user") from error
    except (FileNotFoundError, ProcessLookupError):
        pass
    if host not in ("", platform.node()):
        raise NotRunning(f"{run} was last trained in by process {pid} of {host}: use this command on that machine")
    if not pid:
        raise NotRunning(f"{lock} is damaged: it does not say which process trains there")
    raise NotRunning(f"no training is going on in {run}: process {pid} has ended. log.txt there says why")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an `OSError` into `FolderUnusable`, which names the folder and its free space."""
    try:
        yield
    except OSError as error:
        file = f" ({Path(error.filename).name})" if error.filename and Path(error.filename) != path else ""
        raise FolderUnusable(
            f"the run folder {path} cannot be used: {reason(error)}{file} ({free_space(path)} there). "
            "Choose another run.folder, or make room"
        ) from error
