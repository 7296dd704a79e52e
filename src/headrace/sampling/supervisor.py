"""The supervisor: starts the processes of a run, notices when one dies or hangs, puts things right and starts another.

It touches no data. What a dead process held is read from the tables in shared memory. It waits for nobody: what takes time (the
end of a process, its stacks, a policy worker that still writes to a dead rollout worker's slots) is looked at again and again,
while the others are watched. That it looks at all is watched by a thread (`watchdog`).
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import connection
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.config import machine
from headrace.runs.explain import reason
from headrace.runs.failures import Failures
from headrace.runs.processes import end_stuck_fork_server
from headrace.runs.programs import end_programs
from headrace.sampling.child import Child
from headrace.sampling.placements.base import LearnerLost, Message, RunFailed
from headrace.sampling.watchdog import Watchdog
from headrace.sampling.worker_process import Role, Start

if TYPE_CHECKING:
    from headrace.sampling.placements.processes import ProcessPlacement

PAUSE = 5.0
"""Seconds between two looks after which this process must itself have been stopped (Ctrl-Z), and the others with it."""
START_TIMEOUT = 300.0
"""Seconds a process may take to start before it counts as hung."""
STACKS_TIME, STACKS_TIMEOUT = 0.5, 2.0
"""Seconds after which a hung process is killed that was asked for its stacks: one that has written some, and one that has not."""
KILL_TIMEOUT = 10.0
"""Seconds after which a process that was killed and is still there is left to the kernel, which waits for a device or a disk."""
ANSWER_TIMEOUT = 5.0
"""Seconds a policy worker may take for a batch before it is replaced, when a dead rollout worker's slots wait for it."""
SHUTDOWN_TIMEOUT = 20.0
"""Seconds that workers may take to end before they are killed, and the learner before the user is told that it is waited for."""
POLL, SOON = 0.5, 0.01
"""Seconds between two looks for dead and hung processes; the same where something is about to happen."""
SWEEP_INTERVAL = 1.0
"""Seconds between two looks for hints that were lost with a process, and for programs that outlive one."""
PROGRAMS_TIMEOUT = 5.0
"""Seconds after a process's end in which programs that it started are looked for; one may just be starting."""
FORK_SERVER_TIMEOUT = 120.0
"""Seconds that the fork server may take for one process. The first takes longest, since the fork server imports PyTorch."""
START_AGAIN = 1.0
"""Seconds until the next try where a process could not be started."""
NO_LAST_CHECKPOINT = "its last checkpoint was not written, and the run can go on from the one before"


class _Due(NamedTuple):
    """A process to be started."""

    at: float
    """monotonic()"""
    role: Role
    number: int
    main: Callable[[Start], None]
    argument: Any


