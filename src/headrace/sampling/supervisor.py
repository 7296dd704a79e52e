"""The supervisor: starts the processes of a run, notices when one dies or hangs, frees what it held and starts another.

It touches no data: tables in shared memory show what a dead process held. It never waits for one process. What takes time (the
end of a process, its stacks, a policy worker that still writes to a dead rollout worker's slots) is polled while the supervisor
watches all processes. A thread (`Watchdog`) checks that the supervisor itself goes on.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from time import monotonic, perf_counter
from typing import Any

from headrace.accelerator.ranks import TIMEOUT as RANKS_MEET
from headrace.config import hardware
from headrace.processes.child import KILL_TIMEOUT, LOST_EXIT_CODE, Child
from headrace.processes.failures import Failures
from headrace.processes.hangs import HangDetector, Silence
from headrace.processes.orphaned_programs import end_programs, origin
from headrace.processes.start import end_stuck_fork_server
from headrace.runs.error_texts import reason
from headrace.runs.messages import Message
from headrace.sampling.placements.base import LearnerLost, Placement, RunFailed
from headrace.sampling.worker_process import Role, Start, run_worker
from headrace.shm.run_control import RunControl

START_TIMEOUT = 300.0  # seconds a process may take to start before it counts as hung
STACKS_TIME, STACKS_TIMEOUT = 0.5, 2.0
"""Seconds from the request for stacks to the kill of a hung process: if it has written stacks, and if it has not."""
ANSWER_TIMEOUT = 5.0
"""Seconds that a policy worker may take for a batch when the slots of a dead rollout worker cannot be freed before it ends."""
SHUTDOWN_TIMEOUT = 20.0
"""Seconds after which workers that have not ended are shown with their stacks and killed; then the run waits for the learner."""
POLL, SOON = 0.5, 0.01
"""Most seconds between two checks for dead and hung processes; the same while a process is about to end or to start."""
SWEEP_INTERVAL = 1.0  # seconds between two searches for queue entries lost with a process, and for programs that outlive one
PROGRAMS_TIMEOUT = 5.0
"""For so many seconds after a process's end the supervisor looks for programs that it started: one may just be starting."""
FORK_SERVER_TIMEOUT = 120.0
"""Seconds that the fork server may take for one process. The first takes longest, since the fork server imports PyTorch."""
START_AGAIN = 1.0  # seconds until the next try where a process could not be started
WATCHDOG_LIMIT = 30.0  # seconds without a heartbeat of the supervisor after which the user is warned
WATCHDOG_INTERVAL = 1.0  # seconds between two checks
HUNG = "hung"  # why a process that gives no sign of life is ended
NO_LAST_CHECKPOINT = "its last checkpoint was not written, and the run can go on from the one before"


@dataclass(frozen=True)
class Job:
    """What a process of the run does; a process that replaces it has the same job."""

    role: Role
    index: int  # among the workers of its role
    main: Callable[[Start], None]
    argument: Any


