"""Population-based training recovers from a learning rate with which nothing is learned.

    python benchmarks/learning/pbt.py --seeds 3

CartPole with a learning rate that is far too small, given to every policy of a population: once fixed, once with
population-based training, which may change it. Both train the same number of policies for the same number of steps. Serial
placement, so the same seed gives the same numbers. The rule is the paper's; its factor (1.2) and its rate (0.15) are for
thousands of decisions, and here there are a few dozen. Calls `headrace compare`, which takes all other flags, and `headrace
report`; population.png in a run folder shows who became a copy of whom. results/pbt-cartpole.json is of an earlier form.
"""

import argparse
import subprocess
import sys

HEADRACE, FOLDER = [sys.executable, "-m", "headrace.cli"], "experiments/pbt"
SETTINGS = (
    "--vary pbt.rule=off,paper --population.size 4 --learning.learning-rate 1e-5 --learning.lr-schedule constant "
    '--pbt.period 6000 --pbt.mutation-rate 0.5 --pbt.factor 2 6 --pbt.mutable {"learning.learning_rate":"scale"} '
    "--sampling.placement serial --sampling.num-workers 4 --sampling.num-groups 2 --learning.num-threads 1 "
    "--run.video"  # pictures of the population, too, which the runs of `headrace compare` do not draw by themselves
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="300k", help="steps of each policy")
    args, flags = parser.parse_known_args()
    fixed = ["gym/CartPole-v1", *SETTINGS.split(), "--budget", args.budget, "--folder", FOLDER]
    subprocess.run([*HEADRACE, "compare", *fixed, *flags], check=True)
    subprocess.run([*HEADRACE, "report", FOLDER], check=True)
