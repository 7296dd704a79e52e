"""Sample Factory's training, run by the interpreter of its own virtual environment (see vs_sample_factory.py).

    python contender_sample_factory.py --env=atari_breakout --experiment=NAME ...   (its own flags)

Needs sample-factory 2.1.1, ale-py, vizdoom, opencv-python-headless.
"""

import sys

from ale_py.registration import register_v0_v4_envs
from sample_factory.train import run_rl

register_v0_v4_envs()  # the names its Atari examples use; also in its worker processes, which import this file


def main() -> int:
    if any(argument.startswith("--env=atari_") for argument in sys.argv):
        from sf_examples.atari.train_atari import parse_atari_args, register_atari_components

        register_atari_components()
        return run_rl(parse_atari_args())
    from sf_examples.vizdoom.train_vizdoom import parse_vizdoom_cfg, register_vizdoom_components

    register_vizdoom_components()
    return run_rl(parse_vizdoom_cfg())


if __name__ == "__main__":
    sys.exit(main())
