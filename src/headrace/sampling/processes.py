"""What the child processes run: thin main functions around the rollout worker and the policy worker.

Rollout workers that hold no policy never import torch: they start fast and stay small.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from headrace.config import Config
from headrace.envs.contract import EnvironmentFault, EnvSpec, OutOfBounds
from headrace.runs.processes import die_with_parent
from headrace.sampling.exchange import LOOK_AROUND, Exchange
from headrace.shm.primitives import Segment

if TYPE_CHECKING:
    from headrace.sampling.actor import Actor

PR_SET_NAME = 15

@dataclass
class Start:
    """What every child process is given."""

    role: str
    index: int
    restarts: int
    config: Config
    spec: EnvSpec
    exchange: Exchange
    report: connection.Connection
    """To the supervisor: ("failed", traceback) or whatever the role reports."""
    stacks: Segment
    """Gets, as text, the Python stacks of all threads when the process receives SIGUSR1 or is ended by a fault of memory."""


def run_child(main: Callable[[Start], None], start: Start) -> None:
    """Entry point of every child process: dies with its parent, leaves Ctrl-C and SIGTERM to the parent, which are often sent
    to all processes of a group, and reports what it dies of."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    ctypes.CDLL(None).prctl(PR_SET_NAME, f"{start.role}-{start.index}".encode())  # what `top` and `ps` show
    faulthandler.enable(start.stacks.fd)
    faulthandler.register(signal.SIGUSR1, start.stacks.fd)
    if start.index > 0:  # one worker's word is enough
        warnings.simplefilter("ignore", OutOfBounds)
    try:
        with bounds_said(lambda text: start.report.send(("message", text))):
            main(start)
    except EnvironmentFault as fault:
        start.report.send(("failed", f"{fault.frames}{fault}"))
        sys.exit(1)
    except Exception:
        start.report.send(("failed", traceback.format_exc()))
        sys.exit(1)


@contextmanager
def bounds_said(say: Callable[[str], None]) -> Iterator[None]:
    """What environments are warned of (`OutOfBounds`) goes to `say` meanwhile, so that the run's log has it."""
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, OutOfBounds):
            say(str(message))
        else:
            before(message, category, *place, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def make_algorithm_and_model(config: Config, spec: EnvSpec) -> tuple[Any, Any]:
    """The algorithm and a freshly initialised model; the same seed gives the same weights in every process."""
    import torch

    from headrace.envs.registry import import_files
    from headrace.learning.algorithm import make_algorithm

    import_files(config.imports)
    algorithm = make_algorithm(config)
    torch.manual_seed(config.seed)
    return algorithm, algorithm.make_model(spec, config)


def make_actor(
    config: Config,
    spec: EnvSpec,
    exchange: Exchange,
    device: str,
    clock: Any = None,
    say: Callable[[str], None] = print,
) -> Actor:
    """An actor with its own copy of the model; seed its generator when the version of the weights is known."""
    from headrace.accelerator import graphs as devices
    from headrace.sampling.actor import Actor

    devices.set_up(device)
    algorithm, model = make_algorithm_and_model(config, spec)
    return Actor(model, algorithm.act, exchange, device, 0, clock, config.cuda_graphs, say)


def environment_seed(config: Config, worker: int, restarts: int = 0, version: int = 0) -> int:
    """Seed of the first environment of a worker; environment i has this + i. Neither a restarted worker nor a resumed run,
    which begins with another `version` of the weights, repeats what was seen."""
    number = worker * config.sampling.envs_per_worker
    return (config.seed * 1_000_003 + number + restarts * 500_009 + version * 15_485_863) % 2**31


def actor_seed(config: Config, number: int, restarts: int = 0, version: int = 0) -> int:
    """Seed of an actor's sampling."""
    return (config.seed * 7_919 + 104_729 * (number + 1) + restarts * 611_953 + version * 15_485_863) % 2**31


def rollout_main(start: Start) -> None:
    """A rollout worker, with (`inline`) or without a policy."""
    from headrace.envs.registry import import_files, make_group
    from headrace.sampling.rollout_worker import RolloutWorker

    config, x, s = start.config, start.exchange, start.config.sampling
    os.nice(s.worker_niceness)
    _pin(config, start.index)
    import_files(config.imports)
    act = None
    if s.placement == "inline":
        import torch

        torch.set_num_threads(1)
        actor = make_actor(config, start.spec, x, "cpu")
        act = _refreshing(actor, s.weights_period * s.num_groups)
    worker = RolloutWorker(start.index, x, lambda: make_group(config.env, config.envs, x.E), act)
    _wait_for_learner(x)
    if act is not None:
        actor.generator.manual_seed(actor_seed(config, start.index, start.restarts, x.board.version))
    try:
        alive = worker.start(environment_seed(config, start.index, start.restarts, x.board.version))
        while alive and not x.stopped:
            for g in worker.wait(LOOK_AROUND):
                if not worker.step(g):
                    alive = False
                    break
    finally:
        worker.close()


def _refreshing(actor: Actor, period: int) -> Callable[[list[int]], None]:
    """Act, looking for newer weights every `period` calls: inline actors lag behind by that much, measured as everywhere."""
    import numpy as np

    calls = 0

    def act(groups: list[int]) -> None:
        nonlocal calls
        if calls % period == 0:
            actor.refresh()
        calls += 1
        actor.act(np.array(groups))

    return act


def policy_main(start: Start) -> None:
    """A policy worker."""
    import torch

    from headrace.sampling.policy_worker import PolicyWorker

    config, x = start.config, start.exchange
    torch.set_num_threads(1)
    clock = x.clocks["policy"][start.index]
    actor = make_actor(config, start.spec, x, config.device, clock, lambda text: start.report.send(("message", text)))
    worker = PolicyWorker(start.index, x, actor, config)
    _wait_for_learner(x)
    actor.generator.manual_seed(actor_seed(config, start.index, start.restarts, x.board.version))
    while worker.serve(LOOK_AROUND):
        pass


def _wait_for_learner(exchange: Exchange) -> None:
    """Experience of weights that are about to be replaced by a checkpoint's would be wasted."""
    while not exchange.control.load(1) and not exchange.stopped:
        exchange.control.wait_nonzero(1, LOOK_AROUND)


def _pin(config: Config, index: int) -> None:
    """One core per rollout worker where there are at least as many workers as cores; fewer are free to move."""
    cores = sorted(os.sched_getaffinity(0))
    if config.sampling.pin_workers and config.sampling.num_workers >= len(cores) > 1:
        os.sched_setaffinity(0, {cores[index % len(cores)]})
