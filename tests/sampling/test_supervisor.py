"""The supervisor with real processes that end, hang and report in every way (`supervised.py`)."""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import supervised
from supervised import make_placement

from headrace.processes import hangs
from headrace.runs.messages import Message
from headrace.sampling import supervisor as supervisor_module
from headrace.sampling.placements.base import RunFailed
from headrace.sampling.supervisor import Job, Supervisor, Watchdog, Worker
from headrace.shm import run_control
from headrace.shm.inference_requests import TAKEN, WAITING
from headrace.shm.population import Standings

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("bare_fork_server")]


class Run:
    """A supervisor and three processes of each role, one learner among them; `behaviours` as in `supervised.behave`."""

    def __init__(self, behaviours: dict[tuple[str, int], str], counts: dict[str, int] | None = None, **settings: Any):
        self.placement = make_placement(**{"sampling.max_restarts": 1000, **settings})
        self.memory = self.placement.memory
        self.supervisor = Supervisor(self.placement)
        self.messages: list[Message] = []
        self._behaviours, self._counts = behaviours, counts or {"rollout": 2}

    def __enter__(self) -> Run:
        for role, count in self._counts.items():
            self.supervisor.start(role, range(count), supervised.behave, self._behaviours)  # type: ignore[arg-type]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pids = [c.process.pid for c in self.supervisor.children]
        self.supervisor.kill()
        wait_here(lambda: not any(map(alive, pids)))  # where `KILL_TIMEOUT` is short, a busy machine may need longer

    @property
    def text(self) -> str:
        return "\n".join(str(m.content) for m in self.messages if m.kind == "message")

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> Any:
        """Let the supervisor work until the condition holds."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not within {seconds} s:\n{self.text}"
            self.messages += self.supervisor.messages(0.05)
        return value

    def until_said(self, pattern: str, times: int = 1, seconds: float = 60) -> re.Match[str]:
        self.until(lambda: len(re.findall(pattern, self.text)) >= times, seconds)
        found = re.search(pattern, self.text)
        assert found
        return found

    def pid(self, role: str, index: int) -> int:
        """The process that works there now."""
        return int(self.until_said(rf"{role} {index} is process (\d+)")[1])


@pytest.fixture(scope="module", autouse=True)
def no_watchdog_is_left() -> Iterator[None]:
    """One that is would print, during other tests, that its supervisor does not look at the processes."""
    yield
    wait_here(lambda: not any(thread.name == "hang detector" for thread in threading.enumerate()), 10)


def alive(pid: int | None) -> bool:
    """Neither gone nor a zombie, which an orphan may be for long."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# -- deaths ---------------------------------------------------------------------------------------------------------------


def test_slots_of_a_policy_that_has_learned_enough_are_freed_whoever_held_them() -> None:
    """Its learner ended with some in hand, and workers that did not know yet have finished others since."""
    placement = make_placement()
    memory = placement.memory
    memory.standings = Standings(3, 1, 0, 0, 1200.0)
    store = memory.policies[0].trajectories
    slots = [store.acquire(0, timeout=0) for _ in range(8)]
    for slot in slots[:5]:
        store.finish(slot)
    assert store.take(timeout=0) == slots[0]
    supervisor = Supervisor(placement)
    assert list(supervisor.messages(timeout=0.2)) == []
    assert store.acquire(1, timeout=0) is None, "who learns needs them"
    memory.standings.done[0] = 1
    supervisor = Supervisor(placement)
    assert list(supervisor.messages(timeout=0.2)) == []
    assert sorted(store.acquire(1, timeout=0) for _ in range(5)) == sorted(slots[:5])
    assert store.acquire(1, timeout=0) is None


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("exit_7", r"rollout worker 1 ended \(exit code 7, .* os._exit\): 0 slots returned; a new one starts \(restart 1\)"),
        ("be_killed", r"rollout worker 1 ended \(killed by SIGKILL\)"),
        ("fail", r"ended \(RuntimeError: the worker is broken\)(.|\n)*Traceback(.|\n)*in fail\n"),
        ("environment_fails", r"ended \(the environment is broken\): .*\(restart 1\)\n(rollout 0.*\n)?rollout 1 is"),  # said once
        ("segfault", r"ended \(killed by SIGSEGV\)(.|\n)*in segfault\n"),
    ],
)
def test_who_dies_is_replaced_and_it_is_said_of_what(behaviour: str, said: str) -> None:
    with Run({("rollout", 1): behaviour}) as run:
        run.until_said(said)
        run.pid("rollout", 1)
        assert run.placement.restarts == 1
        assert [(c.role, c.index) for c in run.supervisor.children] == [("rollout", 0), ("rollout", 1)]


