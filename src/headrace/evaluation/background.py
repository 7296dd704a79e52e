"""Evaluation during training: child processes play whole games with checkpoints, one checkpoint at a time."""

from __future__ import annotations

import os
import shutil
import warnings
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import torch

from headrace.config import Config, ConfigError
from headrace.config.seeds import Use
from headrace.envs.core.errors import OutOfBounds
from headrace.envs.core.imports import needed_code
from headrace.evaluation.evaluate import evaluate
from headrace.processes.child import Child
from headrace.processes.reports import ReportWriter
from headrace.runs import checkpoint
from headrace.runs.messages import Message
from headrace.sampling.worker_process import warnings_reported

MOST_WAITING = 16  # checkpoints that may wait for their evaluation
DRAIN_TIMEOUT = 600.0  # seconds that the end of a run waits for the evaluations still to be made: an episode may have no end
MOST_TEXT = 2000  # characters of the message of a failed evaluation that are shown
END_TIMEOUT = 2.0
"""Seconds that an evaluation may take to end after its report, before it is killed: the main process waits for it."""


class BackgroundEvaluation:
    """Evaluates checkpoints in their order, at most one at a time.

    Waiting checkpoints are hard-linked into a separate folder, where training does not delete them.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._interval = config.run.eval_interval_steps
        self._problems: list[str] = []
        self._due = dict.fromkeys(range(config.population.size), self._interval or 0)
        """By policy, the step from which on a checkpoint is to be evaluated."""
        self._folder = config.run_folder / "evaluating"
        self._waiting: deque[tuple[int, int, Path]] = deque()  # step, policy, checkpoint
        self._child: Child | None = None  # the evaluation that is running
        self._held = Path()  # the checkpoint that it evaluates
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
        self.started(step, policy)
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
            step, policy, self._held = self._waiting.popleft()
            config, code = self._config, needed_code(self._config)
            arguments = (str(config.run_folder), self._held, config.run.eval_episodes, config.seed, code, policy)
            try:
                self._child = Child(_evaluate, arguments, "evaluation")
            except (OSError, EOFError, ConfigError) as error:
                shutil.rmtree(self._held, ignore_errors=True)
                self._problems.append(f"No evaluation at step {step:,}: {type(error).__name__}: {error}")

    def receive(self, report: Message) -> None:
        """Take one report of a learner: where training begins, and that a checkpoint was saved."""
        if report.kind == "start":
            self.started(report.content, report.policy)
        elif report.kind == "saved" and (problem := self.saved(report.content, report.policy)):
            self._problems.append(problem)

    def messages(self, timeout: float = 0.0) -> Iterator[Message]:
        """Yields results and problems of evaluations. Waits up to `timeout` seconds for the running one; starts the next."""
        if self._child is not None:
            yield from self._read(self._child, timeout)
        while self._problems:
            yield Message("message", self._problems.pop(0))

    def _read(self, child: Child, timeout: float) -> Iterator[Message]:
        silent = child.reports.ended or child.gone  # the child has ended; only what it had sent is left to read
        reports = [Message(*report) for report in child.receive(timeout)]
        for report in reports:
            yield report._replace(kind="message") if report.kind == "failed" else report
        if any(report.kind != "message" for report in reports):
            self._end(END_TIMEOUT)
        elif silent and not reports:
            child.wait(END_TIMEOUT)
            yield Message("message", f"Evaluation of {self._held.name} ended without a result ({child.end_reason()})")
            self._end(0)
        self._start()

    def _end(self, timeout: float) -> None:
        """Wait `timeout` seconds for the running evaluation to end, then kill it: its environment may have left threads behind,
        or the process may be stopped."""
        assert self._child is not None
        self._child.end(timeout)
        shutil.rmtree(self._held, ignore_errors=True)
        self._child = None

    def drain(self) -> Iterator[Message]:
        """Yields `messages` until all evaluations are made or `DRAIN_TIMEOUT` seconds have passed."""
        end = monotonic() + DRAIN_TIMEOUT
        if left := len(self._waiting) + (self._child is not None):
            number = f"{left} evaluation{'s' if left > 1 else ''}"
            yield Message("message", f"Waiting for {number}, at most {DRAIN_TIMEOUT:.0f} s (Ctrl-C twice: without)")
        while self._child is not None and monotonic() < end:
            yield from self.messages(end - monotonic())
        if self._child is not None:
            undone = f"{len(self._waiting) + 1} of them not made in {DRAIN_TIMEOUT:.0f} s"
            yield Message("message", f"{undone}: episodes without an end need a limit, envs.max_episode_steps")

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
    """Give a checkpoint's files further names in `folder`, or copy them where the file system has no links. Without attached
    folders: a replay may be large, and evaluations read the model alone."""
    held = folder / found.name

    def attached(at: str, names: list[str]) -> list[str]:
        return [name for name in names if os.path.isdir(os.path.join(at, name))]

    try:
        shutil.copytree(found, held, copy_function=os.link, ignore=attached)
    except (OSError, shutil.Error):
        shutil.rmtree(held, ignore_errors=True)
        shutil.copytree(found, held, ignore=attached)
    return held


def _evaluate(
    pipe: ReportWriter, folder: str, held: Path, episodes: int, seed: int, imports: tuple[str, ...], policy: int
) -> None:
    """Runs in the child, with a lower priority than training. Every checkpoint of a run plays the same games."""
    os.nice(10)
    torch.set_num_threads(1)

    name = f"Evaluation of {Path(held).name}"

    def notice(text: str) -> None:
        pipe.send(Message("message", f"{name}: {text}", policy))

    try:
        with warnings.catch_warnings(), warnings_reported(notice):
            warnings.simplefilter("ignore", OutOfBounds)  # training has said so
            result = evaluate(folder, episodes, which=held, number=policy, imports=imports, seed=seed, use=Use.BACKGROUND)
    except Exception as error:  # the run goes on without this evaluation, and says why
        pipe.send(Message("failed", f"{name} failed: {type(error).__name__}: {error}"[:MOST_TEXT]))
        return
    pipe.send(Message("eval", {"global_step": float(result.step), **result.metrics}, policy))
