"""The tests' processes share few cores, and what was tuned for this machine is not theirs."""

import os
import tempfile

import torch

# Threads of one process that wait for each other at every barrier lose far more than they gain when cores are busy.
torch.set_num_threads(1)

# As `headrace.envs.remote` sets it, for tests that import grpc before that: programs that are started beside it would crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

_CONFIGURATION = tempfile.TemporaryDirectory(prefix="headrace-tests-")
os.environ["XDG_CONFIG_HOME"] = _CONFIGURATION.name