def test_a_dead_rollout_workers_slots_come_back() -> None:
    with Run({("rollout", 0): "acquire_and_be_killed"}) as run:
        run.until_said(r"rollout worker 0 ended .*: 2 slots returned")
        store = run.memory.policies[0].trajectories
        assert len([s for s in (store.acquire(5, timeout=0) for _ in range(8)) if s is not None]) == 8
        assert store.take(timeout=0) is None  # the slot it had finished is not the learner's any more


def test_a_dead_learners_slots_come_back() -> None:
    with Run({("learner", 0): "take_and_be_killed"}, {"learner": 1}) as run:
        store = run.memory.policies[0].trajectories
        slot = store.acquire(0, timeout=0)
        assert slot is not None
        store.finish(slot)
        run.until_said(r"learner ended \(killed by SIGKILL\): 1 slots returned, its samplers wait for the newest checkpoint")


def test_a_learners_error_ends_the_run_at_once() -> None:
    with Run({("learner", 0): "fail"}, {"learner": 1}) as run, pytest.raises(RunFailed, match=r"(?s)learner failed:.*in fail"):
        run.until(lambda: False)


def test_a_learner_that_is_done_is_not_replaced() -> None:
    with Run({("learner", 0): "finish"}, {"learner": 1, "rollout": 1}) as run:
        run.until(lambda: len(run.supervisor.children) == 1)
        assert [m.kind for m in run.messages if m.kind != "message"] == ["done"]
        assert run.placement.restarts == 0
        run.pid("rollout", 0)


def test_too_many_failures_end_the_run_with_the_last_error() -> None:
    said = r"(?s)ended \(RuntimeError: the worker is broken\), failure 3 within 3,600 s .sampling.max_restarts: 2.:.*in fail"
    with Run({("rollout", 0): "fail_always"}, **{"sampling.max_restarts": 2}) as run:
        with pytest.raises(RunFailed, match=said):
            run.until(lambda: False)
        assert not any("in fail" in message.content for message in run.supervisor.stop()), "the error is shown once"


@pytest.mark.parametrize("behaviour", ["environment_fails_always", "exit_7_always", "hang_always"])
def test_environments_that_fail_again_before_anything_was_learned_end_the_run(behaviour: str) -> None:
    with Run({("rollout", 1): behaviour}, **{"sampling.step_timeout": 1}) as run, pytest.raises(RunFailed, match="1 failed:"):
        run.until(lambda: run.placement.restarts > 2)


def test_environments_that_fail_once_in_a_while_are_replaced() -> None:
    with Run({("rollout", 0): "environment_fails", ("rollout", 1): "environment_fails"}) as run:
        run.until(lambda: run.placement.restarts == 2 and re.search("rollout 1 is process", run.text))
    with Run({("rollout", 1): "environment_fails_always"}) as run:
        run.memory.policies[0].weights.publish(b"initial.", 1)
        run.memory.policies[0].weights.publish(b"learned.", 2)
        run.until(lambda: run.placement.restarts > 3)


def test_failures_that_are_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    with Run({}, {}, **{"sampling.max_restarts": 2, "sampling.restart_window": 10}) as run:
        monkeypatch.setattr(supervisor_module, "monotonic", lambda: now[0])
        for now[0] in (0, 1, 11, 12, 22, 23):
            run.supervisor._count_failure("it ended", "")
        with pytest.raises(RunFailed, match="failure 3 within 10 s"):
            run.supervisor._count_failure("it ended", "")


# -- requests for actions -------------------------------------------------------------------------------------------------


def test_a_dead_policy_workers_requests_are_asked_again() -> None:
    with Run({("policy", 1): "claim_and_be_killed"}, {"policy": 2}) as run:
        requests = run.memory.requests
        requests.request(2)
        run.until_said(r"policy worker 1 ended \(killed by SIGKILL\): 1 requests asked again")
        assert requests._words.load(2) == WAITING
        # The number may be queued twice: also by a sweep that came while the dead worker held it and had not claimed it yet.
        queued = requests.queued(0)
        assert set(queued) == {2}
        # It does no harm: `claim` moves the request word once, whatever the queue says.
        assert requests.claim([*queued, 2], 0) == [2]


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANSWER_TIMEOUT", "KILL_TIMEOUT", "SHUTDOWN_TIMEOUT", "START_AGAIN"):
        monkeypatch.setattr(supervisor_module, name, 1.0)


