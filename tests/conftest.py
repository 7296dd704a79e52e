"""The tests' processes share few cores, and what was tuned for this machine is not theirs."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headrace.processes import start

# Threads of one process that wait for each other at every barrier lose far more than they gain when cores are busy.
torch.set_num_threads(1)

# As `headrace.envs.remote` sets it, for tests that import grpc before that: programs that are started beside it would crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# The fork server of the tests' process starts learners and policy workers of many short trainings, each of which would import
# torch for seconds. Runs that tests start as programs have fork servers of their own, as users' runs have.
start.preload("headrace.train")

_CONFIGURATION = tempfile.TemporaryDirectory(prefix="headrace-tests-")
os.environ["XDG_CONFIG_HOME"] = _CONFIGURATION.name

# Programs that a shell starts in the background ignore Ctrl-C, those of `nohup` SIGHUP, and so do the programs that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="module")
def bare_fork_server() -> Iterator[None]:
    """For tests that kill the fork server again and again: the next one imports what rollout workers need."""
    before, start._preloaded[:] = start._preloaded[:], start._preloaded[:1]
    yield
    start._preloaded[:] = before


@pytest.fixture(autouse=True)
def _own_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run folder in the working directory, as `make train` leaves one, would be gone on with by a test that names the same
    environment."""
    monkeypatch.chdir(tmp_path)
