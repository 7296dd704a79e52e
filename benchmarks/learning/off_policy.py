"""How far off-policy does IMPALA learn in each placement, and does it cost steps? One environment, the same settings everywhere.

    python benchmarks/learning/off_policy.py --env gym/CartPole-v1 --budget 150k --batch-size 160
    python benchmarks/learning/off_policy.py --env minatar/breakout --import benchmarks/learning/worlds.py --budget 1M

Calls `headrace compare` and `headrace report`. `remote` is `served` with all environments at a `headrace serve-envs` of its own
over loopback. The tables of docs/policy-lag.md are of an earlier form of this script.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HEADRACE = [sys.executable, "-m", "headrace.cli"]


def serve(env: str, num_envs: int, imports: list[str], stack: ExitStack) -> str:
    """Start an environment server; its address. `imports`: flags."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="off-policy-"))
    log = Path(folder) / "log"
    command = [sys.executable, "-m", "headrace.cli", "serve-envs", "--env", env, "--num-envs", str(num_envs)]
    command += ["--listen", "127.0.0.1:0", *imports]
    with log.open("wb") as out:
        server = stack.enter_context(subprocess.Popen(command, stdout=out, stderr=out))
    stack.callback(server.terminate)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        for word in log.read_text().replace(",", " ").split():
            if word.startswith("127.0.0.1:") and not word.endswith(":0"):
                return word.rstrip(".")
        time.sleep(0.1)
    raise SystemExit(f"the environment server did not start:\n{log.read_text()}")


def import_flags(files: list[Any]) -> list[str]:
    """The flags of `headrace` that import these files."""
    return ["--import", *map(str, files)] if files else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="gym/CartPole-v1")
    parser.add_argument("--budget", default="150k")
    parser.add_argument("--seeds", default="3")
    parser.add_argument("--placements", default="serial,inline,served", help="with commas between them")
    parser.add_argument("--folder", type=Path, default=Path("experiments/off-policy"))
    parser.add_argument("--import", dest="imports", action="append", default=[], help="file that registers the environment")
    args, settings = parser.parse_known_args()
    flags = [*settings, *import_flags(args.imports)]
    common = [*HEADRACE, "compare", args.env, "--learning.algorithm", "impala", "--budget", args.budget, "--seeds", args.seeds]
    near = ["--folder", str(args.folder / "near"), "--vary", f"sampling.placement={args.placements}"]
    subprocess.run([*common, *near, *flags], check=True)
    with ExitStack() as stack:
        server = serve(args.env, 1024, import_flags(args.imports), stack)
        far = ["--folder", str(args.folder / "remote"), "--sampling.placement", "served", "--envs.remote", server]
        subprocess.run([*common, *far, *flags], check=True)
    subprocess.run([*HEADRACE, "report", str(args.folder)], check=True)


if __name__ == "__main__":
    main()
