"""Starts the ranks of a run on this machine, and starts them again when one was killed.

`torchrun` does the same across machines. This is what `--learning.num-devices` needs on one: the ranks find each other through a
file in memory, talk over loopback only, get their own share of the cores, and are given every signal that this process is given.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from functools import partial
from itertools import count
from multiprocessing import util
from typing import NoReturn

from headrace.config import Config, ConfigError, hardware
from headrace.config.errors import RANK_LOST
from headrace.processes.failures import Failures
from headrace.processes.interrupt import handled_signals, stops_with_this

GRACE = 20.0  # seconds that the other ranks have to end by themselves after one has failed, or rank 0 has ended
PR_SET_PDEATHSIG = 1


def needs_launch(config: Config) -> bool:
    """Whether this process should start ranks instead of being one. Raises `ConfigError` where `torchrun` started another
    number of them."""
    wanted, here = config.learning.num_devices, hardware.rank()
    if here.size > 1 and wanted not in (1, here.size):
        raise ConfigError(f"learning.num_devices is {wanted}, but torchrun started {here.size} ranks; leave the setting out")
    return here.size == 1 and wanted > 1


def launch(arguments: list[str], config: Config) -> int:
    """Run `headrace train` with these arguments once per device; returns the exit code of the first rank, or of one that
    failed."""
    failures, began = Failures(config.sampling), {hardware.RUN_BEGAN: str(time.perf_counter())}
    for start in count():
        # The run exists when its ranks start again, and `run.max_minutes` goes on.
        again = ["--run.no-must-be-new"] if start else []
        codes, asked = _run_ranks([*arguments, *again], config.learning.num_devices, began if start else {})
        killed = any(code < 0 or code == RANK_LOST for code in codes)
        if asked or not killed:
            break
        if too_many := failures.add(time.monotonic()):
            print(f"headrace: {_ends(codes)}, {too_many}", flush=True)
            break
        print(f"headrace: {_ends(codes)}; all ranks start again from the newest checkpoint (restart {start + 1})", flush=True)
    return next((code for code in codes if code > 0), 1 if killed and not asked else codes[0])


def _run_ranks(arguments: list[str], size: int, variables: Mapping[str, str]) -> tuple[list[int], bool]:
    """Start all ranks, with these environment variables, and wait for them: their exit codes, and whether a signal had asked for
    the end."""
    ranks: list[subprocess.Popen[bytes]] = []
    # A file without a name: however this process ends, nothing of it stays.
    fd = os.memfd_create("headrace-ranks")
    store = f"/proc/{os.getpid()}/fd/{fd}"
    asked: int | None = None

    def forward(number: int, frame: object) -> None:
        nonlocal asked
        asked = number
        for process in ranks:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    before = [(number, signal.signal(number, forward)) for number in handled_signals()]
    try:
        for index in range(size):
            sizes = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            environment = {"RANK": index, "LOCAL_RANK": index, **sizes, hardware.RANK_STORE: store, **variables}
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-m", "headrace.cli", "train", *arguments],
                    env={"GLOO_SOCKET_IFNAME": "lo", **os.environ, **{name: str(value) for name, value in environment.items()}},
                    stdout=None if index == 0 else subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C reaches them once, through `forward`
                    preexec_fn=partial(die_with_starter, os.getpid()),
                )
            )
            stops_with_this(ranks[-1])
            if asked is not None:  # before this rank was there
                ranks[-1].send_signal(asked)
        deadline: float | None = None
        while None in (codes := [process.poll() for process in ranks]):
            # Rank 0 may draw, film and evaluate for long when the others are done.
            if deadline is None and (codes[0] is not None or any(codes)):
                deadline = time.monotonic() + GRACE
            if deadline is not None and time.monotonic() > deadline and not asked:
                break
            time.sleep(0.1)
        return [_end(process) for process in ranks], asked is not None
    finally:
        for process in ranks:
            process.kill()
        for number, old in before:
            signal.signal(number, old)
        os.close(fd)


def _end(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a rank; one that is left without the others is ended, which is no failure of its own."""
    if process.poll() is None:
        process.kill()
        process.wait()
        return 0
    return process.returncode


def _ends(codes: list[int]) -> str:
    return ", ".join(
        f"rank {rank} was ended by {signal.Signals(-code).name}" if code < 0 else f"rank {rank} lost another process"
        for rank, code in enumerate(codes)
        if code < 0 or code == RANK_LOST
    )


def die_with_starter(parent: int) -> None:
    """For `preexec_fn`: have the kernel kill this process when the thread of the process `parent` that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def end_rank(run: Callable[[], int]) -> NoReturn:
    """Run this rank's command, and end the process with its exit code."""
    try:
        code = run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    # What torch's process group leaves can abort the process while Python shuts down, which would look like a kill.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def settings_of_rank(config: Config) -> AbstractContextManager[Config]:
    """The settings of this rank: those of the run for the first, see `settings_beside_first` for the others. Raises `ConfigError`
    where ranks are asked for that nobody has started."""
    if needs_launch(config):
        wanted = config.learning.num_devices
        raise ConfigError(
            f"learning.num_devices is {wanted}, and this process would learn alone: headrace.train does not start ranks. Start "
            f"them by the command headrace train --learning.num-devices {wanted}, or by torchrun; or set it to 1"
        )
    return nullcontext(config) if hardware.rank().index == 0 else settings_beside_first(config)


@contextmanager
def settings_beside_first(config: Config) -> Iterator[Config]:
    """The run folder and the terminal are rank 0's. The others have a temporary folder, and neither dashboard nor videos nor
    evaluations; their errors are shown."""
    # Within the folder that the fork server removes if this rank is killed.
    with tempfile.TemporaryDirectory(prefix="headrace-rank-", dir=util.get_temp_dir()) as folder:
        run = dataclasses.replace(
            config.run, folder=folder, must_be_new=False, dashboard=False, video=False, eval_interval_steps=None, track=False
        )
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            yield dataclasses.replace(config, run=run)
