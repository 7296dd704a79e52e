"""Trains the runs of a plan: each a `headrace train` of its own, a few at a time, until all have ended or the user stops them.

A run that has ended by itself has a file `ended.json` in its folder. Every other run is started with the same command and resumed
from its newest checkpoint, so an experiment that was killed loses at most what each run had not saved.
"""

from __future__ import annotations

import json
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.config.errors import UserError
from headrace.config.file_reading import Unreadable
from headrace.experiments.places import LOST, OUTPUT, Places, Training
from headrace.experiments.plan import Plan, PlannedRun
from headrace.experiments.records import minutes_of, newest, read
from headrace.processes.interrupt import Interrupt, interrupts
from headrace.runs.error_texts import reason
from headrace.runs.files import write_whole
from headrace.runs.folder import RunFolder

RUNS = "runs"  # the folder of the runs in that of the experiment
ENDED = "ended.json"  # in the folder of a run that has ended by itself
MOST_LOST = 5  # machines that a run may lose before it counts as failed: perhaps it ends them, by its use of memory
POLL = 0.25  # seconds between two looks at the runs
LAST_LINES = 12  # lines of output of a run that failed which are shown


@dataclass
class Progress:
    """State and metrics of one run of the plan."""

    run: PlannedRun
    folder: Path
    state: str = "waiting"  # waiting, running, done, failed or stopped
    metrics: dict[str, float] = field(default_factory=dict)  # the newest line of metrics
    seconds: float = 0.0  # for which it ran now
    before: float = 0.0  # minutes for which it was trained before
    started: float = 0.0
    training: Training | None = None  # while it is running
    exit_code: int | None = None  # of its last end. None: it has not ended.
    problem: str = ""  # why it could not be started
    lost: int = 0  # machines on which it ran that were lost

    @property
    def minutes(self) -> float:
        """For which it has run, now and before."""
        return self.before + self.seconds / 60

    def look(self) -> None:
        self.metrics = newest(self.folder) or self.metrics


class Runner:
    """Runs a plan in an experiment's folder: as many runs at a time as there are places, which several runners may share.

    Raises `ConfigError` where the folder holds another experiment, `FolderInUse` while it is being run.
    """

    def __init__(self, plan: Plan, folder: Path, places: Places):
        self.plan, self.folder, self._places = plan, folder, places
        self.stopped = False  # whether somebody has asked `run` to end
        self.runs = [Progress(run, folder / RUNS / run.name) for run in plan.runs()]
        for one in self.runs:
            if (one.folder / ENDED).exists():
                one.state = "done"
            one.look()

    def run(self, show: Callable[[list[Progress]], None]) -> bool:
        """Run what is left; whether every run has ended by itself. The first Ctrl-C stops the running ones with a checkpoint.
        `show` is called with all runs, four times a second."""
        with interrupts(lambda: None) as interrupt:
            for _ in self.steps(interrupt):
                show(self.runs)
                time.sleep(POLL)
        self.stopped = interrupt.requested
        return self.complete

    def steps(self, interrupt: Interrupt) -> Generator[None]:
        """Run what is left, and yield between two looks at the runs. Runs that go on when it is closed are killed."""
        self.plan.check_extends(self.folder)
        with RunFolder(self.folder) as log:
            self.plan.write(self.folder)
            log.log(f"{sum(one.state == 'done' for one in self.runs)} of {len(self.runs)} runs are done")
            try:
                yield from self._steps(interrupt, log)
            finally:
                for one in self._running:
                    self._places.end(one.training)

    @property
    def complete(self) -> bool:
        """Whether every run has ended by itself."""
        return all(one.state == "done" for one in self.runs)

    @property
    def _running(self) -> list[Progress]:
        return [one for one in self.runs if one.state == "running"]

    def _steps(self, interrupt: Interrupt, log: RunFolder) -> Iterator[None]:
        waiting = deque(one for one in self.runs if one.state == "waiting")
        asked = False
        while self._running or (waiting and not interrupt.requested):
            if interrupt.requested and not asked:
                asked = True
                for one in self._running:
                    one.training.send_signal(signal.SIGINT)  # type: ignore[union-attr]
            while waiting and self._places.free and not interrupt.requested:
                self._start(one := waiting.popleft())
                log.log(f"{f'cannot begin ({one.problem})' if one.problem else 'begins'}: {one.run.name}")
            for one in self._running:
                code = one.training.poll()  # type: ignore[union-attr]
                one.look()
                one.seconds = time.monotonic() - one.started
                if code is not None:
                    self._end(one, code, asked)
                    log.log(f"{one.state} ({'its machine is lost' if code == LOST else f'exit code {code}'}): {one.run.name}")
                    if one.state == "waiting":
                        waiting.appendleft(one)
            for text in self._places.look():
                log.log(text)
            yield

    def _start(self, one: Progress) -> None:
        one.problem = ""
        try:
            one.folder.mkdir(parents=True, exist_ok=True)
            one.before, one.seconds = minutes_of(one.folder), 0.0
            one.training = self._places.start(self.plan.command(one.run, one.before), one.folder)
        except OSError as error:  # on a full disk, say; the runs that go on are to end with a checkpoint
            one.state, one.problem = "failed", reason(error)
            return
        one.state, one.started = "running", time.monotonic()

    def _end(self, one: Progress, code: int, asked: bool) -> None:
        self._places.end(one.training)
        one.training, one.state, one.exit_code = None, "stopped" if asked else "failed", code
        if code == LOST and not asked:
            one.lost += 1
            one.state = "waiting" if one.lost <= MOST_LOST else "failed"
        if code == 0:
            one.state = "done"
            content = {"exit_code": code, "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "values": dict(one.run.values)}
            with suppress(OSError):  # on a full disk; the same command trains it once more, which ends at once
                write_whole(one.folder / ENDED, json.dumps(content) + "\n")

    def unreadable(self) -> list[str]:
        """For each run that has ended and that a report leaves out, why."""
        texts = []
        for one in self.runs:
            if one.state == "done":
                try:
                    read(one.folder)
                except (UserError, Unreadable, OSError) as error:
                    advice = "where a file is damaged, remove the folder: the same command trains it again"
                    texts.append(f"{one.run.name} has ended, and a report leaves it out ({error}); {advice}")
        return texts

    def failures(self) -> list[str]:
        """For each run that failed, what it printed last."""
        texts = []
        for one in self.runs:
            if one.state == "failed":
                last: list[str] = []
                with suppress(OSError):
                    last = (one.folder / OUTPUT).read_text(errors="replace").splitlines()[-LAST_LINES:]
                code = one.exit_code or 0
                how = "lost its machine" if code == LOST else f"was killed by signal {-code}" if code < 0 else f"failed ({code})"
                how = f"could not begin ({one.problem})" if one.problem else how
                head = f"{one.run.name} {how}; the same command goes on with it. {one.folder / OUTPUT} ends with:"
                texts.append("\n".join([head, *(f"  {line}" for line in last)]))
        return texts
