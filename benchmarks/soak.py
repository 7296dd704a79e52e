"""Real training under a hail of faults: how many were survived, and how long each took.

    python benchmarks/soak.py served --faults 200      every number that reaches the learner is checked
    python benchmarks/soak.py cartpole                 until CartPole is solved all the same (mean return 475)

Configurations: `served` and `inline` (the counting world, one policy), `policies` and `policies-inline` (two policies, two
learners), `replay` (Ape-X's way of learning), `remote` (CartPole at an environment server and beside it), `cartpole`.

Faults come one by one or up to six at a time, at random instants: kill -9 of a rollout worker, a policy worker, a learner, the
fork server (and with it all processes but the main one), the environment server (then another is started), the whole run (then
the same command again); SIGSTOP for a second of each part. They are survived when the step counter of every policy goes on within
`--patience` seconds, and when the run in the end stops at Ctrl-C with nothing left behind. Adds its counts to results/soak.json,
and prints the table of all that were counted there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import summary

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / folder) for folder in ("envs", "envs/remote", "faults")]
from harness import COUNTING, Run  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "soak.json"
ROLES = {"rollout worker": "rollout-", "policy worker": "policy-", "learner": "learner"}
WEIGHTS = {
    "kill rollout worker": 10, "kill policy worker": 6, "kill learner": 2, "kill fork server": 1, "kill environment server": 2,
    "kill the whole run": 1, "stop rollout worker 1 s": 0.5, "stop policy worker 1 s": 0.5, "stop learner 1 s": 0.5,
    "stop fork server 1 s": 0.5,
}  # fmt: skip
ONCE = ("kill fork server", "kill the whole run")
"""At most once in a salvo: nobody else is there for a while."""
FOREVER = {"learning.total_steps": 10**9}
COUNT = {"learning.algorithm": "counting", **FOREVER}
TWO = {**COUNT, "population.size": 2}
REPLAY = {
    "learning.algorithm": "counting-replay", "learning.experience": "replay", "learning.batch_size": 64, "learning.gamma": 0.5,
    "replay.capacity": 4000, "replay.minimum": 500, "replay.slack": 2.0, **FOREVER,
}  # fmt: skip
CARTPOLE = {"sampling.rollout": 32, "sampling.envs_per_worker": 8, "learning.batch_size": 1024}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "served": {**COUNT, "sampling.num_policy_workers": 2},
    "inline": {**COUNT, "sampling.placement": "inline"},
    "policies": {**TWO},
    "policies-inline": {**TWO, "sampling.placement": "inline"},
    "replay": REPLAY,
    "remote": {**CARTPOLE, **FOREVER, "learning.algorithm": "appo"},
    "cartpole": {**CARTPOLE, "sampling.num_policy_workers": 2, "run.goal": 475, **FOREVER},
}
SERVER_FLAGS = ("--num-envs", "16")


class Soak:
    """One run and what is done to it. `server`: the environment server, a `ServerProcess`."""

    def __init__(self, run: Run, args: argparse.Namespace, server: Any, log: Path):
        self.run, self.args, self.server, self.log = run, args, server, log
        self.rng = random.Random(args.seed)
        two = CONFIGURATIONS[args.configuration].get("population.size") == 2
        self.policies = ("policy-0", "policy-1") if two else ("",)
        self.counts: dict[str, int] = defaultdict(int)
        """Faults by kind."""
        self.seconds: list[float] = []
        """From the last fault of a salvo until every learner goes on."""
        self.salvos: list[int] = []
        """How many faults each of these followed."""

    @property
    def over(self) -> bool:
        """Whether the run has ended by itself."""
        assert self.run.process is not None
        return self.run.process.poll() is not None

    def go(self) -> None:
        """Inject until there were enough faults, the time is over or the run has reached its goal. Raises AssertionError with the
        run's output when it does not go on."""
        end = time.monotonic() + 60 * self.args.minutes
        while sum(self.counts.values()) < self.args.faults and time.monotonic() < end and not self.over:
            time.sleep(self.rng.random())
            salvo = self.rng.choice((1, 1, 1, 2, 3, 6))
            done: list[str] = []
            began = time.monotonic()
            while len(done) < salvo and not self.over and time.monotonic() < began + self.args.patience:
                kind = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
                if kind not in ONCE or kind not in done:
                    done += [kind] * self._inject(kind)
                time.sleep(self.rng.random() * 0.3)
            self._goes_on(done)
            print(f"\r{sum(self.counts.values())} faults, step {self.run.step(self.policies[0]):,}   ", end="", file=sys.stderr)

    def _inject(self, kind: str) -> bool:
        """Do it; False where the process is not there at this moment."""
        verb, _, what = kind.removesuffix(" 1 s").partition(" ")
        # The learner of a run without a checkpoint begins anew, and a new run is none that was resumed.
        if what in ("learner", "the whole run") and not all(self.run.checkpoints(policy) for policy in self.policies):
            return False
        if what == "the whole run":
            self.run.kill_and_start_again()
        elif what == "environment server":
            if self.server is None:
                return False
            self.server.kill()
            time.sleep(self.rng.random() * 2)
            self.server.start(self.log)
        else:
            server = self.run.fork_server()
            pids = self.run.pids(ROLES[what]) if what in ROLES else [server] if server else []
            if not pids or not self._signal(self.rng.choice(pids), signal.SIGKILL if verb == "kill" else signal.SIGSTOP):
                return False
        self.counts[kind] += 1
        return True

    def _signal(self, pid: int, number: signal.Signals) -> bool:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(1)
                os.kill(pid, signal.SIGCONT)
            return True
        return False

    def _goes_on(self, faults: list[str]) -> None:
        since, began = time.time(), time.monotonic()
        what = f"progress after {', '.join(faults)} (seed {self.args.seed})"
        for policy in self.policies:
            self._wait(what, lambda policy=policy: self._progress(policy, since))  # type: ignore[misc]
        if "kill environment server" in faults:
            back = f"Environment server {self.server.address} is back"
            asked = self.counts["kill environment server"] > 0
            self._wait(f"{back} after {', '.join(faults)}", lambda: not asked or back in self.run.output)
        self.seconds.append(time.monotonic() - began)
        self.salvos.append(len(faults))

    def _wait(self, what: str, condition: Callable[[], Any]) -> None:
        if not self.over:
            with suppress(AssertionError):
                self.run.wait_for(what, condition, self.args.patience)
                return
        assert self.run.process is not None
        if self.run.process.poll() != 0:  # 0: it has reached its goal
            raise AssertionError(f"no {what} (exit code {self.run.process.poll()}):\n{self.run.story}")

    def _progress(self, policy: str, since: float) -> bool:
        """Whether the step counter has grown since then, by two reports of it."""
        path = self.run.folder / policy / "metrics.jsonl"
        if not path.exists():
            return False
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 20_000))
            lines = file.read().decode(errors="replace").splitlines()[1:]
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        steps = [row["global_step"] for row in rows if row["time"] > since and "charts/updates" in row]
        return bool(steps) and steps[-1] > steps[0]

    def end(self) -> str:
        """Ctrl-C, where the run has not ended by itself; the line about its end. Nothing is left of it."""
        assert self.run.process is not None
        if not self.over:
            self.run.process.send_signal(signal.SIGINT)
        code = self.run.end(300)
        assert code == (0 if self.args.configuration == "cartpole" else 130), self.run.story
        self.run.assert_nothing_left()
        stood = [line for line in self.run.output.splitlines() if "supervisor has not looked" in line or " hangs: " in line]
        assert not stood, f"{stood}:\n{self.run.story}"
        return next(line for line in reversed(self.run.output.splitlines()) if " at step " in line)


