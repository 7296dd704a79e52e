"""Training with environments near and far: frames/s and policy lag of IMPALA on MinAtar Breakout, and on Atari Pong.

    pip install minatar
    python benchmarks/remote_training.py [--rounds 3] [--seconds 10] [--lines 0:8] [--json FILE] [--add]

On MinAtar everybody trains the network of `examples/impala.py` with its numbers: batches of 640 steps, groups of 16
environments, frameskip 1, so that a frame is a step. The example has two actors of 16 environments each. Pong has its own
defaults and frameskip 4; its numbers are steps. `far` means: at a `headrace serve-envs` on this machine, with the round trip
that a relay in user space adds (`remote_envs.py --relay`, a process which takes processor time of its own; the kernel of the
machine that the results are of has no netem). All processes share the cores of one machine: what the table says of delay is how
much of it is hidden, not what a second machine would bring.

Runs take turns in rounds. A run is started anew for each, left alone for some seconds, and then measured; medians of the rounds.
Results are written after every run; with --add the rounds that are in the file already count, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import summary  # noqa: E402
from remote_envs import relaying  # noqa: E402

PONG = "atari/pong"
ENV, FILE, EXAMPLE = "minatar/breakout", HERE / "learning" / "worlds.py", HERE.parent / "examples" / "impala.py"
ENVS = 16
"""Of a group, where the line does not say otherwise."""
START = 90.0
"""Seconds that a run may take until it has learned from something."""
RELAY = 0.001
"""Milliseconds of round trip: through the relay, which takes time of the same cores, but without delay. What 1 ms costs beyond
that is what is not hidden."""
WARM = 3.0
"""Seconds from then until measuring."""


@dataclass(frozen=True)
class Run:
    """One line of the table."""

    name: str
    placement: str
    groups: int = 2
    delay: float | None = None
    """Milliseconds of round trip; None: environments of the run's own processes."""
    settings: tuple[str, ...] = ()
    envs: int = ENVS
    """Of a group."""
    env: str = ENV

    @property
    def flags(self) -> list[str]:
        """Of `headrace train`."""
        sizes = {"num-workers": 1, "num-groups": self.groups, "envs-per-worker": self.envs * self.groups}
        flags = ["--learning.algorithm", "impala", "--sampling.placement", self.placement]
        flags += [part for name, n in sizes.items() for part in (f"--sampling.{name}", str(n))]
        return [*flags, *self.settings]


AS_EXAMPLE = ("--sampling.num-workers", "2", "--sampling.num-groups", "1", "--sampling.envs-per-worker", str(ENVS))
SEED = ("--sampling.min-request-groups", "4", "--sampling.batch-timeout", "1")
POLYBEAST = ("--sampling.envs-per-worker", "32", "--sampling.min-request-groups", "1", "--sampling.batch-timeout", "0")
RUNS = [
    Run("examples/impala.py", "", 2),
    Run("inline, near, as the example", "inline", 2, None, AS_EXAMPLE),
    Run("inline, near", "inline"),
    Run("served, near", "served"),
    *(Run("inline, far", "inline", 2, delay) for delay in (0, 20)),
    # the same number of groups with and without delay one after the other, so that other work on the machine disturbs both
    *(Run("served, far", "served", groups, delay) for groups, delay in ((1, 0), (1, 1), (2, 0), (2, 1), (2, 20))),
    *(Run("served, far", "served", groups, delay) for groups in (8, 16, 32) for delay in (0, 20)),
    *(Run("served, far, groups of 32", "served", groups, delay, envs=32) for groups in (2, 4) for delay in (0, RELAY, 1)),
    *(Run("served, far, Pong, groups of 32", "served", g, delay, (), 32, PONG) for g in (1, 2) for delay in (0, RELAY, 1)),
    Run("as SEED: all groups in a batch", "served", 4, 0, SEED),
    Run("as PolyBeast: a stream for each environment", "served", 32, 0, POLYBEAST),
]


def serve(env: str, imports: list[str], stack: ExitStack) -> str:
    """Start an environment server for the time of the stack; its address. `imports`: flags."""
    command = [sys.executable, "-m", "headrace.cli", "serve-envs", "--env", env, "--num-envs", "1024"]
    command += ["--listen", "127.0.0.1:0", *imports]
    server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    stack.callback(server.terminate)
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"127\.0\.0\.1:\d+", line):
            return found[0]
    raise SystemExit("the environment server did not start")


