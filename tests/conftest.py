"""The tests' processes share few cores, and what was tuned for this machine is not theirs."""

import os
import tempfile
from collections.abc import Iterator

import pytest
import torch

from headrace.policies.registry import NETWORKS

# Threads of one process that wait for each other at every barrier lose far more than they gain when cores are busy.
torch.set_num_threads(1)

# As `headrace.envs.remote` sets it, for tests that import grpc before that: programs that are started beside it would crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

_CONFIGURATION = tempfile.TemporaryDirectory(prefix="headrace-tests-")
os.environ["XDG_CONFIG_HOME"] = _CONFIGURATION.name


@pytest.fixture(autouse=True)
def _networks_of_one_test() -> Iterator[None]:
    """What a test registers ends with it: several tests execute the same page, in an order that nobody fixed."""
    before = dict(NETWORKS)
    yield
    for name in NETWORKS.keys() - before.keys():
        if not NETWORKS[name].__module__ or not NETWORKS[name].__module__.startswith("headrace."):
            del NETWORKS[name]