def test_a_policy_worker_that_never_answers_a_dead_worker_is_replaced_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor_module, "ANSWER_TIMEOUT", 1000.0)
    behaviours = {("rollout", 0): "request_and_be_killed", ("policy", 0): "claim_and_never_answer", ("rollout", 1): "work"}
    with Run(behaviours, {"policy": 1, "rollout": 3}) as run:
        run.until(lambda: any(c.ended for c in run.supervisor.children))
        assert run.memory.requests._words.load(0) == TAKEN
        os.kill(run.pid("rollout", 2), signal.SIGKILL)  # somebody else dies meanwhile
        run.until_said(r"rollout worker 2 ended .*a new one starts")
        assert "rollout worker 0 ended" not in run.text
        monkeypatch.setattr(supervisor_module, "ANSWER_TIMEOUT", 1.0)
        run.until_said(r"policy worker 0 ended \(no answer for 1 s\): 1 requests asked again")
        run.until_said(r"rollout worker 0 ended \(killed by SIGKILL\): 0 slots returned")
        assert run.memory.requests._words.load(0) == 0


def test_lost_hints_are_found_by_a_sweep() -> None:
    with Run({}, {"rollout": 1}) as run:
        requests, store = run.memory.requests, run.memory.policies[0].trajectories
        requests.request(1)
        slot = store.acquire(0, timeout=0)
        assert slot is not None
        store.finish(slot)
        assert requests._queues[0].get(timeout=0) == 1
        assert store._ready.get(timeout=0) is not None
        run.until(lambda: store.qsize() and requests._queues[0].qsize())
        assert store.take(timeout=0) == slot
        assert requests.claim(requests.queued(0), 0) == [1]


# -- hung processes -------------------------------------------------------------------------------------------------------


def test_who_hangs_is_shown_and_replaced() -> None:
    with Run({("rollout", 0): "hang"}, **{"sampling.step_timeout": 1}) as run:
        run.until_said(r"rollout worker 0 hangs: no heartbeat for \d+ s \(sampling.step_timeout: 1 s\)")
        run.until_said(r"rollout worker 0 ended \(hung\)(.|\n)*in hang\n")
        run.pid("rollout", 0)


def test_who_is_stopped_cannot_show_its_stack_and_is_replaced_all_the_same() -> None:
    with Run({("policy", 0): "be_stopped"}, {"policy": 1}, **{"sampling.step_timeout": 1}) as run:
        run.until_said(r"policy worker 0 ended \(hung\)")
        run.pid("policy", 0)


def test_a_hung_learner_has_a_limit_of_its_own() -> None:
    settings = {"learning.update_timeout": 1, "sampling.step_timeout": 1000}
    with Run({("learner", 0): "hang"}, {"learner": 1}, **settings) as run:
        run.until_said(r"learner hangs: no heartbeat for \d+ s \(learning.update_timeout: 1 s\)")
        run.until_said(r"learner ended \(hung\)")


def test_nobody_hangs_before_the_learners_are_ready() -> None:
    with Run({("rollout", 0): "hang"}, {"rollout": 1}, **{"sampling.step_timeout": 0.5}) as run:
        run.memory.control._words.store(1, 0)  # not ready
        run.until(lambda: run.memory.control.heartbeat("rollout", 0))
        run.messages += run.supervisor.messages(2)
        run.memory.control.set_ready(0)
        assert not any("hangs" in str(message.content) for message in run.supervisor.messages(0.1)), "its time begins now"
        run.until_said("rollout worker 0 hangs")


def test_the_time_for_which_everybody_was_stopped_is_nobodys_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    with Run({("rollout", 0): "hang"}, {"rollout": 1}, **{"sampling.step_timeout": 30}) as run:
        run.until(lambda: run.memory.control.heartbeat("rollout", 0))
        real = hangs.perf_counter
        monkeypatch.setattr(hangs, "perf_counter", lambda: real() + 100)  # Ctrl-Z, and `fg`
        run.messages += run.supervisor.messages(0.5)
        assert "hangs" not in run.text


