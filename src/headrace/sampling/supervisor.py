"""The supervisor: starts the processes of a run, notices when one dies or hangs, puts things right and starts another.

It touches no data. What a dead process held is read from the tables in shared memory.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any

from headrace.runs.processes import start_child
from headrace.sampling.placements.base import Message, RunFailed
from headrace.sampling.worker_process import Role, Start, run_child
from headrace.shm.segment import Segment

if TYPE_CHECKING:
    from headrace.sampling.placements.processes import ProcessPlacement

PAUSE = 5.0
"""Seconds between two looks after which this process must itself have been stopped (Ctrl-Z), and the others with it."""
START_TIMEOUT = 300.0
"""Seconds a process may take to start before it counts as hung."""
STACKS_BYTES = 1 << 16
"""Bytes for the Python stacks of one process."""
ANSWER_TIMEOUT = 5.0
"""Seconds a policy worker may take for a batch before it is replaced, when a dead rollout worker's slots wait for it."""
SHUTDOWN_TIMEOUT = 20.0
"""Seconds that workers may take to end before they are killed, and the learner before the user is told that it is waited for."""
POLL = 0.5
"""Seconds between two looks for dead and hung processes."""
SWEEP_INTERVAL = 1.0
"""Seconds between two looks for hints that were lost with a process."""