class Supervisor:
    """Processes of one run."""

    def __init__(self, placement: ProcessPlacement):
        self.placement, self.config, self.memory = placement, placement.config, placement.memory
        self.children: list[Child] = []
        self._due: list[_Due] = []
        self._notices: deque[str] = deque()
        """Texts for the user, not yet passed on."""
        self._failures = Failures(self.config.sampling)
        self._looked = self._awake_since = perf_counter()
        self._untaken: list[set[int]] = [set() for _ in self.memory.policies]
        """By policy, tickets of finished slots that at the last sweep were in no queue and in nobody's hands."""
        self._last_sweep = 0.0
        self._removed: dict[int, float] = {}
        """Processes that have ended, by pid, and when; programs of theirs may be alive."""
        self._watchdog: Watchdog | None = None

    # -- starting ---------------------------------------------------------------------------------------------------------

    def start(self, role: Role, count: int, main: Callable[[Start], None], argument: Any = None) -> None:
        """Start `count` processes of this role that run `main`. Raises `RunFailed` if that is not possible."""
        if self._watchdog is None:
            self._watchdog = Watchdog(self.memory.control, _end_stuck_fork_server)
            self._watchdog.start()
        for index in range(count):
            self._due.append(_Due(monotonic(), role, index, main, argument))
            if problem := self._start(self._due[-1]):
                raise RunFailed(problem)

    def _start(self, due: _Due) -> str | None:
        """Start it; a sentence if that was not possible, and it is still due."""
        self.memory.control.clear_heartbeat(due.role, due.number)
        self.memory.control.supervisor_lives()
        try:
            self.children.append(Child(due.role, due.number, due.main, due.argument, self.placement))
        except (OSError, EOFError) as error:
            cause = f"{type(error).__name__}: {error}"
            if isinstance(error, OSError) and error.errno is not None:
                cause = reason(error)
            return f"{due.role} {due.number} could not be started: {cause}"
        self._due.remove(due)
        return None

    def _start_due(self) -> None:
        for due in [due for due in self._due if due.at <= monotonic()]:
            if problem := self._start(due):
                self._count_failure(problem, "")
                self._notices.append(f"{problem}; tried again in {START_AGAIN:.0f} s")
                self._due.remove(due)
                self._due.append(due._replace(at=monotonic() + START_AGAIN))

    # -- watching ---------------------------------------------------------------------------------------------------------

    def messages(self, timeout: float) -> Iterator[Message]:
        """What is reported within `timeout` seconds. Meanwhile the dead and the hung are replaced.

        Raises `RunFailed` when that is no use any more.
        """
        deadline = monotonic() + timeout
        while (left := deadline - monotonic()) > 0:
            self._wait(min(left, POLL))
            for child in list(self.children):
                yield from self._read(child)
                self._kill_when_stacks_are_written(child)
                if child.ended is None and self._has_ended(child):
                    yield from self._read(child)
                    self._note_end(child)
                if child.ended is not None and child in self.children:
                    self._recover(child)
            self._look_for_hung()
            self._start_due()
            self._sweep()
            yield from self._noticed()

    def _wait(self, timeout: float) -> None:
        """Until there is something to look at."""
        self.memory.control.supervisor_lives()
        if self._due or any(child.asked or child.killed or child.ended for child in self.children):
            timeout = min(timeout, SOON)
        connection.wait([watched for child in self.children for watched in child.watched], timeout)

    def _noticed(self) -> Iterator[Message]:
        while self._notices:
            yield Message("message", self._notices.popleft())

    def _read(self, child: Child) -> Iterator[Message]:
        try:
            messages: list[Message] = child.reports.read()
        except ValueError as error:
            self._notices.append(f"{child.name}: {error}")
            return
        for message in messages:
            if message.kind == "failed":
                child.error = message.content
            else:
                child.done |= message.kind == "done"
                yield message

    def _kill_when_stacks_are_written(self, child: Child) -> None:
        """Kill a hung process that has written its stacks, or had the time to."""
        if child.asked and not child.killed and child.ended is None:
            patience = STACKS_TIME if child.stack_text else STACKS_TIMEOUT
            if perf_counter() > child.asked + patience:
                child.kill()

    def _has_ended(self, child: Child) -> bool:
        """Whether the process is gone, or as good as: one that was killed never runs again, whatever the kernel waits for."""
        if child.killed and perf_counter() > child.killed + KILL_TIMEOUT and not child.gone:
            pid = child.process.pid
            self._notices.append(f"{child.name} was killed {KILL_TIMEOUT:.0f} s ago; process {pid} is still there, in the kernel")
            return True
        return child.gone

    # -- replacing --------------------------------------------------------------------------------------------------------

    def _note_end(self, child: Child) -> None:
        """Decide whether the run goes on without it, with another in its place, or not at all."""
        child.ended = perf_counter()
        if self.memory.control.stopped or child.done:
            self._remove(child)
            return
        self.placement.restarts += 1
        if child.role == "learner" and machine.rank().size > 1 and not child.error:
            raise LearnerLost(f"{child.name} ended ({child.end_reason()}), and the other ranks cannot go on without it")
        if child.role == "learner" and child.error:  # an error repeats itself; a kill does not
            self._remove(child)
            raise RunFailed(child.failure)
        self._count_failure(f"{child.name} ended ({child.end_reason()})", child.error or child.stack_text)

    def _remove(self, child: Child) -> None:
        self.children.remove(child)
        if child.process.pid is not None:
            self._removed[child.process.pid] = monotonic()
        child.close()

    def _count_failure(self, what: str, details: str) -> None:
        """Note one failure. Raises `RunFailed` if there were too many within the window."""
        if too_many := self._failures.add(monotonic()):
            raise RunFailed(f"{what}, {too_many}" + (f":\n{details}" if details else ""))

    def _recover(self, child: Child) -> None:
        """Put right what a dead process leaves in the tables, and let another take its place; or try again at the next look."""
        requests, policies = self.memory.requests, self.memory.policies
        if child.role == "rollout":
            if holders := requests.withdraw(child.index):
                self._end_late_policy_workers(child, holders)
                return
            requests.clear_wake_up(child.index)
            freed = sum(policy.trajectories.free_worker(child.index) for policy in policies)
            recovered = f"{freed} slots returned"
        elif child.role == "policy":
            recovered = f"{requests.recover_policy_worker(child.index)} requests asked again"
        else:
            freed = policies[child.index].trajectories.free_learner()
            recovered = f"{freed} slots returned, its samplers wait for the newest checkpoint"
        self._notices.append(
            f"{child.name} ended ({child.end_reason()}): {recovered}; a new one starts (restart {self.placement.restarts})"
        )
        if details := child.error or child.stack_text:
            self._notices.append(details)
        self._remove(child)
        self._due.append(_Due(monotonic(), child.role, child.index, child.main, child.argument))

    def _end_late_policy_workers(self, dead: Child, holders: set[int]) -> None:
        """The slots of a dead rollout worker cannot be given to others while these policy workers may still write to them: kill
        those that take too long."""
        assert dead.ended is not None
        if perf_counter() > dead.ended + ANSWER_TIMEOUT:
            for child in self.children:
                if child.role == "policy" and child.index in holders and not child.killed:
                    child.kill(f"no answer for {ANSWER_TIMEOUT:.0f} s")

    # -- hung processes ---------------------------------------------------------------------------------------------------

    def _look_for_hung(self) -> None:
        """A process without a heartbeat for too long: show its stack, replace it."""
        now = perf_counter()
        if now - self._looked > PAUSE:
            self._awake_since = now
        self._looked = now
        control = self.memory.control
        for child in self.children:
            last = control.heartbeat(child.role, child.index)
            silent = now - max(last, child.started, self._awake_since)
            setting, limit = self._timeout(child) if last else ("its start", START_TIMEOUT)
            waits_for_learner = child.role != "learner" and not control.ready
            if silent < limit or waits_for_learner or child.asked or child.killed or child.ended:
                continue
            self._notices.append(f"{child.name} hangs: no heartbeat for {silent:.0f} s ({setting}: {limit:.0f} s)")
            child.reason = "hung"
            child.ask_for_stacks()

    def _timeout(self, child: Child) -> tuple[str, float]:
        """The setting that says how long this process may be without a heartbeat, and its value (seconds)."""
        if child.role == "learner":
            return "learning.update_timeout", self.config.learning.update_timeout
        return "sampling.step_timeout", self.config.sampling.step_timeout

    # -- lost hints -------------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Queue again what the tables say and no queue does: numbers of waiting lanes, and tickets of finished slots that a
        learner took from the queue, and was killed before it took the slots from the table."""
        if monotonic() - self._last_sweep < SWEEP_INTERVAL or self.memory.control.stopped:
            return
        self._last_sweep = monotonic()
        self._end_programs()
        self.memory.requests.queue_waiting()
        for p, policy in enumerate(self.memory.policies):
            store = policy.trajectories
            if self._has_learned_enough(p):
                # What its learner had in hand when it ended, and what workers finished before they knew, others wait for.
                store.free_learner()
                store.discard()
            if store.qsize():
                continue
            tickets = store.untaken()
            # Seen twice, a second apart, with nothing queued: nobody is on the way to it. Doubles are refused by the table.
            for ticket in tickets & self._untaken[p]:
                store.offer_again(ticket)
            self._untaken[p] = tickets

    def _has_learned_enough(self, p: int) -> bool:
        """Whether policy p goes on acting in matches, and its learner has ended."""
        done = self.memory.standings is not None and p < self.memory.learners and bool(self.memory.standings.done[p])
        return done and not any(child.role == "learner" and child.index == p for child in self.children)

    def _end_programs(self) -> None:
        """End the programs that processes started which have ended."""
        end_programs(self._removed)
        self._removed = {pid: since for pid, since in self._removed.items() if monotonic() < since + PROGRAMS_TIMEOUT}

    # -- ending -----------------------------------------------------------------------------------------------------------

    def stop(self) -> Iterator[Message]:
        """End the run; yields the learners' last messages. Nothing of the run is alive afterwards.

        Raises `RunFailed` if a learner fails now: its last checkpoint was not written.
        """
        self.memory.stop()
        yield from self._noticed()
        began, announced, failures = monotonic(), False, []
        while self.children and monotonic() < began + self.config.learning.update_timeout:
            if monotonic() > began + SHUTDOWN_TIMEOUT and not announced:
                announced = True
                for child in [c for c in self.children if c.role != "learner" and not c.killed]:
                    child.kill()
                if any(c.role == "learner" for c in self.children):
                    text = "The learner is waited for: it finishes its update and writes the last checkpoint"
                    yield Message("message", text)
            self._wait(0.2)
            for child in list(self.children):
                yield from self._read(child)
                self._kill_when_stacks_are_written(child)
                if child.ended is not None or self._has_ended(child):
                    yield from self._read(child)
                    if child.role == "learner" and child.error:
                        failures.append(child.failure)
                    elif child.role == "learner" and not child.done:
                        self._notices.append(f"{child.name} ended ({child.end_reason()}): {NO_LAST_CHECKPOINT}")
                    self._remove(child)
            yield from self._noticed()
        limit = f"{self.config.learning.update_timeout:.0f} s (learning.update_timeout)"
        late = [child.name for child in self.children if child.role == "learner"]
        self._notices += [f"{name} is killed after {limit}: {NO_LAST_CHECKPOINT}" for name in late]
        self.kill()
        yield from self._noticed()
        if failures:
            raise RunFailed("\n".join(failures))

    def kill(self) -> None:
        """End every process at once."""
        if self._watchdog is not None:
            self._watchdog.stop()
        self._due.clear()
        for child in self.children:
            child.kill()
        deadline = monotonic() + KILL_TIMEOUT
        while (left := [c for c in self.children if not c.gone]) and monotonic() < deadline:
            connection.wait([c.process.sentinel for c in left], SOON)
        if left:
            pids = ", ".join(str(child.process.pid) for child in left)
            warnings.warn(f"killed, and still there, in the kernel: processes {pids}", stacklevel=2)
        for child in list(self.children):
            self._remove(child)
        self._end_programs()


def _end_stuck_fork_server() -> str | None:
    """For the watchdog: the one thing besides messages that the supervisor waits for."""
    if end_stuck_fork_server(FORK_SERVER_TIMEOUT):
        return f"The fork server has not answered for {FORK_SERVER_TIMEOUT:.0f} s: it is replaced, and with it all processes"
    return None
