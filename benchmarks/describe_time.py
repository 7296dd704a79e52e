"""Seconds that `describe` takes: constructing an environment in a child process against constructing it in this one.

    python benchmarks/describe_time.py

First the start of the fork server, from which a run's workers come anyway; then each environment, the median of `REPEATS`. A
child imports what the environment's family needs, which this process has imported already.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

from headrace.config import ConfigError, EnvConfig
from headrace.envs.registry import describe, describe_here

ENVIRONMENTS = ("gym/CartPole-v1", "atari/pong", "vizdoom/basic", "gym/HalfCheetah-v5", "dm_control/cartpole-swingup")
REPEATS = 9


def seconds(call: object, env_id: str) -> float:
    """Of one call."""
    began = perf_counter()
    call(env_id, EnvConfig())  # type: ignore[operator]
    return perf_counter() - began


def main() -> None:
    """Print the table."""
    print(f"first description, with the start of the fork server: {seconds(describe, ENVIRONMENTS[0]):.3f} s\n")
    print(f"{'environment':<30}{'in a child':>12}{'here':>12}")
    for env_id in ENVIRONMENTS:
        try:
            here = median(seconds(describe_here, env_id) for _ in range(REPEATS))
        except ConfigError as error:  # packages that are not installed
            print(f"{env_id:<30}{error}")
            continue
        child = median(seconds(describe, env_id) for _ in range(REPEATS))
        print(f"{env_id:<30}{child:>10.3f} s{here:>10.3f} s")


if __name__ == "__main__":
    main()
