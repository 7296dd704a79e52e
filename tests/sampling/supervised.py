"""A run's memory and what its processes do, for tests of the supervisor: every way to end, to hang and to report nonsense."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from headrace import config as configs
from headrace.config import Config
from headrace.envs.core.errors import EnvironmentFault
from headrace.runs.messages import Message
from headrace.sampling.run_memory import PolicyMemory, RunMemory
from headrace.sampling.worker_process import Role, Start
from headrace.shm.inference_requests import InferenceRequests
from headrace.shm.run_control import RunControl
from headrace.shm.trajectory_store import TrajectoryField, TrajectoryStore
from headrace.shm.weight_store import WeightStore

FIELDS = {"reward": TrajectoryField((), np.dtype(np.float32))}
COUNTS = {"rollout": 3, "policy": 3, "learner": 1}


def make_memory() -> RunMemory:
    """Three rollout workers of one lane each, three policy workers, one policy of 8 slots."""
    policy = PolicyMemory(TrajectoryStore(FIELDS, 8, 4, 1), WeightStore(8))
    return RunMemory([policy], InferenceRequests(3, 1, 1, 1, [0]), RunControl(COUNTS))


@dataclass
class Placement:
    """As much of a placement as the supervisor and its processes need."""

    config: Config = field(default_factory=Config)
    memory: RunMemory = field(default_factory=make_memory)
    restarts: int = 0
    waited: float = 0.0
    role_names: dict[str, str] = field(default_factory=dict)


def make_placement(**settings: Any) -> Any:
    """A placement whose samplers need not wait for the learner."""
    placement = Placement(configs.override(Config(), **settings))
    placement.memory.control.set_ready(0)
    return placement


def behave(start: Start) -> None:
    """What every process runs. `start.argument` is the behaviour of each index's first life, by role and index: the name of one
    of the functions below. All others, and those that take the place of the dead, work."""
    name = start.argument.get((start.role, start.index), "work")
    if not name.endswith("_always") and start.restarts > 0:
        name = "work"
    globals()[name.removesuffix("_always")](start)


def beat(start: Start) -> None:
    """One heartbeat."""
    phase: dict[Role, str] = {"rollout": "step", "policy": "wait", "learner": "train"}
    start.placement.memory.control.clock(start.role, start.index).spent(phase[start.role], perf_counter())


def work(start: Start, seconds: float = 0.02) -> None:
    """Report now and then, until the run ends."""
    control = start.placement.memory.control
    start.report.send(Message("message", f"{start.role} {start.index} is process {os.getpid()}"))
    while not control.wait_for_stop(seconds):
        beat(start)
    start.report.send(Message("message", f"{start.role} {start.index} ends"))


def exit_7(start: Start) -> None:
    sys.exit(7)


def fail(start: Start) -> None:
    raise RuntimeError("the worker is broken")


def environment_fails(start: Start) -> None:
    raise EnvironmentFault("the environment is broken")


def segfault(start: Start) -> None:
    ctypes.string_at(0)


def be_killed(start: Start) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(start: Start) -> None:
    beat(start)
    time.sleep(1000)


def be_stopped(start: Start) -> None:
    beat(start)
    os.kill(os.getpid(), signal.SIGSTOP)


def never_end(start: Start) -> None:
    while True:
        beat(start)
        time.sleep(0.02)


def finish(start: Start) -> None:
    start.report.send(Message("done", {"reason": "total_steps"}))


def last_words(start: Start) -> None:
    """A learner that reports after the end of the run was asked for."""
    control = start.placement.memory.control
    while not control.wait_for_stop(0.02):
        beat(start)
    time.sleep(0.5)
    start.report.send(Message("done", {"reason": "interrupted"}))


def be_killed_at_the_end(start: Start) -> None:
    """While it writes its last checkpoint, say."""
    while not start.placement.memory.control.wait_for_stop(0.02):
        beat(start)
    be_killed(start)


def acquire_and_be_killed(start: Start) -> None:
    store = start.placement.memory.policies[0].trajectories
    store.acquire(start.index, timeout=10)
    slot = store.acquire(start.index, timeout=10)
    assert slot is not None
    store.finish(slot)
    be_killed(start)


def take_and_be_killed(start: Start) -> None:
    store = start.placement.memory.policies[0].trajectories
    while store.take(timeout=10) is None:
        pass
    be_killed(start)


def request_and_be_killed(start: Start) -> None:
    """Once a policy worker has claimed the request."""
    requests = start.placement.memory.requests
    requests.request(start.index)
    while requests._words.load(start.index) < 16:
        time.sleep(0.001)
    be_killed(start)


def claim(start: Start) -> None:
    requests, out = start.placement.memory.requests, np.zeros(8, np.int32)
    while not (n := requests.get_many(0, out, 1, 10, 0)):
        pass
    assert requests.claim(out[:n].tolist(), start.index)


def claim_and_be_killed(start: Start) -> None:
    claim(start)
    be_killed(start)


def claim_and_never_answer(start: Start) -> None:
    claim(start)
    never_end(start)


HALF = b'["message", "half of it'


def report_half_and_be_stopped(start: Start) -> None:
    os.write(start.report._pipe.fileno(), HALF)
    be_stopped(start)


def report_half_and_be_killed(start: Start) -> None:
    """While a process of its own, as an environment may have, keeps the pipe open."""
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    os.write(start.report._pipe.fileno(), HALF)
    be_killed(start)


def report_nonsense(start: Start) -> None:
    os.write(start.report._pipe.fileno(), b"no JSON\n")
    work(start)


def report_too_much(start: Start) -> None:
    text = "x" * 1000
    while not start.placement.memory.control.stopped:
        start.report.send(Message("metrics", text))
        beat(start)


def report_and_hang(*arguments: Any) -> None:
    """An evaluation whose environment does not let it end. Its first argument is the pipe for its reports."""
    arguments[0].send(Message("eval", {"global_step": 1.0}))
    time.sleep(1000)


def say_and_report(*arguments: Any) -> None:
    """An evaluation that goes on for long, and says so."""
    arguments[0].send(Message("message", "no episode has ended"))
    time.sleep(0.3)
    arguments[0].send(Message("eval", {"global_step": 1.0}))
