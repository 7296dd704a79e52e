"""What every child process of a run does before and around its work.

Rollout workers that hold no policy never import torch: they start fast and stay small.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.config import Config, ConfigError, hardware, seeds
from headrace.config.errors import RANK_LOST, UserError
from headrace.config.seeds import Use
from headrace.envs.core.errors import EnvironmentFault, OutOfBounds
from headrace.processes.reports import ReportWriter
from headrace.runs.error_texts import explain
from headrace.runs.messages import Message
from headrace.sampling.placements.base import Placement
from headrace.shm.run_control import PhaseClock

if TYPE_CHECKING:  # it imports torch
    from headrace.sampling.actor import Actor

Role = Literal["rollout", "policy", "learner"]


@dataclass
class Start:
    """The argument of a worker's main function."""

    report: ReportWriter  # sends `Message`s to the supervisor
    role: Role
    index: int  # among the workers of its role
    restarts: int  # how many processes the run had replaced when this one was started
    placement: Placement
    argument: Any  # one further argument of `main`; the learner's is `learn`


def run_worker(report: ReportWriter, main: Callable[[Start], None], *arguments: Any) -> None:
    """Run `main` in the child process of a learner, rollout worker or policy worker, and report its error. `arguments`: the other
    fields of `Start`."""
    start = Start(report, *arguments)
    if start.index > 0:  # worker 0 warns for all: they have the same environments
        warnings.simplefilter("ignore", OutOfBounds)
    kind: Literal["failed", "fault", "refused"] = "failed"
    try:
        with warnings_reported(lambda text: start.report.send(Message("message", text))):
            main(start)
            return
    except EnvironmentFault as fault:
        text = f"{fault.frames}{fault}"
        kind = "refused" if fault.repeats else "fault"
    except Exception as error:
        explained = explain(error, [start.placement.config.run_folder])
        text = f"{getattr(error, 'frames', '')}{explained[0]}" if explained else traceback.format_exc()
        if isinstance(error, ConfigError | ImportError | SyntaxError):
            kind = "refused"
        elif isinstance(error, UserError) and error.exit_code == RANK_LOST:  # it is no error of this process
            start.report.send(Message("message", text))
            sys.exit(RANK_LOST)
    start.report.send(Message(kind, text))
    sys.exit(1)


@contextmanager
def warnings_reported(report: Callable[[str], None]) -> Iterator[None]:
    """Within the context, warnings for the user (`UserWarning`, `OutOfBounds`) go to `report`, and so to the run's log."""
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


def environment_seed(config: Config, worker: int, restarts: int = 0, version: int = 0) -> int:
    """Seed of a worker's first environment; environment i has this + i. A restarted worker and a resumed run, which begins with
    another `version` of the weights, get other seeds."""
    number = (worker + hardware.rank().index * config.sampling.num_workers) * config.sampling.envs_per_worker
    return seeds.environment_seed(Use.TRAINING, config.seed, restarts, version) + number


def actor_seed(config: Config, number: int, restarts: int = 0, version: int = 0) -> int:
    return seeds.random_seed(Use.ACTING, config.seed, number, restarts, version, hardware.rank().index)


def matchmaking_seed(config: Config, worker: int, restarts: int = 0) -> int:
    return seeds.random_seed(Use.MATCHES, config.seed, worker, restarts, hardware.rank().index)


def make_actor(placement: Placement, policy: int, device: str, seed: int = 0, clock: PhaseClock | None = None) -> Actor:
    """An actor with its own copy of the model. Its generator may be seeded later, when the version of the weights is known."""
    from headrace.accelerator.graphs import set_up
    from headrace.sampling.actor import Actor

    set_up(device)
    algorithm, model = placement.make_member(policy, device)
    graphs = placement.configs[placement.memory.policies[policy].queue].cuda_graphs
    return Actor(model, algorithm.act, placement.memory, policy, device, seed, clock, graphs)


def pin(config: Config, index: int) -> None:
    """Pin a rollout worker to one core if there are at least as many workers as cores."""
    cores = sorted(os.sched_getaffinity(0))
    if config.sampling.pin_workers and config.sampling.num_workers >= len(cores) > 1:
        os.sched_setaffinity(0, {cores[index % len(cores)]})