# -- reports --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", ["report_half_and_be_stopped", "report_half_and_be_killed"])
def test_half_a_report_holds_up_nobody(behaviour: str) -> None:
    """Stopped, or killed while another process keeps the pipe open: the other half never comes, nor does the end."""
    with Run({("rollout", 0): behaviour}, **{"sampling.step_timeout": 3}) as run:
        os.kill(run.pid("rollout", 1), signal.SIGKILL)
        run.until_said("rollout worker 1 ended .*a new one starts")
        run.until_said("rollout worker 0 ended .*a new one starts")
        run.until_said("rollout 0 is process")


def test_what_is_no_report_is_said_once_and_the_run_goes_on() -> None:
    with Run({("rollout", 0): "report_nonsense"}) as run:
        run.until_said(r"rollout worker 0: what it reports cannot be read \(\w+.*\); nothing more is read from it")
        os.kill(run.pid("rollout", 1), signal.SIGKILL)
        run.until_said("rollout worker 1 ended .*a new one starts")
        assert run.text.count("cannot be read") == 1


def test_who_reports_without_end_does_not_keep_the_supervisor_from_the_others() -> None:
    with Run({("rollout", 0): "report_too_much"}) as run:
        run.until(lambda: len([m for m in run.messages if m.kind == "metrics"]) > 1000)
        os.kill(run.pid("rollout", 1), signal.SIGKILL)
        run.until_said("rollout worker 1 ended .*a new one starts")


# -- starting, stopping ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_waits")
def test_who_cannot_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [OSError("no more processes"), EOFError("the fork server is dead")]

    def start(job: Job, placement: Any) -> Worker:
        if refusals:
            raise refusals.pop(0)
        return Worker(job, placement)

    with Run({("rollout", 0): "exit_7"}) as run:
        monkeypatch.setattr(supervisor_module, "Worker", start)
        run.until_said("rollout 0 could not be started: OSError: no more processes; tried again in 1 s")
        run.until_said("rollout 0 could not be started: EOFError")
        run.pid("rollout", 0)


def test_a_run_whose_processes_cannot_be_started_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: Any) -> Worker:
        raise OSError("no more processes")

    monkeypatch.setattr(supervisor_module, "Worker", start)
    run = Run({})
    with pytest.raises(RunFailed, match="no more processes"):
        run.__enter__()
    run.supervisor.kill()


def test_stop_lets_everybody_end_and_hears_the_learners_last_words() -> None:
    with Run({("learner", 0): "last_words"}, {"learner": 1, "rollout": 2}) as run:
        run.pid("rollout", 1)
        run.until(lambda: run.memory.control.heartbeat("learner", 0))
        run.messages += run.supervisor.stop()
        assert run.text.count("ends") == 2
        assert [m.kind for m in run.messages].count("done") == 1  # the last of all, but on a busy machine
        assert not run.supervisor.children
        assert run.placement.restarts == 0


def test_the_user_is_told_where_the_last_checkpoint_was_not_written() -> None:
    with Run({("learner", 0): "be_killed_at_the_end"}, {"learner": 1}) as run:
        run.until(lambda: run.memory.control.heartbeat("learner", 0))
        run.messages += run.supervisor.stop()
        assert "learner ended (killed by SIGKILL): its last checkpoint was not written" in run.text
    with Run({("learner", 0): "never_end"}, {"learner": 1}, **{"learning.update_timeout": 1.0}) as run:
        run.until(lambda: run.memory.control.heartbeat("learner", 0))
        run.messages += run.supervisor.stop()
        assert "learner is killed after 1 s (learning.update_timeout): its last checkpoint was not written" in run.text


@pytest.mark.usefixtures("short_waits")
def test_stop_ends_who_does_not_end_and_waits_for_the_learner() -> None:
    with Run({("rollout", 0): "never_end"}, {"learner": 1, "rollout": 1}) as run:
        run.until(lambda: run.memory.control.heartbeat("rollout", 0))
        run.pid("learner", 0)
        os.kill(learner := run.pid("learner", 0), signal.SIGSTOP)
        stop = run.supervisor.stop()
        for message in stop:
            run.messages.append(message)
            if "The learner is waited for" in str(message.content):
                os.kill(learner, signal.SIGCONT)
        assert "learner 0 ends" in run.text
        assert not run.supervisor.children


def test_kill_ends_everybody_at_once() -> None:
    with Run({("rollout", 0): "never_end", ("rollout", 1): "be_stopped"}) as run:
        run.until(lambda: run.memory.control.heartbeat("rollout", 0) and run.memory.control.heartbeat("rollout", 1))
        pids = [c.process.pid for c in run.supervisor.children]
        assert all(alive(pid) for pid in pids)
        run.supervisor.kill()
        assert not any(alive(pid) for pid in pids)