class Worker(Child):
    """A process of the run. Raises as `Child`."""

    def __init__(self, job: Job, placement: Placement):
        self.job, self.role, self.index = job, job.role, job.index
        self._role_name = placement.role_names.get(job.role)
        self.error = ""  # the traceback it reported before it ended
        self.refused = False  # whether a process in its place would report this error again
        self.at_fault = False  # whether the error is one of its environments
        self.done = False  # whether it has reported that its work is done, so that its end is no failure
        self.ended: float | None = None
        """When its end was noticed (perf_counter). From then on the supervisor recovers what it held."""
        start = (job.role, job.index, placement.restarts, placement, job.argument)
        super().__init__(run_worker, (job.main, *start), f"{job.role}-{job.index}")

    @property
    def name(self) -> str:
        """Its name in log lines."""
        name = self._role_name or ("learner" if self.role == "learner" else f"{self.role} worker")
        return name if self.role == "learner" and self.index == 0 else f"{name} {self.index}"

    @property
    def failure(self) -> str:
        """The error it reported, with its name; one line where the error is."""
        return f"{self.name} failed:{chr(10) if chr(10) in self.error.strip() else ' '}{self.error}"

    def end_reason(self) -> str:
        """See `Child`; if it reported an error, the error's last line."""
        return self.error.strip().splitlines()[-1] if self.error and not self.reason else super().end_reason()

    def note_exit(self) -> None:
        """Blame a rollout worker's environment for an exit without an error, since the worker's own code says why it ends, and
        for a hang. A worker that somebody has stopped cannot write its stack, and does not hang."""
        code = self.process.exitcode
        if self.role == "rollout" and self.reason == HUNG and self.stack_text:
            self.error, self.at_fault = f"it hung:\n{self.stack_text}", True
        if self.role == "rollout" and not (self._role_name or self.error or self.reason) and code in range(LOST_EXIT_CODE):
            self.error = f"exit code {code}, without an error: its environment, or a library of it, calls os._exit"
            self.at_fault = True

    @property
    def details(self) -> str:
        """The error or the stacks that it reported, where they say more than `end_reason`."""
        details = self.error or self.stack_text
        return "" if details.strip() == self.end_reason() else details


