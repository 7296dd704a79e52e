"""Minutes of training under random faults, one by one or up to six at a time: kill -9 of a rollout worker, a policy worker, a
learner, the fork server (and with it all processes but the main one), the environment server (then another is started) and the
whole run (then the same command again), and SIGSTOP of each part for a second.

Faults are survived when the step counter of every policy goes on, and when the run in the end stops with nothing left behind. In
the counting world every number that reaches a learner is checked.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from harness import Run
from test_kills import NEVER, counting_run
from test_replay_kills import replay_run

pytestmark = pytest.mark.process

PATIENCE = 120.0
"""Seconds within which training must go on after faults."""
ROLES = {"rollout worker": "rollout-", "policy worker": "policy-", "learner": "learner"}
WEIGHTS = {
    "kill rollout worker": 10, "kill policy worker": 6, "kill learner": 2, "kill fork server": 1, "kill environment server": 2,
    "kill the whole run": 1, "stop rollout worker": 0.5, "stop policy worker": 0.5, "stop learner": 0.5, "stop fork server": 0.5,
}  # fmt: skip
ONCE = ("kill fork server", "kill the whole run")
"""At most once at a time: nobody else is there for a while."""
CARTPOLE = {
    "sampling.rollout": 32, "sampling.envs_per_worker": 8, "learning.batch_size": 1024, "learning.algorithm": "appo",
    "learning.total_steps": NEVER,
}  # fmt: skip
TWO = {"population.size": 2}
INLINE = {"sampling.placement": "inline"}
MADE: dict[str, Callable[[Path], Run]] = {
    "served": lambda folder: counting_run(folder, **{"sampling.num_policy_workers": 2}),
    "inline": lambda folder: counting_run(folder, **INLINE),
    "two policies": lambda folder: counting_run(folder, **TWO),
    "two policies, inline": lambda folder: counting_run(folder, **TWO, **INLINE),
    "replay": lambda folder: replay_run(folder),
}


class Faults:
    """A run and what is done to it. `server`: its environment server, a `ServerProcess`."""

    def __init__(self, run: Run, policies: tuple[str, ...] = ("",), server: Any = None) -> None:
        self.run, self.policies, self.server = run, policies, server
        self.counts: Counter[str] = Counter()
        self._rng = random.Random(int(os.environ.get("HEADRACE_SEED", 0)))

    @property
    def over(self) -> bool:
        """Whether the run has ended by itself."""
        assert self.run.process is not None
        return self.run.process.poll() is not None

    def inject(self, faults: int, minutes: float) -> None:
        """Until there were so many faults, the time is over or the run has ended by itself."""
        until = time.monotonic() + 60 * minutes
        while self.counts.total() < faults and time.monotonic() < until and not self.over:
            time.sleep(self._rng.random())
            at_once, began = self._rng.choice((1, 1, 1, 2, 3, 6)), time.monotonic()
            done: list[str] = []
            while len(done) < at_once and not self.over and time.monotonic() < began + PATIENCE:
                kind = self._rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
                if (kind not in ONCE or kind not in done) and self._inject(kind):
                    done.append(kind)
                time.sleep(self._rng.random() * 0.3)
            self._goes_on(done)
            self.counts.update(done)

    def _inject(self, kind: str) -> bool:
        """Do it; False where the process is not there at this moment."""
        verb, _, what = kind.partition(" ")
        # The learner of a run without a checkpoint begins anew, and so does a run that is started again.
        if what in ("learner", "the whole run") and not all(self.run.checkpoints(policy) for policy in self.policies):
            return False
        if what == "the whole run":
            self.run.kill_and_start_again()
            return True
        if what == "environment server":
            if self.server is None:
                return False
            self.server.kill()
            time.sleep(self._rng.random() * 2)
            self.server.start(self.run.folder.with_name("server.log"))
            return True
        fork_server = self.run.fork_server()
        pids = self.run.pids(ROLES[what]) if what in ROLES else [fork_server] if fork_server else []
        return bool(pids) and self._signal(self._rng.choice(pids), verb)

    def _signal(self, pid: int, verb: str) -> bool:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
            if verb == "stop":
                time.sleep(1)
                os.kill(pid, signal.SIGCONT)
            return True
        return False

    def _goes_on(self, faults: list[str]) -> None:
        since = time.time()
        for policy in self.policies:
            self._wait(f"progress after {faults}", lambda policy=policy: self._progress(policy, since))
        # Workers that were started anew meanwhile know nothing of its absence.
        if "kill environment server" in faults and not set(faults) & set(ONCE):
            self._wait(f"return after {faults}", lambda: f"{self.server.address} is back" in self.run.output)

    def _progress(self, policy: str, since: float) -> bool:
        """Whether the step counter has grown since then, by two lines of metrics."""
        steps = [row["global_step"] for row in self.run.metrics(policy) if row["time"] > since and "charts/updates" in row]
        return bool(steps) and steps[-1] > steps[0]

    def _wait(self, what: str, condition: Callable[[], Any]) -> None:
        if not self.over:
            with suppress(AssertionError):
                self.run.wait_for(what, condition, PATIENCE)
                return
        assert self.run.process is not None
        assert self.run.process.poll() == 0, f"no {what}:\n{self.run.story}"  # 0: it has reached its goal

    def stop(self, code: int = 130) -> None:
        """Ctrl-C, where the run has not ended by itself. Nothing is left of it, and nothing counted as hung."""
        assert self.run.process is not None
        if not self.over:
            self.run.process.send_signal(signal.SIGINT)
        assert self.run.end(300) == code, self.run.story
        self.run.assert_nothing_left()
        assert "supervisor has not looked" not in self.run.output
        assert " hangs: " not in self.run.output
        print(f"{self.counts.total()} faults: {dict(self.counts)}", flush=True)
        assert self.counts.total() > 20, "few faults: the test shows nothing"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MADE)
def test_random_faults_with_every_number_checked(tmp_path: Path, name: str) -> None:
    policies = ("policy-0", "policy-1") if "two" in name else ("",)
    with MADE[name](tmp_path / "run") as run:
        faults = Faults(run, policies)
        for policy in policies:
            run.wait_for("the first steps", lambda policy=policy: run.step(policy), 240)
        faults.inject(100, minutes=4)
        faults.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_random_faults_with_an_environment_server(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    from remote_servers import ServerProcess

    server = ServerProcess("--num-envs", "16")
    with ExitStack() as stack:
        stack.callback(server.kill)
        server.start(tmp_path / "server.log")
        settings = {**CARTPOLE, "envs.remote": f"{server.address},local"}
        run = stack.enter_context(Run(tmp_path / "run", env="gym/CartPole-v1", **settings))
        faults = Faults(run, server=server)
        run.wait_for("the first steps", run.step, 240)
        faults.inject(100, minutes=4)
        faults.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_cartpole_is_solved_under_random_faults(tmp_path: Path) -> None:
    settings = {**CARTPOLE, "sampling.num_policy_workers": 2, "run.goal": 475}
    with Run(tmp_path / "run", env="gym/CartPole-v1", **settings) as run:
        faults = Faults(run)
        run.wait_for("the first steps", run.step, 240)
        faults.inject(1000, minutes=20)
        faults.stop(code=0)
