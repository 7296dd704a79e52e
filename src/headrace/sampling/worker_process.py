"""What every child process of a run does before and around its work.

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
from typing import TYPE_CHECKING, Any, Literal

from headrace.config import Config, machine, seeds
from headrace.config.seeds import Use
from headrace.envs.contract import EnvGroup, EnvironmentFault, EnvSpec, OutOfBounds
from headrace.runs.explain import explain
from headrace.runs.processes import die_with_parent
from headrace.sampling.placements.base import Message, Placement
from headrace.sampling.reports import ReportWriter
from headrace.shm.run_control import PhaseClock
from headrace.shm.segment import Segment

if TYPE_CHECKING:
    from headrace.sampling.actor import Actor
    from headrace.sampling.placements.processes import ProcessPlacement

Role = Literal["rollout", "policy", "learner"]
PR_SET_NAME = 15


@dataclass
class Start:
    """What every child process is given."""

    role: Role
    index: int
    """Among the workers of its role."""
    restarts: int
    """Processes that the run had replaced when this one was started."""
    placement: ProcessPlacement
    report: ReportWriter
    """To the supervisor: `Message`s."""
    stacks: Segment
    """Gets, as text, the Python stacks of all threads when the process receives SIGUSR1 or is ended by a fault of memory."""
    argument: Any = None
    """What `main` needs beyond that."""


def run_child(main: Callable[[Start], None], start: Start) -> None:
    """Entry point of every child process: dies with its parent and reports the error that ends it."""
    die_with_parent()
    ctypes.CDLL(None).prctl(PR_SET_NAME, f"{start.role}-{start.index}".encode())  # what `top` and `ps` show
    faulthandler.enable(start.stacks.fd)
    faulthandler.register(signal.SIGUSR1, start.stacks.fd)
    if start.index > 0:  # all workers have the same environments
        warnings.simplefilter("ignore", OutOfBounds)
    try:
        with warnings_reported(lambda text: start.report.send(Message("message", text))):
            main(start)
    except EnvironmentFault as fault:
        start.report.send(Message("failed", f"{fault.frames}{fault}"))
        sys.exit(1)
    except Exception as error:
        explained = explain(error, [start.placement.config.run_folder])
        start.report.send(Message("failed", explained[0] if explained else traceback.format_exc()))
        sys.exit(1)


@contextmanager
def warnings_reported(report: Callable[[str], None]) -> Iterator[None]:
    """Warnings meant for the user (`UserWarning` and its kinds) go to `report` meanwhile, so that the run's log has them."""
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, OutOfBounds) or category is UserWarning:
            report(str(message))
        else:
            before(message, category, *place, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def make_group(config: Config, spec: EnvSpec, number: int) -> EnvGroup:
    """Group `number` of those of all workers; `spec`: of the run."""
    from headrace.envs import registry

    task = config.task_of_group(number)
    return registry.make_group(config.env, config.envs, config.envs_per_group, number=number, task=task, spec=spec)


def environment_seed(config: Config, worker: int, restarts: int = 0, version: int = 0) -> int:
    """Seed of the first environment of a worker; environment i has this + i. Neither a restarted worker nor a resumed run,
    which begins with another `version` of the weights, repeats what was seen."""
    number = (worker + machine.rank().index * config.sampling.num_workers) * config.sampling.envs_per_worker
    return seeds.environment_seed(Use.TRAINING, config.seed, restarts, version) + number


def actor_seed(config: Config, number: int, restarts: int = 0, version: int = 0) -> int:
    """Seed of an actor's sampling."""
    return seeds.random_seed(Use.ACTING, config.seed, number, restarts, version, machine.rank().index)


def matchmaking_seed(config: Config, worker: int, restarts: int = 0) -> int:
    """Seed of a worker's choice of who plays whom."""
    return seeds.random_seed(Use.MATCHES, config.seed, worker, restarts, machine.rank().index)


def make_actor(placement: Placement, policy: int, device: str, seed: int = 0, clock: PhaseClock | None = None) -> Actor:
    """An actor with its own copy of the model. Its generator may be seeded later, when the version of the weights is known."""
    from headrace.accelerator.graphs import set_up
    from headrace.sampling.actor import Actor

    set_up(device)
    algorithm, model = placement.make_member(policy)
    graphs = placement.configs[placement.memory.policies[policy].family].cuda_graphs
    return Actor(model, algorithm.act, placement.memory, policy, device, seed, clock, graphs)


def pin(config: Config, index: int) -> None:
    """One core per rollout worker where there are at least as many workers as cores; fewer are free to move."""
    cores = sorted(os.sched_getaffinity(0))
    if config.sampling.pin_workers and config.sampling.num_workers >= len(cores) > 1:
        os.sched_setaffinity(0, {cores[index % len(cores)]})