class Supervisor:
    """Processes of one run."""

    def __init__(self, placement: Placement):
        self.placement, self.config, self.memory = placement, placement.config, placement.memory
        self.children: list[Worker] = []
        self._due: list[tuple[float, Job]] = []  # processes to start: when (monotonic), and their jobs
        self._notices: deque[str] = deque()  # texts for the user, not yet passed on
        self._failures = Failures(self.config.sampling)
        self._silence = Silence()
        self._unready = 0.0
        """When some learner was last seen not to be ready (perf_counter): nobody else's silence begins before that."""
        self._untaken: list[set[int]] = [set() for _ in self.memory.policies]
        """By policy, the tickets of finished slots that no learner had taken at the last sweep."""
        self._last_sweep = 0.0
        self._at_fault: set[int] = set()  # rollout workers whose environments have failed
        self._removed: dict[int, float] = {}  # when processes ended (monotonic), by pid; programs that they started may be alive
        self._watchdog: Watchdog | None = None

    # -- starting ---------------------------------------------------------------------------------------------------------

    def start(self, role: Role, indices: range, main: Callable[[Start], None], argument: Any = None) -> None:
        """Start processes of this role with these indices that run `main`. Raises `RunFailed` if that is not possible."""
        if self._watchdog is None:
            self._watchdog = Watchdog(self.memory.control, _end_stuck_fork_server)
            self._watchdog.start()
        for index in indices:
            if problem := self._start(Job(role, index, main, argument)):
                raise RunFailed(problem)

    def _start(self, job: Job) -> str | None:
        """Start a process. Returns what went wrong, None if it was started."""
        self.memory.control.clear_heartbeat(job.role, job.index)
        self.memory.control.supervisor_lives()
        try:
            self.children.append(Worker(job, self.placement))
        except (OSError, EOFError) as error:
            cause = f"{type(error).__name__}: {error}"
            if isinstance(error, OSError) and error.errno is not None:
                cause = reason(error)
            return f"{job.role} {job.index} could not be started: {cause}"
        return None

    def _start_due(self) -> None:
        for at, job in list(self._due):
            if at > monotonic():
                continue
            if problem := self._start(job):
                self._count_failure(problem, "")
                self._notices.append(f"{problem}; tried again in {START_AGAIN:.0f} s")
                self._due.append((monotonic() + START_AGAIN, job))
            self._due.remove((at, job))

    # -- watching ---------------------------------------------------------------------------------------------------------

    def messages(self, timeout: float) -> Iterator[Message]:
        """Yield what processes report within `timeout` seconds, and replace dead and hung ones meanwhile.

        Raises `RunFailed` when the run cannot go on.
        """
        deadline = monotonic() + timeout
        while (left := deadline - monotonic()) > 0:
            self._wait(min(left, POLL))
            for child in list(self.children):
                if (yield from self._look(child)):
                    self._note_end(child)
                if child.ended and child in self.children:
                    self._recover(child)
            self._look_for_hung()
            self._start_due()
            self._sweep()
            yield from self._noticed()

    def _wait(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for a report or the end of a process."""
        self.memory.control.supervisor_lives()
        if self._due or any(child.asked or child.killed or child.ended for child in self.children):
            timeout = min(timeout, SOON)
        connection.wait([watched for child in self.children if not child.ended for watched in child.watched], timeout)

    def _noticed(self) -> Iterator[Message]:
        while self._notices:
            yield Message("message", self._notices.popleft())

    def _look(self, child: Worker) -> Generator[Message, None, bool]:
        """Pass on its reports. Returns True the first time that it is seen to have ended."""
        yield from self._read(child)
        self._kill_when_stacks_are_written(child)
        if child.ended or not self._has_ended(child):
            return False
        child.ended = perf_counter()
        yield from self._read(child)
        return True

    def _read(self, child: Worker) -> Iterator[Message]:
        try:
            messages = [Message(*report) for report in child.reports.read()]
        except ValueError as error:
            self._notices.append(f"{child.name}: {error}")
            return
        for message in messages:
            if message.kind in ("failed", "fault", "refused"):
                child.error, child.refused = message.content, message.kind == "refused"
                child.at_fault = message.kind == "fault"
            else:
                child.done |= message.kind == "done"
                yield message

    def _kill_when_stacks_are_written(self, child: Worker) -> None:
        """Kill a hung process once it has written its stacks or its time for that is over."""
        if child.asked and not child.killed and child.ended is None:
            patience = STACKS_TIME if child.stack_text else STACKS_TIMEOUT
            if perf_counter() > child.asked + patience:
                child.kill()

    def _has_ended(self, child: Worker) -> bool:
        """Whether the process is gone, or was killed `KILL_TIMEOUT` ago and is stuck in the kernel: it never runs again."""
        if child.gone:
            return True
        stuck = child.killed is not None and perf_counter() > child.killed + KILL_TIMEOUT
        if stuck:
            where = f"process {child.pid} is still there, in the kernel"
            self._notices.append(f"{child.name} was killed {KILL_TIMEOUT:.0f} s ago; {where}")
        return stuck

    # -- replacing --------------------------------------------------------------------------------------------------------

    def _note_end(self, child: Worker) -> None:
        """Remove a process that has done its work, count the failure of another. Raises `RunFailed` if the run cannot go on."""
        if self.memory.control.stopped or child.done:
            self._remove(child)
            return
        child.note_exit()
        self.placement.restarts += 1
        if child.role == "learner" and hardware.rank().size > 1 and not child.error:
            raise LearnerLost(f"{child.name} ended ({child.end_reason()}), and the other ranks cannot go on without it")
        # An error repeats itself; a kill does not.
        if child.refused or (child.role == "learner" and child.error) or self._fails_again(child):
            self._remove(child)
            raise RunFailed(child.failure)
        try:
            self._count_failure(f"{child.name} ended ({child.end_reason()})", child.details)
        except RunFailed:
            self._remove(child)  # `stop` would show its error again
            raise

    def _fails_again(self, child: Worker) -> bool:
        """Whether a rollout worker's environments have failed as those of the process before it have, and nothing was learned
        meanwhile: the environment has an error, rather than a bad day."""
        if not child.at_fault or any(policy.weights.updates > 1 for policy in self.memory.policies):
            return False
        again = child.index in self._at_fault
        self._at_fault.add(child.index)
        return again

    def _remove(self, child: Worker) -> None:
        self.children.remove(child)
        self._removed[child.pid] = monotonic()
        child.close()

    def _count_failure(self, what: str, details: str) -> None:
        """Note one failure. Raises `RunFailed` if there were too many within the window."""
        if too_many := self._failures.add(monotonic()):
            raise RunFailed(f"{what}, {too_many}" + (f":\n{details}" if details else ""))

    def _recover(self, child: Worker) -> None:
        """Free what a dead process holds in the tables and schedule its replacement. If policy workers still write to a dead
        rollout worker's slots, only end the late ones: the next round tries again."""
        requests, policies = self.memory.requests, self.memory.policies
        if child.role == "rollout":
            if holders := requests.withdraw(child.index):
                self._end_late_policy_workers(child, holders)
                return
            requests.clear_wake_up(child.index)
            freed = sum(policy.trajectories.free_worker(child.index) for policy in policies)
            recovered = f"{freed} slots returned"
        elif child.role == "policy":
            recovered = f"{requests.requeue_requests_of(child.index)} requests asked again"
        else:
            freed = policies[child.index].trajectories.free_learner()
            recovered = f"{freed} slots returned"
            if "learner" not in self.placement.role_names:  # what has taken a learner's place loads no checkpoint
                recovered += ", its samplers wait for the newest checkpoint"
        self._notices.append(
            f"{child.name} ended ({child.end_reason()}): {recovered}; a new one starts (restart {self.placement.restarts})"
        )
        if child.details:
            self._notices.append(child.details)
        self._remove(child)
        self._due.append((monotonic(), child.job))

    def _end_late_policy_workers(self, dead: Worker, holders: set[int]) -> None:
        """Kill the policy workers among `holders` that take longer than `ANSWER_TIMEOUT`: while they may still write to the slots
        of a dead rollout worker, these cannot be freed."""
        assert dead.ended is not None
        if perf_counter() > dead.ended + ANSWER_TIMEOUT:
            for child in self.children:
                if child.role == "policy" and child.index in holders and not child.killed:
                    child.kill(f"no answer for {ANSWER_TIMEOUT:.0f} s")

    # -- hung processes ---------------------------------------------------------------------------------------------------

    def _look_for_hung(self) -> None:
        """Ask processes whose heartbeat is too old for their stacks; they are killed and replaced afterwards."""
        self._silence.look()
        control = self.memory.control
        if not control.ready:
            self._unready = perf_counter()
        for child in self.children:
            last = control.heartbeat(child.role, child.index)
            waited = self.placement.waited if child.role == "learner" else self._unready
            silent = self._silence.since(max(last, child.started, waited))
            setting, limit = self._patience(child.role, begun=bool(last))
            if silent < limit or child.asked or child.killed or child.ended:
                continue
            self._notices.append(f"{child.name} hangs: no heartbeat for {silent:.0f} s ({setting}: {limit:.0f} s)")
            child.reason = HUNG
            child.ask_for_stacks()

    def _patience(self, role: Role, begun: bool) -> tuple[str, float]:
        """Seconds that a process may be silent, and what sets them. `begun`: whether it has given a sign before."""
        if role != "learner":
            return ("sampling.step_timeout", self.config.sampling.step_timeout) if begun else ("its start", START_TIMEOUT)
        limit = self.config.learning.update_timeout
        if begun:
            return "learning.update_timeout", limit
        # Before its first sign a learner may restore a large replay, and wait for ranks on other machines.
        return "its start", max(START_TIMEOUT, limit) + (RANKS_MEET if hardware.rank().size > 1 else 0.0)

    # -- lost hints -------------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Queue again what the tables have and no queue has: the numbers of waiting lanes, and the tickets that a learner took
        from the queue before it was killed, without taking their slots in the table."""
        if monotonic() - self._last_sweep < SWEEP_INTERVAL or self.memory.control.stopped:
            return
        self._last_sweep = monotonic()
        self._end_programs()
        self.memory.requests.queue_waiting()
        for p, policy in enumerate(self.memory.policies):
            store = policy.trajectories
            if self._has_learned_enough(p):
                # Other policies' matches need these slots: those that its learner held, and those that workers finished late.
                store.free_learner()
                store.discard()
            if store.qsize():
                continue
            tickets = store.untaken()
            # The same ticket in two sweeps, with an empty queue: it was lost. If it was not, the table refuses the second copy.
            for ticket in tickets & self._untaken[p]:
                store.offer_again(ticket)
            self._untaken[p] = tickets

    def _has_learned_enough(self, p: int) -> bool:
        """Whether policy p has learned enough, its learner has ended, and it only acts in the matches of others."""
        done = self.memory.standings is not None and p < self.memory.learners and bool(self.memory.standings.done[p])
        return done and not any(child.role == "learner" and child.index == p for child in self.children)

    def _end_programs(self) -> None:
        """End the programs that ended processes had started."""
        end_programs(origin(), self._removed)
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
                for child in self.children:
                    if child.role != "learner" and not child.killed:  # killed when it has written its stacks
                        child.reason = f"it had not ended after {SHUTDOWN_TIMEOUT:.0f} s"
                        child.ask_for_stacks()
                if any(c.role == "learner" for c in self.children):
                    text = "The learner is waited for: it finishes its update and writes the last checkpoint"
                    yield Message("message", text)
            self._wait(0.2)
            for child in list(self.children):
                if (yield from self._look(child)) or child.ended:
                    if child.role == "learner" and child.error:
                        failures.append(child.failure)
                    elif child.role == "learner" and not child.done:
                        self._notices.append(f"{child.name} ended ({child.end_reason()}): {NO_LAST_CHECKPOINT}")
                    elif child.role != "learner" and (child.error or child.stack_text):
                        self._notices += filter(None, [f"{child.name} ended ({child.end_reason()})", child.details])
                    self._remove(child)
            yield from self._noticed()
        limit = f"{self.config.learning.update_timeout:.0f} s (learning.update_timeout)"
        self._notices += [f"{c.name} is killed after {limit}: {NO_LAST_CHECKPOINT}" for c in self.children if c.role == "learner"]
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
        if left := [str(child.pid) for child in self.children if not child.wait(deadline - monotonic())]:
            warnings.warn(f"killed, and still there, in the kernel: processes {', '.join(left)}", stacklevel=2)
        for child in list(self.children):
            self._remove(child)
        self._end_programs()


class Watchdog(HangDetector):
    """Warns the user, with the stack of the supervisor's thread, when the supervisor, or the caller that receives its messages,
    is blocked.

    Args:
        rescue: called while the supervisor is blocked. It ends the blocking call if it can, and returns a text that says so.
        show: prints a text. The watchdog's thread calls both functions, since the supervisor's thread is blocked.
    """

    def __init__(
        self,
        control: RunControl,
        rescue: Callable[[], str | None] = lambda: None,
        show: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
        limit: float = WATCHDOG_LIMIT,
        interval: float = WATCHDOG_INTERVAL,
    ):
        super().__init__(interval)
        self._control, self._rescue, self._show, self._limit = control, rescue, show, limit
        self._warned = False

    def last_sign(self) -> float:
        return self._control.supervisor_heartbeat

    def look(self, silent: float) -> None:
        """Warn once each time that the supervisor is blocked, and call `rescue` while it is."""
        if silent > self._limit and not self._warned:
            stack = "its thread has ended" if (frames := self.stack()) is None else "".join(frames.format())
            self._show(f"The supervisor has not looked at the processes for {silent:.0f} s. It is here:\n{stack}")
        elif silent < self._limit and self._warned:
            self._show("The supervisor goes on")
        self._warned = silent > self._limit
        if self._warned and (rescued := self._rescue()):
            self._show(rescued)


def _end_stuck_fork_server() -> str | None:
    """For the watchdog: a fork server that does not answer blocks the supervisor."""
    if end_stuck_fork_server(FORK_SERVER_TIMEOUT):
        return f"The fork server has not answered for {FORK_SERVER_TIMEOUT:.0f} s: it is replaced, and with it all processes"
    return None
