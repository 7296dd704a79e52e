"""A simulator's own process serves its environment to training runs, without torch.

    python examples/serve_my_env.py 127.0.0.1:7777
    headrace train --env my/pendulum --envs.remote 127.0.0.1:7777

What runs on the other machine needs `pip install "headrace[remote]"` and nothing of this file.
"""

import sys

import gymnasium

from headrace.envs.remote import serve

if __name__ == "__main__":
    serve(lambda: gymnasium.make("Pendulum-v1"), env="my/pendulum", num_envs=64, listen=sys.argv[1])