def engine(run: Run, seconds: float) -> dict[str, float]:
    """Frames/s and lag of `headrace train`."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="remote-training-"))
        imports = ["--import", str(FILE)] if run.env == ENV else []
        command = [sys.executable, "-m", "headrace.cli", "train", "--env", run.env, *imports, *run.flags]
        command += ["--run.folder", folder, "--run.log-interval", "0.5", "--run.no-video", "--run.no-dashboard"]
        command += ["--learning.total-steps", "1000000000"]
        if run.delay is not None:
            command += ["--envs.remote", stack.enter_context(relaying(serve(run.env, imports, stack), run.delay))]
        log = stack.enter_context((Path(folder) / "output").open("w+"))
        process = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(stop, process)
        metrics = Path(folder) / "metrics.jsonl"
        deadline = time.monotonic() + START
        while not (metrics.exists() and "charts/SPS_interval" in metrics.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{run.name}: it did not begin\n{Path(log.name).read_text()[-2000:]}")
            time.sleep(0.1)
        time.sleep(WARM)
        before = len(metrics.read_text().splitlines())
        time.sleep(seconds)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()[before:]]
        known = [row for row in rows if "lag/mean" in row]
        return {
            "frames_per_s": mean(row["charts/SPS_interval"] for row in rows),
            "lag": mean(row["lag/mean"] for row in known),
            "largest_lag": max(row["lag/max"] for row in known),
        }


def example(seconds: float) -> dict[str, float]:
    """Frames/s and lag of the one-file example, from what it prints."""
    command = [sys.executable, str(EXAMPLE), "--total-steps", "1000000000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        lines = printed(process)
        next(lines)  # after about 5 s
        at, step, _ = next(lines)
        lags = []
        for then, now, lag in lines:
            lags.append(lag)
            if then - at >= seconds - 0.5:
                return {"frames_per_s": (now - step) / (then - at), "lag": mean(lags), "largest_lag": max(lags)}
    finally:
        stop(process)
    raise SystemExit("the example has ended")


def printed(process: subprocess.Popen[str]) -> Iterator[tuple[float, int, float]]:
    """When a line came, its step and its lag."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.match(r"step +([\d,]+) .* lag ([\d.]+)", line):
            yield time.monotonic(), int(found[1].replace(",", "")), float(found[2])


def stop(process: subprocess.Popen[Any]) -> None:
    """Ctrl-C, and kill -9 if that does not help."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def table(results: dict[Run, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Medians of the rounds."""
    rows = []
    for run, rounds in results.items():
        if rounds:
            row = {"run": run.name, "groups": run.groups, "round_trip_ms": run.delay}
            row |= {key: round(median(found[key] for found in rounds), 1) for key in rounds[0]}
            rows.append(row | {"rounds": {key: [found[key] for found in rounds] for key in rounds[0]}})
    return rows


def earlier(path: Path) -> dict[tuple[Any, ...], list[dict[str, float]]]:
    """The rounds of a result file by run, groups and round trip; nothing where there is no file."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return {
        (row["run"], row["groups"], row["round_trip_ms"]): [
            dict(zip(row["rounds"], values, strict=True)) for values in zip(*row["rounds"].values(), strict=True)
        ]
        for row in rows
    }


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--lines", default=":", help="only these lines of the table, as FIRST:END")
    parser.add_argument("--add", action="store_true", help="add to the rounds that are in the file")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "remote_training.json")
    asked = parser.parse_args()
    before = earlier(asked.json) if asked.add else {}
    results = {run: before.get((run.name, run.groups, run.delay), []) for run in RUNS}
    first, end = (int(text) if text else None for text in asked.lines.split(":"))
    for number in range(asked.rounds):
        for run in RUNS[first:end]:
            found = engine(run, asked.seconds) if run.placement else example(asked.seconds)
            results[run].append({name: round(value, 2) for name, value in found.items()} | {"load": round(os.getloadavg()[0], 1)})
            print(time.strftime("%X"), number, run.name, run.groups, run.delay, results[run][-1], flush=True)
            facts = {"machine": summary.machine(), "seconds": asked.seconds}
            summary.write(asked.json, facts | {"rows": table(results)})
    print("| | groups | round trip | frames/s | lag, mean | largest |\n| --- | --- | --- | --- | --- | --- |")
    for row in table(results):
        delay = "-" if row["round_trip_ms"] is None else f"{row['round_trip_ms']} ms"
        numbers = f"{row['frames_per_s']:,.0f} | {row['lag']} | {row['largest_lag']:g}"
        print(f"| {row['run']} | {row['groups']} | {delay} | {numbers} |")


if __name__ == "__main__":
    main()
