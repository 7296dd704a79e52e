"""Golden digests: the weights after a few updates of each algorithm, to prove that a change of structure changed no arithmetic.

    python benchmarks/golden.py record                          writes results/golden.json
    python benchmarks/golden.py check                           compares with it; exit code 1 if a digest differs
    python benchmarks/golden.py compare --python A --python B   the interpreters of two checkouts, each case on both in turn

Every case is a short `headrace train` in the serial placement, on the CPU with one thread, in a process of its own. Its digest is
the SHA-256 of the model's tensors (name, dtype, shape, bytes; sorted by name) in the newest checkpoint. The same commit gives the
same digests on the same machine. Another processor or another torch rounds differently, so `compare` is what shows on any machine
that two commits compute the same; `check` is only good where `record` was run. `--seed` changes every digest.

The script imports nothing of the package and needs of it only the command line, `charts/updates` in metrics.jsonl, and tensors
named `model/...` in a safetensors file below the run folder, so that it outlives changes inside the package.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from summary import write

RESULTS = Path(__file__).parent / "results" / "golden.json"
LEAST_UPDATES = 4
TIMEOUT = 600.0
"""Seconds for one case."""

COMMON = (
    "--sampling.placement serial --learning.device cpu --learning.num-threads 1 --learning.precision float32 "
    "--run.no-video --run.no-dashboard"
)
PPO = (
    "--learning.algorithm ppo --learning.batch-size 256 "
    "--sampling.num-workers 2 --sampling.envs-per-worker 8 --sampling.rollout 16"
)
APPO = f"{PPO.replace('ppo', 'appo')} --learning.returns vtrace --learning.gae-lambda 0.95"
REPLAY = (
    "--sampling.num-workers 2 --sampling.envs-per-worker 4 --sampling.rollout 10 --learning.total-steps 800 "
    "--replay.minimum 400 --replay.capacity 500 --replay.evict-period 4 --q.target-period 4"
)
PONG = "--env atari/pong --envs.atari-backend native --envs.max-episode-steps 80"
CASES = {
    "ppo-cartpole": f"--env gym/CartPole-v1 {PPO} --learning.total-steps 2500",
    "ppo-pong": f"{PONG} {PPO} --learning.total-steps 1500 --learning.learning-rate 5e-4 --learning.entropy-coef 0.005",
    "appo-gru-vizdoom": f"--env vizdoom/basic --policy.core gru {APPO} --learning.total-steps 1500",
    "apex-dqn-pong": f"{PONG} --learning.algorithm apex-dqn {REPLAY} --replay.samples-per-insert 4 --learning.batch-size 64",
    "apex-dpg-cartpole-swingup": (
        f"--env dm_control/cartpole-swingup --envs.max-episode-steps 40 --learning.algorithm apex-dpg {REPLAY} "
        "--replay.samples-per-insert 4 --learning.batch-size 64"
    ),
    "r2d2-cartpole": (
        f"--env gym/CartPole-v1 --learning.algorithm apex-dqn --policy.core gru --policy.core-size 64 {REPLAY} "
        "--replay.samples-per-insert 12 --learning.batch-size 32 --q.burn-in 4 --q.sequence 12 --q.rescale"
    ),
}
"""Flags by case. Chosen so that what can go wrong shows in the weights: both kinds of returns, two workers, episodes that are
terminated and truncated, replays smaller than what enters them (evictions), target networks copied every few updates."""


# -- one case ----------------------------------------------------------------------------------------------------------


def run_case(python: str, case: str, seed: int) -> dict[str, Any]:
    """Train one case with the interpreter `python`; returns its digests, updates, steps and seconds.

    Raises `SystemExit` with the training's last output if it fails, or if it made too few updates.
    """
    with tempfile.TemporaryDirectory(prefix="golden-") as temporary:
        folder = Path(temporary) / "run"
        command = [python, "-m", "headrace.cli", "train", *CASES[case].split(), *COMMON.split()]
        command += ["--seed", str(seed), "--run.folder", str(folder)]
        # What `headrace tune` found for this machine must not count; nor may another checkout be imported.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"XDG_CONFIG_HOME": temporary}
        began = time.monotonic()
        done = subprocess.run(command, cwd=temporary, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode != 0:
            raise SystemExit(f"{case} failed with {python}, exit code {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        metrics = [json.loads(line) for path in folder.rglob("metrics.jsonl") for line in path.read_text().splitlines()]
        updates = max((int(row.get("charts/updates", 0)) for row in metrics), default=0)
        steps = max((int(row.get("global_step", 0)) for row in metrics), default=0)
        if updates < LEAST_UPDATES:
            raise SystemExit(f"{case} made {updates} updates in {steps} steps with {python}; at least {LEAST_UPDATES} are needed")
        newest = max(folder.rglob("*.safetensors"), key=lambda path: (path.stat().st_mtime_ns, str(path)))
        digest, values = digests(newest)
        return {"digest": digest, "values": values, "updates": updates, "steps": steps, "seconds": time.monotonic() - began}


def digests(path: Path) -> tuple[str, str]:
    """SHA-256 of the model's tensors in a safetensors file: with their names, and without (in an order of their own).

    The file: length of the header (8 bytes, little endian), the header (JSON: dtype, shape and place of each tensor), the bytes.
    """
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors: dict[str, str] = {}
    for full_name, facts in json.loads(data[8:start]).items():
        if name := re.search(r"(?:^|/)model/(.+)$", full_name):
            first, end = facts["data_offsets"]
            head = f"{facts['dtype']} {facts['shape']} ".encode()
            tensors[name[1]] = hashlib.sha256(head + data[start + first : start + end]).hexdigest()
    if not tensors:
        raise SystemExit(f"{path} holds no tensor named model/...")
    named = "\n".join(f"{name} {tensors[name]}" for name in sorted(tensors))
    return hashlib.sha256(named.encode()).hexdigest(), hashlib.sha256("\n".join(sorted(tensors.values())).encode()).hexdigest()


def facts_of(python: str) -> dict[str, Any]:
    """What digests depend on besides the package (versions, processor), and which commit this interpreter runs."""
    probe = (
        "import json, pathlib, sys, torch, numpy, headrace; print(json.dumps({'python': sys.version.split()[0], "
        "'torch': torch.__version__, 'numpy': numpy.__version__, 'instructions': torch.backends.cpu.get_cpu_capability(), "
        "'package': str(pathlib.Path(headrace.__file__).parent)}))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    facts = json.loads(subprocess.check_output([python, "-c", probe], text=True, env=environment, cwd=tempfile.gettempdir()))
    info = Path("/proc/cpuinfo")
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", info.read_text(), re.M)) if info.exists() else {}
    facts["processor"] = ", ".join(f"{key} {found[key]}" for key in ("model name", "cpu family", "model") if key in found)
    git = ["git", "-C", facts["package"]]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    modified = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no", "."], capture_output=True, text=True).stdout
    facts["commit"] = (commit or "unknown") + (" with changes" if modified else "")
    return facts


# -- the three commands ------------------------------------------------------------------------------------------------

HEADER = "| case | updates | steps | seconds | digest | |\n|---|---|---|---|---|---|"


def row(case: str, result: dict[str, Any], verdict: str) -> str:
    """One line of the table."""
    numbers = f"{result['updates']} | {result['steps']} | {result['seconds']:.0f}"
    return f"| {case} | {numbers} | {result['digest'][:16]} | {verdict} |"


def verdict(before: dict[str, Any] | None, now: dict[str, Any]) -> str:
    """What a comparison of two results says; "same" or a difference."""
    if before is None:
        return "not recorded"
    if before["digest"] == now["digest"]:
        return "same"
    if before["values"] == now["values"]:
        return "OTHER NAMES, same values"
    return f"DIFFERENT (was {before['digest'][:16]}, {before['updates']} updates, {before['steps']} steps)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("record", "check", "compare"))
    parser.add_argument("--python", action="append", help="interpreter of the checkout to run; `compare` takes it twice")
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file that `record` writes and `check` reads")
    args = parser.parse_args()
    pythons = [os.path.abspath(python) for python in args.python or [sys.executable]]  # a venv's link must stay a link
    if len(pythons) != (2 if args.command == "compare" else 1):
        parser.error("compare needs --python twice, record and check take it once at most")
    facts = [facts_of(python) for python in pythons]
    for python, f in zip(pythons, facts, strict=True):
        print(f"{python}\n  {f['commit']} in {f['package']}; torch {f['torch']} {f['instructions']}; {f['processor']}")
    settings = {"seed": args.seed, "threads": 1, "common": COMMON, "cases": {case: CASES[case] for case in args.cases}}
    recorded = json.loads(args.results.read_text()) if args.command == "check" else {}
    if recorded:
        print(f"recorded: {recorded['facts']['commit']}")
        for key in ("processor", "instructions", "torch", "numpy"):
            if recorded["facts"][key] != facts[0][key]:
                print(f"  with {key} {recorded['facts'][key]}: digests can differ for that alone; use compare")
        theirs = recorded["settings"]
        if theirs["common"] != COMMON or any(theirs["cases"].get(case) != CASES[case] for case in args.cases):
            print("  with other flags: record again on that commit")
        if theirs["seed"] != args.seed:
            print(f"  with seed {theirs['seed']}")

    began, failed, results = time.monotonic(), False, {}
    print("\n" + HEADER, flush=True)
    for case in args.cases:
        before = run_case(pythons[0], case, args.seed) if args.command == "compare" else recorded.get("results", {}).get(case)
        results[case] = run_case(pythons[-1], case, args.seed)
        says = "recorded" if args.command == "record" else verdict(before, results[case])
        failed |= says not in ("recorded", "same")
        print(row(case, results[case], says), flush=True)
    print(f"\n{time.monotonic() - began:.0f} s")
    if args.command == "record":
        kept = {case: {k: v for k, v in result.items() if k != "seconds"} for case, result in results.items()}
        facts[0].pop("package")
        write(args.results, {"facts": facts[0], "settings": settings, "results": kept})
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
