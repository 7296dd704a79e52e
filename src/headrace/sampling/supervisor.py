"""The supervisor: starts the processes of a run, notices when one dies or hangs, puts things right and starts another.

It touches no data. What a dead process held is told by the exchange's tables (`Exchange.recover_*`).
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
from typing import Any, Literal

from headrace.config import Config
from headrace.envs.contract import EnvSpec
from headrace.runs.processes import start_child
from headrace.sampling.exchange import LEARNER, Exchange
from headrace.sampling.processes import Start, policy_main, rollout_main, run_child
from headrace.shm.primitives import Segment

Role = Literal["rollout", "policy", "learner"]
PAUSE = 5.0
"""Seconds between two looks after which this process must itself have been stopped (Ctrl-Z), and the others with it."""
FIRST_SIGN = 300.0
"""Seconds a process may take to start before it counts as hung."""
STACKS = 1 << 16
"""Bytes for the Python stacks of one process."""
ANSWER = 5.0
"""Seconds a policy worker may take for a batch before it is replaced, when a dead rollout worker's slots wait for it."""
FAREWELL = 20.0
"""Seconds the others may take to end before they are killed, and the learner before the user is told that it is waited for."""


class RunFailed(RuntimeError):
    """A part of the run failed for good; the message holds its error."""


@dataclass
class Child:
    """One process and what is known of it."""

    role: Role
    index: int
    process: BaseProcess
    report: connection.Connection
    stacks: Segment
    """Where its Python stacks are written (see `Start`). Memory, not a file: nothing is left behind however the run ends."""
    started: float
    """perf_counter() at its start."""
    error: str = ""
    """The traceback it reported before it ended."""
    done: bool = False
    """It has said that its work is done: its end is no failure."""

    @property
    def name(self) -> str:
        """As in log lines."""
        return "learner" if self.role == "learner" else f"{self.role} worker {self.index}"


