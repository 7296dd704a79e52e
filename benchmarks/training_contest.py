"""Training throughput of Headrace beside another system's: what vs_*.py have in common.

Counted are steps that the learner has trained on, from the second batch on, for `seconds`; a step is one decision, 4 frames.
Rounds alternate and medians are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import summary

ROLLOUT, WORKERS, MARK = 32, 2, "HEADRACE_BENCHMARK"
Command = tuple[list[str], Callable[[str], list[int]]]
"""How to start a system, and what reads the steps trained on so far, in order, from what it has printed."""
System = Callable[[str, Path], Command]
"""Makes the command for an environment and a folder."""


def as_others(env: str) -> dict[str, Any]:
    """What other systems train Atari with, where Headrace's default is PQN with a smaller network."""
    return {"learning.algorithm": "ppo", "policy.encoder": "nature-cnn"} if env.startswith("atari/") else {}


SAME_LEARNING: dict[str, Any] = {
    "learning.returns": "gae",
    "learning.num_epochs": 1,
    "learning.num_minibatches": 1,
    "learning.precision": "auto",
}
"""One pass over each batch, like the other systems; how it is computed is left to Headrace."""
SAME_MEANS = SAME_LEARNING | {"learning.precision": "float32", "envs.atari_backend": "ale"}
"""The same number format and emulators, too."""


def headrace(env: str, envs: int, batch: int, folder: Path, like: dict[str, Any]) -> Command:
    """Headrace with these numbers and the settings `like` (`SAME_LEARNING`, `SAME_MEANS`, or others)."""
    settings: dict[str, Any] = {
        "sampling.placement": "served",
        "sampling.num_workers": WORKERS,
        "sampling.envs_per_worker": envs // WORKERS,
        "sampling.num_groups": 2,
        "sampling.rollout": ROLLOUT,
        "learning.batch_size": batch,
        "learning.device": "cpu",
        "learning.total_steps": 10**9,
        "run.checkpoint_interval": 1e6,
        "run.folder": folder,
    }
    settings |= as_others(env) | like
    if env.startswith("atari/") and "envs.atari_backend" in settings:
        settings["envs.kwargs"] = '{"noop_max": 30}'  # ale-py's no-ops at the start, which both backends know
    command = [sys.executable, "-m", "headrace.cli", "train", "--env", env, "--run.no-dashboard", "--run.no-video"]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]

    def steps(output: str) -> list[int]:
        metrics = folder / "metrics.jsonl"
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        return [int(json.loads(line)["global_step"]) for line in lines if line.endswith("}")]

    return command, steps


@contextlib.contextmanager
def running(make: System, env: str) -> Iterator[tuple[str, Callable[[], list[int]]]]:
    """A training in a folder that goes away: `MARK` of its processes, and what reads the steps trained on so far, in order. That
    raises RuntimeError once the training has ended, or has lasted five minutes without a step."""
    with tempfile.TemporaryDirectory() as temporary:
        command, steps = make(env, Path(temporary) / "run")
        log = Path(temporary) / "output"
        with log.open("wb") as out:
            # The mark is the shell's process id, which becomes the command's: whatever it starts inherits it.
            marked = ["sh", "-c", f'export {MARK}=$$; exec "$@"', "sh", *command]
            # In a folder that goes away: Doom engines leave their settings, _vizdoom.ini, wherever they are started.
            process = subprocess.Popen(
                marked, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, cwd=temporary
            )
        started = time.monotonic()

        def counted() -> list[int]:
            found = steps(log.read_text(errors="replace"))
            if process.poll() is not None or (not found and time.monotonic() - started > 300):
                raise RuntimeError(f"{command[:3]} does not train:\n{log.read_text(errors='replace')[-3000:]}")
            return found

        try:
            yield f"{MARK}={process.pid}", counted
        finally:
            end(process)


def measure(make: System, env: str, batch: int, seconds: float) -> float:
    """Steps per second that the learner trains on."""
    with running(make, env) as (_, steps):
        first: tuple[float, int] | None = None
        last = 0
        while True:
            time.sleep(0.05)
            counted = steps()
            if not counted or counted[-1] == last:
                continue
            now, last = time.monotonic(), counted[-1]
            if first is None and last >= 2 * batch:
                first = now, last
            elif first is not None and now - first[0] >= seconds:
                return (last - first[1]) / (now - first[0])


def marked_processes(mark: str) -> Iterator[int]:
    """The ids of all processes that descend from the one with this mark, itself included."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if mark.encode() in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                yield int(entry)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill everything that descends from the process. What Sample Factory leaves behind then is removed: torch's shared memory,
    Doom engines and theirs. Python's resource trackers are left to end by themselves: they remove semaphores then."""
    ids, engines = {process.pid}, set()
    for pid in marked_processes(f"{MARK}={process.pid}"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if not any("multiprocessing.resource_tracker" in word for word in words):
                ids.add(pid)
                engines |= {words[i + 1] for i, word in enumerate(words) if word == "+viz_instance_id"}
    for pid in ids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    for name in os.listdir("/dev/shm"):
        if any(name.startswith(f"torch_{pid}_") for pid in ids) or any(name.endswith(engine) for engine in engines):
            Path("/dev/shm", name).unlink(missing_ok=True)


def arguments(description: str | None, envs: list[str], out: str) -> argparse.ArgumentParser:
    """The flags of both scripts."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", type=interpreter, help="interpreter of the other system's virtual environment")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--envs", type=int, default=16, help="environments, in all")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--only", nargs="*", default=envs)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / out)
    return parser


def interpreter(name: str) -> str:
    """The absolute path of a program: the systems are not started in the directory of this script's caller. Links are kept,
    since a virtual environment's interpreter is one."""
    found = shutil.which(name)
    if found is None:
        raise argparse.ArgumentTypeError(f"{name} is no program")
    return os.path.abspath(found)


def compare(args: argparse.Namespace, systems: dict[str, System], others: list[str]) -> None:
    """Measure all `systems` in turn; print a table and write JSON. Ratios are to the fastest of `others`."""
    results: dict[str, Any] = {"machine": summary.machine(), "envs": args.envs, "batch": args.batch, "rows": {}}
    print(f"Steps/s trained on, {args.envs} environments, batch {args.batch} (median of {args.rounds}; frames/s = 4 x)\n")
    print("| | " + " | ".join(systems) + " | load average |\n|" + "---|" * (len(systems) + 2))
    for env in args.only:
        rates: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(args.rounds):
            for name, make in systems.items():
                rates[name].append(measure(make, env, args.batch, args.seconds))
        median = {name: statistics.median(values) for name, values in rates.items()}
        best, load = max(median[name] for name in others), os.getloadavg()[1]
        ratios = {name: rate / best for name, rate in median.items() if name not in others}
        results["rows"][env] = {"steps_per_second": rates, "ratios": ratios, "load_average": load}
        cells = [f"{rate:,.0f}" + (f" ({ratios[name]:.2f}x)" if name in ratios else "") for name, rate in median.items()]
        print(f"| {env} | " + " | ".join(cells) + f" | {load:.1f} |", flush=True)
        summary.write(args.out, results)