@pytest.mark.usefixtures("short_waits")
def test_a_process_that_the_kernel_holds_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if waiting for a device or a disk: killed, and still there."""
    held = []
    gone = Worker.gone.fget
    assert gone is not None
    monkeypatch.setattr(Worker, "gone", property(lambda child: child not in held and gone(child)))
    with Run({("rollout", 0): "hang"}, **{"sampling.step_timeout": 1}) as run:
        held.append(run.supervisor.children[0])
        run.until_said(r"rollout worker 0 was killed 1 s ago; process \d+ is still there, in the kernel")
        run.until_said(r"rollout worker 0 ended \(hung\)")
        run.pid("rollout", 0)


def test_who_survives_the_fork_server_is_replaced_not_doubled() -> None:
    """With the fork server dies what is known of its children; they must not go on beside those that take their places."""
    with Run({("rollout", 0): "never_end", ("rollout", 1): "never_end"}) as run:
        run.until(lambda: all(run.memory.control.heartbeat("rollout", i) for i in range(2)))
        pids = [c.process.pid for c in run.supervisor.children]
        server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        os.kill(server, signal.SIGKILL)
        run.until_said(r"rollout worker \d ended", times=2)
        assert not any(alive(pid) for pid in pids)
        run.pid("rollout", 0)
        run.pid("rollout", 1)


@pytest.mark.parametrize("size", [10, 1_000_000])  # what the process is given fits into a pipe, or not
def test_a_fork_server_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(supervisor_module, "FORK_SERVER_TIMEOUT", 1.0)
    monkeypatch.setattr(supervisor_module, "Watchdog", functools.partial(Watchdog, limit=0.5, interval=0.1))
    with Run({("nobody", 0): "x" * size}) as run:
        pids = [run.pid("rollout", i) for i in range(2)]
        server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        os.kill(server, signal.SIGSTOP)
        os.kill(pids[0], signal.SIGKILL)
        run.until(lambda: not alive(server))
        monkeypatch.setattr(supervisor_module, "FORK_SERVER_TIMEOUT", 100.0)  # the next one has to import first
        for i in range(2):
            run.until_said(f"rollout {i} is process", times=2)
        assert not any(alive(pid) for pid in (server, *pids))


# -- the supervisor's own heartbeat ---------------------------------------------------------------------------------------


def test_the_supervisor_has_a_heartbeat() -> None:
    with Run({}) as run:
        before = run.memory.control.supervisor_heartbeat
        assert before > 0
        run.messages += run.supervisor.messages(0.2)
        assert run.memory.control.supervisor_heartbeat > before


class Clock:
    """Stands for `perf_counter` of the supervisor and of its watchdog, which looks at it once in each of its rounds."""

    def __init__(self) -> None:
        self.now, self.looks = 100.0, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now

    def let_it_look(self, seconds: float) -> None:
        """So much later the watchdog looks several times."""
        self.now, looks = self.now + seconds, self.looks
        wait_here(lambda: self.looks > looks + 3)


@pytest.fixture
def watchdog(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[str], Clock]]:
    control, shown, clock = make_placement().memory.control, list[str](), Clock()
    for module in (hangs, run_control):
        monkeypatch.setattr(module, "perf_counter", clock)
    dog = Watchdog(control, show=shown.append, limit=4.0, interval=0.001)
    dog.start()
    yield control, shown, clock
    dog.stop()


def test_a_supervisor_that_waits_is_shown_with_its_stack(watchdog: tuple[Any, list[str], Clock]) -> None:
    control, shown, clock = watchdog
    for _ in range(5):
        control.supervisor_lives()
        clock.let_it_look(3.9)
    assert shown == []
    clock.let_it_look(0.2)
    assert re.match(r"The supervisor has not looked at the processes for 4 s. It is here:(.|\n)*in let_it_look\n", shown[0])
    clock.let_it_look(3.0)
    assert len(shown) == 1  # once
    control.supervisor_lives()
    clock.let_it_look(0.1)
    assert shown[1:] == ["The supervisor goes on"]


def test_the_time_for_which_the_watchdog_was_stopped_too_is_nobodys_silence(watchdog: tuple[Any, list[str], Clock]) -> None:
    _, shown, clock = watchdog
    clock.let_it_look(1000.0)
    assert shown == []


def wait_here(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
