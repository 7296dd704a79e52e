"""Evaluation beside training: child processes play whole games with the checkpoints that were due, one after the other."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic

import torch

from headrace.config import Config, ConfigError
from headrace.config.seeds import Use
from headrace.envs.contract import OutOfBounds
from headrace.envs.trust import needed_code
from headrace.evaluation.play import evaluate
from headrace.runs import checkpoint
from headrace.runs.processes import die_with_parent, forked_children_die_too, start_child
from headrace.runs.programs import end_programs
from headrace.sampling.placements.base import Message
from headrace.sampling.worker_process import warnings_reported

MOST_WAITING = 16
"""Checkpoints that may wait for their evaluation."""
NOTICE = "notice"
"""First part of what an evaluation says before its report: a text for the user."""
DRAIN_TIMEOUT = 600.0
"""Seconds that the end of a run waits for the evaluations still to be made: an episode may have no end."""
MOST_TEXT = 2000
"""Characters of the message of a failed evaluation that are shown."""
END_TIMEOUT = 2.0
"""Seconds that an evaluation may take to end after its report, before it is ended: the supervisor's process waits for it."""


class BackgroundEvaluation:
    """At most one evaluation runs at a time; those that are due meanwhile are made after it, in their order.

    The checkpoints wait in a folder of their own (as further names of the same files), where training does not delete them.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._interval = config.run.eval_interval_steps
        self._problems: list[str] = []
        self._due = dict.fromkeys(range(config.population.size), self._interval or 0)
        """By policy, the step from which on a checkpoint is to be evaluated."""
        self._folder = config.run_folder / "evaluating"
        self._waiting: deque[tuple[int, int, Path]] = deque()
        """Step, policy, checkpoint."""
        self._child: tuple[BaseProcess, Connection, Path] | None = None
        shutil.rmtree(self._folder, ignore_errors=True)  # what a run that was killed left behind

    def started(self, step: int, policy: int = 0) -> None:
        """Training goes on from this global_step: the next evaluation is due at the next multiple of the interval."""
        if self._interval is not None:
            self._due[policy] = (step // self._interval + 1) * self._interval

    def saved(self, step: int, policy: int = 0) -> str | None:
        """A checkpoint of this global_step was written; evaluate it if one is due. Returns what the user should know."""
        if self._interval is None or step < self._due[policy]:
            return None
        found = checkpoint.find(self._config.policy_folder(policy) / "checkpoints", step)
        if found is None:  # it could not be written; the next one is evaluated instead
            return None
        self._due[policy] = (step // self._interval + 1) * self._interval
        if len(self._waiting) >= MOST_WAITING:
            return f"No evaluation at step {step:,}: {MOST_WAITING} wait already. Set a longer run.eval_interval_steps"
        try:
            self._waiting.append((step, policy, _hold(found, self._folder / str(policy))))
        except OSError as error:
            return f"No evaluation at step {step:,}: {error}"
        self._start()
        return None

    def _start(self) -> None:
        """Start the next evaluation, unless one is running or none waits."""
        while self._child is None and self._waiting:
            step, policy, held = self._waiting.popleft()
            here, there = multiprocessing.Pipe(duplex=False)
            config, code = self._config, needed_code(self._config)
            arguments = (str(config.run_folder), held, config.run.eval_episodes, config.seed, code, there, policy)
            try:
                child = start_child(_evaluate, arguments, f"headrace evaluation of step {step}")
            except (OSError, EOFError, ConfigError) as error:
                here.close()
                shutil.rmtree(held, ignore_errors=True)
                self._problems.append(f"No evaluation at step {step:,}: {type(error).__name__}: {error}")
            else:
                self._child = (child, here, held)
            finally:
                there.close()

    def receive(self, report: Message) -> None:
        """Take one report of a learner: where training begins, and that a checkpoint was saved."""
        if report.kind == "start":
            self.started(report.content, report.policy)
        elif report.kind == "saved" and (problem := self.saved(report.content, report.policy)):
            self._problems.append(problem)

    def finished(self) -> Iterator[Message]:
        """What there is to report: evaluations that have ended, and problems."""
        yield from self._messages()
        if (result := self.poll()) is not None:
            yield result

    def _messages(self) -> Iterator[Message]:
        while self._problems:
            yield Message("message", self._problems.pop(0))

    def poll(self, wait: float = 0) -> Message | None:
        """An evaluation that has ended, or the message of one that failed or goes on for long, else None.

        Waits up to `wait` seconds for the one that is running; starts the next.
        """
        if self._child is None:
            return None
        child, report, _ = self._child
        if not report.poll(wait):  # an end without a report is something to receive, too
            return None
        try:
            kind, *content = report.recv()
            if kind == NOTICE:
                return Message("message", *content)
            result = Message(kind, *content)
        except (EOFError, OSError):  # it died before it could report
            child.join(END_TIMEOUT)
            result = Message("message", f"the evaluation ended with exit code {child.exitcode}")
        self._end(END_TIMEOUT)
        self._start()
        return result

    def _end(self, timeout: float) -> None:
        """Let go of the child that is there; kill it if it does not end within `timeout` seconds, as one does whose environment
        leaves threads behind, or that is stopped."""
        assert self._child is not None
        child, report, held = self._child
        child.join(timeout)
        child.kill()
        child.join(END_TIMEOUT)  # not for ever: the kernel may hold it
        end_programs({child.pid} if child.pid else ())
        report.close()
        shutil.rmtree(held, ignore_errors=True)
        self._child = None

    def drain(self) -> Iterator[Message]:
        """What `poll` gives, until every evaluation is made or `DRAIN_TIMEOUT` seconds are over."""
        end = monotonic() + DRAIN_TIMEOUT
        left = len(self._waiting) + (self._child is not None)
        if left:
            text = (
                f"Waiting for {left} evaluation{'s' if left > 1 else ''}, at most {DRAIN_TIMEOUT:.0f} s (Ctrl-C twice: without)"
            )
            yield Message("message", text)
        while self._child is not None:
            result = self.poll(wait=max(0.0, end - monotonic()))
            if result is None:
                undone = f"{len(self._waiting) + 1} of them not made in {DRAIN_TIMEOUT:.0f} s"
                yield Message("message", f"{undone}: episodes without an end need a limit, envs.max_episode_steps")
                return
            yield result
            yield from self._messages()

    def __enter__(self) -> BackgroundEvaluation:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End an evaluation that is still running, and let go of the checkpoints."""
        if self._child is not None:
            self._end(0)
        self._waiting.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


