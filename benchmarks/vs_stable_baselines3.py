"""Training throughput of Headrace and of Stable-Baselines3's PPO: same network, environments, batch and epochs, learning on.

    VENV/bin/pip install stable-baselines3 ale-py opencv-python-headless
    python benchmarks/vs_stable_baselines3.py VENV/bin/python

Both: Nature CNN, GAE, one epoch of one minibatch, float32, on the CPU; ale-py with frameskip 4, 84x84, 4 frames, no-ops, lost
lives and clipped rewards alike. Stable-Baselines3 is synchronous: it collects batch / environments steps of each environment,
then trains with all cores; its environments are stepped in its own process (`dummy`) or in one process each (`subprocesses`).
The ratio is to the faster of the two. `headrace, its own means` computes in bf16 where the processor has it, on its own Atari
core.

How it is measured: training_contest.py. Prints a table, writes results/vs_stable_baselines3.json.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from training_contest import SAME_LEARNING, SAME_MEANS, Command, System, arguments, compare, headrace


def stable_baselines3(python: str, kind: str, envs: int, batch: int, env: str, folder: Path) -> Command:
    """Stable-Baselines3 with these numbers."""
    script = str(Path(__file__).with_name("contender_stable_baselines3.py"))

    def steps(output: str) -> list[int]:
        return [int(number) for number in re.findall(r"trained on (\d+)", output)]

    return [python, script, env.removeprefix("atari/"), str(envs), str(batch), kind], steps


def main() -> None:
    args = arguments(__doc__, ["atari/breakout"], "vs_stable_baselines3.json").parse_args()
    systems: dict[str, System] = {"headrace": lambda env, folder: headrace(env, args.envs, args.batch, folder, SAME_MEANS)}
    other = partial(stable_baselines3, args.python)
    others = {f"SB3, {kind}": partial(other, kind, args.envs, args.batch) for kind in ("dummy", "subprocesses")}
    systems |= others
    systems["headrace, its own means"] = lambda env, folder: headrace(env, args.envs, args.batch, folder, SAME_LEARNING)
    compare(args, systems, list(others))


if __name__ == "__main__":
    main()