def one_run(args: argparse.Namespace) -> dict[str, Any]:
    """Start, inject, stop; what came of it."""
    settings = dict(CONFIGURATIONS[args.configuration])
    counting = args.configuration not in ("remote", "cartpole")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server, log = None, folder / "server.log"
        if args.configuration == "remote":
            from remote_servers import ServerProcess

            server = ServerProcess(*SERVER_FLAGS)
            stack.callback(server.kill)
            server.start(log)
            settings["envs.remote"] = f"{server.address},local"
        env = "counting" if counting else "gym/CartPole-v1"
        run = Run(folder / "run", env=env, imports=COUNTING if counting else None, **settings)
        if args.configuration == "replay":
            run.command.insert(run.command.index(str(COUNTING)) + 1, str(TESTS / "experience" / "counting_replay.py"))
        with run:
            soak = Soak(run, args, server, log)
            for policy in soak.policies:
                run.wait_for("the first steps", lambda policy=policy: run.step(policy), 240)
            began = time.monotonic()
            soak.go()
            minutes = (time.monotonic() - began) / 60
            end = soak.end()
            steps = sum(run.step(policy) for policy in soak.policies)
    print(f"\n{args.configuration}, seed {args.seed}: {minutes:.1f} minutes, {steps:,} steps; nothing left behind. {end}\n")
    how = {"seed": args.seed, "minutes": round(minutes, 1), "steps": steps, "end": end, "load": os.getloadavg()[2]}
    return how | {"faults": soak.counts, "salvos": soak.salvos, "seconds": [round(s, 2) for s in soak.seconds]}


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """All runs so far, by configuration."""
    kinds = [kind for kind in WEIGHTS if any(kind in run["faults"] for name in runs for run in runs[name])]
    lines = [f"| configuration | {' | '.join(kinds)} | minutes | seconds to go on (median, longest) |"]
    lines.append("|---|" + "---|" * (len(kinds) + 2))
    totals: dict[str, int] = defaultdict(int)
    for name, of_name in runs.items():
        counts = {kind: sum(run["faults"].get(kind, 0) for run in of_name) for kind in kinds}
        seconds = [s for run in of_name for s in run["seconds"]]
        for kind, n in counts.items():
            totals[kind] += n
        numbers = " | ".join(str(n or "") for n in counts.values())
        times = f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"
        lines.append(f"| {name} | {numbers} | {sum(run['minutes'] for run in of_name):.0f} | {times} |")
    lines.append(f"| all | {' | '.join(str(totals[kind]) for kind in kinds)} | | |")
    kills = sum(n for kind, n in totals.items() if kind.startswith("kill"))
    return "\n".join(lines) + f"\n\n{kills:,} kills, {sum(totals.values()) - kills:,} stops; all survived."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configuration", choices=CONFIGURATIONS)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=7, help="no more faults after this")
    parser.add_argument("--patience", type=float, default=120, help="seconds within which every learner must go on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="results file, to which this run is added")
    args = parser.parse_args()
    result = one_run(args)
    runs = json.loads(args.out.read_text())["runs"] if args.out.exists() else {}
    runs.setdefault(args.configuration, []).append(result)
    summary.write(args.out, {"machine": summary.machine(), "runs": runs})
    print(table(runs))


if __name__ == "__main__":
    main()
