"""How far off-policy does IMPALA learn in each placement, and does it cost steps? One environment, the same settings everywhere.

    python benchmarks/learning/off_policy.py --env gym/CartPole-v1 --budget 150k --batch-size 160
    python benchmarks/learning/off_policy.py --env minatar/breakout --import benchmarks/learning/worlds.py --budget 1M

Calls `headrace compare`, which takes all other flags, and `headrace report`. `remote` is `served` with all environments at a
`headrace serve-envs` of its own over loopback. The tables of docs/policy-lag.md are of an earlier form of this script.
"""

import argparse
import subprocess
import sys

HEADRACE, FOLDER, SERVER = [sys.executable, "-m", "headrace.cli"], "experiments/off-policy", "127.0.0.1:7790"


def main() -> None:
    """Compare, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="gym/CartPole-v1")
    parser.add_argument("--budget", default="150k")
    parser.add_argument("--import", dest="imports", action="append", default=[], help="file that registers the environment")
    args, flags = parser.parse_known_args()
    imports = ["--import", *args.imports] if args.imports else []
    compare = [*HEADRACE, "compare", args.env, "--learning.algorithm", "impala", "--budget", args.budget, *imports, *flags]
    subprocess.run([*compare, "--folder", f"{FOLDER}/near", "--vary", "sampling.placement=serial,inline,served"], check=True)
    serve = [*HEADRACE, "serve-envs", "--env", args.env, "--num-envs", "1024", "--listen", SERVER, *imports]
    with subprocess.Popen(serve) as server:
        try:
            far = ["--folder", f"{FOLDER}/remote", "--sampling.placement", "served", "--envs.remote", SERVER]
            subprocess.run([*compare, *far], check=True)
        finally:
            server.terminate()
    subprocess.run([*HEADRACE, "report", FOLDER], check=True)


if __name__ == "__main__":
    main()