@dataclass
class Child:
    """One process and what is known of it."""

    role: Role
    index: int
    main: Callable[[Start], None]
    argument: Any
    process: BaseProcess
    report: connection.Connection
    stacks: Segment
    """Where its Python stacks are written (see `Start`). Memory, not a file: nothing is left behind however the run ends."""
    started: float
    """perf_counter() at its start."""
    error: str = ""
    """The traceback it reported before it ended."""
    done: bool = False
    """It has reported that its work is done: its end is no failure."""

    @property
    def name(self) -> str:
        """As in log lines."""
        if self.role == "learner":
            return f"learner {self.index}" if self.index else "learner"
        return f"{self.role} worker {self.index}"

    @property
    def stack_text(self) -> str:
        """The Python stacks it wrote, if any."""
        return bytes(self.stacks.buffer).partition(b"\0")[0].decode(errors="replace")

    def end_reason(self) -> str:
        """What it died of, in a few words."""
        code = self.process.exitcode or 0
        if self.error:
            return self.error.strip().splitlines()[-1]
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class Supervisor:
    """Processes of one run."""

    def __init__(self, placement: ProcessPlacement):
        self.placement, self.config, self.memory = placement, placement.config, placement.memory
        self.children: list[Child] = []
        self._notices: deque[str] = deque()
        """Texts for the user, not yet passed on."""
        self._failures: deque[float] = deque()
        """When processes were replaced, within the last `restart_window` seconds (monotonic)."""
        self._looked = self._awake_since = perf_counter()
        self._untaken: list[set[int]] = [set() for _ in self.memory.policies]
        self._last_sweep = 0.0

    # -- starting ---------------------------------------------------------------------------------------------------------

    def start(self, role: Role, count: int, main: Callable[[Start], None], argument: Any = None) -> None:
        """Start `count` processes of this role that run `main`."""
        for index in range(count):
            self._spawn(role, index, main, argument)

    def _spawn(self, role: Role, index: int, main: Callable[[Start], None], argument: Any) -> None:
        here, there = multiprocessing.Pipe(duplex=False)
        stacks = Segment(STACKS_BYTES)
        start = Start(role, index, self.placement.restarts, self.placement, there, stacks, argument)
        now = perf_counter()
        self.memory.control.clear_heartbeat(role, index)
        process = start_child(run_child, (main, start), f"headrace {role} {index}")
        there.close()
        self.children.append(Child(role, index, main, argument, process, here, stacks, now))

    # -- watching ---------------------------------------------------------------------------------------------------------

    def messages(self, timeout: float) -> Iterator[Message]:
        """What is reported within `timeout` seconds. Meanwhile the dead and the hung are replaced.

        Raises `RunFailed` when that is no use any more.
        """
        deadline = monotonic() + timeout
        while (left := deadline - monotonic()) > 0:
            watched: list[Any] = [c.report for c in self.children] + [c.process.sentinel for c in self.children]
            connection.wait(watched, min(left, POLL))
            for child in list(self.children):
                yield from self._read(child)
                # Replacing one may have led to replacing another.
                if child in self.children and not child.process.is_alive():
                    yield from self._read(child)
                    self._replace(child, child.end_reason())
            self._look_for_hung()
            self._sweep()
            yield from self._notified()

    def _notified(self) -> Iterator[Message]:
        while self._notices:
            yield Message("message", self._notices.popleft())

    def _read(self, child: Child) -> Iterator[Message]:
        try:
            while child.report.poll():
                message: Message = child.report.recv()
                if message.kind == "failed":
                    child.error = message.content
                else:
                    child.done |= message.kind == "done"
                    yield message
        except (EOFError, OSError):  # it ended; its exit code says of what
            return

    # -- replacing --------------------------------------------------------------------------------------------------------

    def _replace(self, child: Child, reason: str) -> None:
        """Free what the dead child held and start another in its place."""
        self.children.remove(child)
        child.process.join()
        child.report.close()
        if self.memory.control.stopped or child.done:
            return
        s = self.config.sampling
        self.placement.restarts += 1
        details = child.error or child.stack_text
        if child.role == "learner" and child.error:  # an error repeats itself; a kill does not
            raise RunFailed(f"{child.name} failed:\n{child.error}")
        if (recent := self._count_failure()) > s.max_restarts:
            detail = f":\n{details}" if details else ""
            raise RunFailed(
                f"{child.name} ended ({reason}), the failure number {recent} within {s.restart_window:,.0f} s; "
                f"sampling.max_restarts is {s.max_restarts}{detail}"
            )
        recovered = self._recover(child)
        self._notices.append(
            f"{child.name} ended ({reason}): {recovered}; a new one starts (restart {self.placement.restarts})"
        )
        if details:
            self._notices.append(details)
        self._spawn(child.role, child.index, child.main, child.argument)

    def _recover(self, child: Child) -> str:
        """Put right what a dead process leaves in the tables; says in a few words what that was."""
        requests, policies = self.memory.requests, self.memory.policies
        if child.role == "rollout":
            self._withdraw_requests(child.index)
            requests.clear_wake_up(child.index)
            freed = sum(policy.trajectories.free_worker(child.index) for policy in policies)
            return f"{freed} slots returned"
        if child.role == "policy":
            return f"{requests.recover_policy_worker(child.index)} requests asked again"
        freed = policies[child.index].trajectories.free_learner()
        return f"{freed} slots returned, its samplers wait for the newest checkpoint"

    def _count_failure(self) -> int:
        """Note one failure; how many there were within the window."""
        now = monotonic()
        self._failures.append(now)
        while now - self._failures[0] > self.config.sampling.restart_window:
            self._failures.popleft()
        return len(self._failures)

    def _withdraw_requests(self, worker: int) -> None:
        deadline = monotonic() + ANSWER_TIMEOUT
        while holders := self.memory.requests.withdraw(worker):
            for child in [c for c in self.children if c.role == "policy" and c.index in holders]:
                if not child.process.is_alive() or monotonic() > deadline:
                    alive = child.process.is_alive()
                    reason = f"no answer for {ANSWER_TIMEOUT:.0f} s" if alive else child.end_reason()
                    child.process.kill()
                    self._replace(child, reason)
            sleep(0.001)

    # -- hung processes ---------------------------------------------------------------------------------------------------

    def _look_for_hung(self) -> None:
        """A process without a heartbeat for too long: show its stack, replace it."""
        now = perf_counter()
        if now - self._looked > PAUSE:
            self._awake_since = now
        self._looked = now
        control = self.memory.control
        for child in list(self.children):
            if child not in self.children:  # replaced meanwhile
                continue
            last = control.heartbeat(child.role, child.index)
            silent = now - max(last, child.started, self._awake_since)
            setting, limit = self._timeout(child) if last else ("its start", START_TIMEOUT)
            waits_for_learner = child.role != "learner" and not control.ready
            if silent < limit or waits_for_learner:
                continue
            self._notices.append(f"{child.name} hangs: no heartbeat for {silent:.0f} s ({setting}: {limit:.0f} s)")
            self._ask_for_stack(child)
            child.process.kill()
            child.process.join()
            self._replace(child, "hung")

    def _timeout(self, child: Child) -> tuple[str, float]:
        """The setting that says how long this process may be without a heartbeat, and its value (seconds)."""
        if child.role == "learner":
            return "learning.update_timeout", self.config.learning.update_timeout
        return "sampling.step_timeout", self.config.sampling.step_timeout

    def _ask_for_stack(self, child: Child) -> None:
        """Let the child write the Python stacks of its threads, which `_replace` shows; one that is stopped cannot answer."""
        if child.process.pid is not None:
            os.kill(child.process.pid, signal.SIGUSR1)
            for _ in range(10):
                if child.stack_text:
                    return
                sleep(0.05)

    def _sweep(self) -> None:
        """A learner killed between taking a ticket from the queue and the slot from the table leaves a slot nobody looks for."""
        if monotonic() - self._last_sweep < SWEEP_INTERVAL:
            return
        self._last_sweep = monotonic()
        for p, policy in enumerate(self.memory.policies):
            store = policy.trajectories
            if store.qsize():
                continue
            tickets = store.untaken()
            # Seen twice, a second apart, with nothing queued: nobody is on the way to it. Doubles are refused by the table.
            for ticket in tickets & self._untaken[p]:
                if not self.memory.control.stopped:
                    store.offer_again(ticket)
            self._untaken[p] = tickets

    # -- ending -----------------------------------------------------------------------------------------------------------

    def stop(self) -> Iterator[Message]:
        """End the run; yields the learners' last messages. Nothing of the run is alive afterwards."""
        self.memory.stop()
        began, announced = monotonic(), False
        while self.children and monotonic() < began + self.config.learning.update_timeout:
            if monotonic() > began + SHUTDOWN_TIMEOUT and not announced:
                announced = True
                for child in [c for c in self.children if c.role != "learner"]:
                    child.process.kill()
                if any(c.role == "learner" for c in self.children):
                    text = "The learner is waited for: it finishes its update and writes the last checkpoint"
                    yield Message("message", text)
            connection.wait([c.process.sentinel for c in self.children] + [c.report for c in self.children], 0.2)
            for child in list(self.children):
                yield from self._read(child)
                if not child.process.is_alive():
                    yield from self._read(child)
                    self._replace(child, "")
        self.kill()

    def kill(self) -> None:
        """End every process at once."""
        for child in self.children:
            child.process.kill()
        for child in self.children:
            child.process.join()
        self.children.clear()