def _hold(found: Path, folder: Path) -> Path:
    """Give a checkpoint's files further names in `folder`, or copy them where the file system has no links."""
    held = folder / found.name
    try:
        shutil.copytree(found, held, copy_function=os.link)
    except (OSError, shutil.Error):
        shutil.rmtree(held, ignore_errors=True)
        shutil.copytree(found, held)
    return held


def _evaluate(
    folder: str, held: Path, episodes: int, seed: int, imports: tuple[str, ...], report: Connection, policy: int
) -> None:
    """What the child runs; it gives way to the processes that train, and ends with the run. Every checkpoint of a run plays the
    same games."""
    die_with_parent()
    forked_children_die_too()
    os.nice(10)
    torch.set_num_threads(1)

    one_at_a_time = threading.Lock()  # what waits for an environment is said by another thread

    def notice(text: str) -> None:
        with one_at_a_time:
            report.send((NOTICE, f"Evaluation of {Path(held).name}: {text}", policy))

    try:
        with warnings.catch_warnings(), warnings_reported(notice):
            warnings.simplefilter("ignore", OutOfBounds)  # training has said so
            result = evaluate(folder, episodes, which=held, number=policy, imports=imports, seed=seed, use=Use.BACKGROUND)
    except Exception as error:  # the run goes on without this evaluation, and says why
        report.send(("message", f"evaluation failed: {type(error).__name__}: {error}"[:MOST_TEXT]))
        return
    report.send(("eval", {"global_step": float(result.step), **result.metrics}, policy))