class Supervisor:
    """Processes of one run. `learner_main` is what the learner process runs."""

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        exchange: Exchange,
        learner_main: Callable[[Start], None],
        say: Callable[[str], None],
    ):
        self.config, self.spec, self.exchange, self.say = config, spec, exchange, say
        self.restarts = 0
        """Processes replaced so far."""
        self._failures: deque[float] = deque()
        """When processes were replaced, within the last `restart_window` seconds (monotonic)."""
        self._looked = self._awake_since = perf_counter()
        self._mains = {"rollout": rollout_main, "policy": policy_main, "learner": learner_main}
        self.children: list[Child] = []
        self._unclaimed: set[int] = set()
        self._last_sweep = 0.0

    def start(self) -> None:
        """Start everything. The learner first: the others wait until it has its weights."""
        s = self.config.sampling
        self._spawn("learner", 0)
        for index in range(s.num_workers):
            self._spawn("rollout", index)
        if s.placement == "served":
            for index in range(s.num_policy_workers):
                self._spawn("policy", index)

    def _spawn(self, role: Role, index: int) -> None:
        here, there = multiprocessing.Pipe(duplex=False)
        stacks = Segment(STACKS)
        start = Start(role, index, self.restarts, self.config, self.spec, self.exchange, there, stacks)
        now = perf_counter()
        self.exchange.clocks[role][index, -2] = 0
        process = start_child(run_child, (self._mains[role], start), f"headrace {role} {index}")
        there.close()
        self.children.append(Child(role, index, process, here, stacks, now))

    def messages(self, timeout: float) -> Iterator[tuple[str, Any]]:
        """What the learner reports within `timeout` seconds: ("metrics", ...), ("message", ...), ("done", ...).

        Meanwhile the dead and the hung are replaced. Raises `RunFailed` when that is no use any more.
        """
        deadline = monotonic() + timeout
        while (left := deadline - monotonic()) > 0:
            watched: list[Any] = [c.report for c in self.children] + [c.process.sentinel for c in self.children]
            connection.wait(watched, min(left, 0.5))
            for child in list(self.children):
                yield from self._read(child)
                # Replacing one may have led to replacing another.
                if child in self.children and not child.process.is_alive():
                    yield from self._read(child)
                    self._replace(child, self._obituary(child))
            self._look_for_hung()
            self._resend_lost_tickets()

    def _read(self, child: Child) -> Iterator[tuple[str, Any]]:
        try:
            while child.report.poll():
                kind, content = child.report.recv()
                if kind == "failed":
                    child.error = content
                else:
                    child.done |= kind == "done"
                    yield kind, content
        except (EOFError, OSError):  # it ended; what it died of is told by its exit code
            return

    def _obituary(self, child: Child) -> str:
        code = child.process.exitcode or 0
        if child.error:
            return child.error.strip().splitlines()[-1]
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _replace(self, child: Child, why: str) -> None:
        """Free what the dead child held and start another in its place."""
        self.children.remove(child)
        child.process.join()
        child.report.close()
        if self.exchange.stopped or child.done:
            return
        s = self.config.sampling
        self.restarts += 1
        story = child.error or self._text(child)
        if child.role == "learner" and child.error:  # an error repeats itself; a kill does not
            raise RunFailed(f"the learner failed:\n{child.error}")
        if (recent := self._count_failure()) > s.max_restarts:
            detail = f":\n{story}" if story else ""
            raise RunFailed(
                f"{child.name} ended ({why}), the failure number {recent} within {s.restart_window:,.0f} s; "
                f"sampling.max_restarts is {s.max_restarts}{detail}"
            )
        if child.role == "rollout":
            self._withdraw_requests(child.index)
            done = f"{self.exchange.recover_rollout_worker(child.index)} slots returned"
        elif child.role == "policy":
            done = f"{self.exchange.recover_policy_worker(child.index)} requests asked again"
        else:
            done = f"{self.exchange.slots.reclaim(LEARNER)} slots returned, samplers wait for the newest checkpoint"
        self.say(f"{child.name} ended ({why}): {done}; a new one starts (restart {self.restarts})")
        if story:
            self.say(story)
        self._spawn(child.role, child.index)

    def _count_failure(self) -> int:
        """Note one failure; how many there were within the window."""
        now = monotonic()
        self._failures.append(now)
        while now - self._failures[0] > self.config.sampling.restart_window:
            self._failures.popleft()
        return len(self._failures)

    def _withdraw_requests(self, worker: int) -> None:
        deadline = monotonic() + ANSWER
        while holders := self.exchange.withdraw(worker):
            for child in [c for c in self.children if c.role == "policy" and c.index in holders]:
                if not child.process.is_alive() or monotonic() > deadline:
                    why = self._obituary(child) if not child.process.is_alive() else f"no answer for {ANSWER:.0f} s"
                    child.process.kill()
                    self._replace(child, why)
            sleep(0.001)

    def _look_for_hung(self) -> None:
        """A process that shows no sign of life for too long: show its stack, replace it."""
        now = perf_counter()
        if now - self._looked > PAUSE:
            self._awake_since = now
        self._looked = now
        for child in list(self.children):
            if child not in self.children:  # replaced meanwhile
                continue
            last = float(self.exchange.clocks[child.role][child.index, -2])
            silent = now - max(last, child.started, self._awake_since)
            setting, limit = self._patience(child) if last else ("its start", FIRST_SIGN)
            waits_for_learner = child.role != "learner" and self.exchange.control.load(1) == 0
            if silent < limit or waits_for_learner:
                continue
            self.say(f"{child.name} hangs: no sign of life for {silent:.0f} s ({setting}: {limit:.0f} s)")
            self._ask_for_stack(child)
            child.process.kill()
            child.process.join()
            self._replace(child, "hung")

    def _patience(self, child: Child) -> tuple[str, float]:
        """The setting that says how long this process may be silent, and its value (seconds)."""
        if child.role == "learner":
            return "learning.update_timeout", self.config.learning.update_timeout
        return "sampling.step_timeout", self.config.sampling.step_timeout

    def _ask_for_stack(self, child: Child) -> None:
        """Let the child write the Python stacks of its threads, which `_replace` shows; one that is stopped cannot answer."""
        if child.process.pid is not None:
            os.kill(child.process.pid, signal.SIGUSR1)
            for _ in range(10):
                if self._text(child):
                    return
                sleep(0.05)

    @staticmethod
    def _text(child: Child) -> str:
        return bytes(child.stacks.buffer).partition(b"\0")[0].decode(errors="replace")

    def _resend_lost_tickets(self) -> None:
        """A learner killed between taking a ticket from the queue and the slot from the table leaves a slot nobody looks for."""
        x = self.exchange
        if x.full.qsize() or monotonic() - self._last_sweep < 1:
            return
        self._last_sweep = monotonic()
        tickets = x.lost_tickets()
        # Seen twice, a second apart, with nothing queued: nobody is on the way to it. Doubles are refused by the table.
        for ticket in tickets & self._unclaimed:
            if not x.stopped:
                x.full.put(ticket, timeout=0)
        self._unclaimed = tickets

    def stop(self) -> Iterator[tuple[str, Any]]:
        """End the run; yields the learner's last messages. Nothing of the run is alive afterwards."""
        self.exchange.stop()
        began, told = monotonic(), False
        while self.children and monotonic() < began + self.config.learning.update_timeout:
            if monotonic() > began + FAREWELL and not told:
                told = True
                for child in [c for c in self.children if c.role != "learner"]:
                    child.process.kill()
                if any(c.role == "learner" for c in self.children):
                    self.say("The learner is waited for: it finishes its update and writes the last checkpoint")
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
