"""Training throughput of Headrace and of Stable-Baselines3's PPO: same network, environments, batch and epochs, learning on.

    VENV/bin/pip install stable-baselines3 ale-py opencv-python-headless "gymnasium[mujoco]"
    python benchmarks/vs_stable_baselines3.py VENV/bin/python
    python benchmarks/vs_stable_baselines3.py VENV/bin/python --only gym/HalfCheetah-v5 gym/Hopper-v5 gym/Walker2d-v5 --batch 2048

Atari, both: Nature CNN, GAE, one epoch of one minibatch, float32, on the CPU; ale-py with frameskip 4, 84x84, 4 frames, no-ops,
lost lives and clipped rewards alike. Stable-Baselines3 is synchronous: it collects batch / environments steps of each one,
then trains with all cores; its environments are stepped in its own process (`dummy`) or in one process each (`subprocesses`).
The ratio is to the faster of the two. `headrace, its own means` computes in bf16 where the processor has it, on its own Atari
core.

MuJoCo, both: two layers of 64, observations and returns normalised, 10 epochs of minibatches of 64, as Stable-Baselines3 does by
default. `headrace, its own means` trains with Headrace's defaults for these environments, whose minibatches are larger.

How it is measured: training_contest.py. Prints a table, writes results/vs_stable_baselines3.json, for
MuJoCo results/vs_stable_baselines3_mujoco.json.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from training_contest import SAME_LEARNING, SAME_MEANS, Command, System, arguments, compare, headrace

MINIBATCH = 64
"""Of Stable-Baselines3's PPO, where nothing else is said."""


def stable_baselines3(python: str, kind: str, envs: int, batch: int, env: str, folder: Path) -> Command:
    """Stable-Baselines3 with these numbers."""
    script = str(Path(__file__).with_name("contenders.py"))

    def steps(output: str) -> list[int]:
        return [int(number) for number in re.findall(r"trained on (\d+)", output)]

    return [python, script, "stable-baselines3", env, str(envs), str(batch), kind], steps


def main() -> None:
    args = arguments(__doc__, ["atari/breakout"], "vs_stable_baselines3.json").parse_args()
    same, own = SAME_MEANS, SAME_LEARNING
    if all(env.startswith("gym/") for env in args.only):
        own = {"sampling.num_groups": 1}
        same = own | {"learning.num_minibatches": args.batch // MINIBATCH}
        args.out = args.out.with_stem(f"{args.out.stem}_mujoco")
    other = partial(stable_baselines3, args.python)
    others = {f"SB3, {kind}": partial(other, kind, args.envs, args.batch) for kind in ("dummy", "subprocesses")}
    systems: dict[str, System] = {"headrace": lambda env, folder: headrace(env, args.envs, args.batch, folder, same)}
    systems |= others
    systems["headrace, its own means"] = lambda env, folder: headrace(env, args.envs, args.batch, folder, own)
    compare(args, systems, list(others))


if __name__ == "__main__":
    main()
