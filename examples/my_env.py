"""Your own environment and your own network, in one file:

    headrace train --import examples/my_env.py --env my/catch --run.goal 0.9

Catch: a ball falls down a board of 7 x 7 fields; the paddle at the bottom has to be under it. +1 if it is, -1 if not.
"""

import gymnasium
import numpy as np

from headrace.envs import register
from headrace.policies import register_network

ROWS = COLUMNS = 7
PIXELS = 3
"""Pixels per field and side: the picture has 21 x 21."""


class Catch(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (ROWS * PIXELS, COLUMNS * PIXELS, 1), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)  # left, stay, right

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ball = [0, int(self.np_random.integers(COLUMNS))]
        self.paddle = COLUMNS // 2
        return self.picture(), {}

    def step(self, action):
        self.paddle = min(max(self.paddle + int(action) - 1, 0), COLUMNS - 1)
        self.ball[0] += 1
        landed = self.ball[0] == ROWS - 1
        reward = 0.0 if not landed else 1.0 if self.ball[1] == self.paddle else -1.0
        return self.picture(), reward, landed, False, {}

    def picture(self):
        board = np.zeros((ROWS, COLUMNS, 1), np.uint8)
        board[ROWS - 1, self.paddle] = 128
        board[tuple(self.ball)] = 255
        return board.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)

    def render(self):
        return self.picture().repeat(3, axis=2)


# settings that learn it out of the box: the same names as on the command line, which can override them
DEFAULTS = {
    "policy.encoder": "my-net",
    "sampling.rollout": 16,
    "learning.batch_size": 512,
    "learning.num_epochs": 2,
    "learning.learning_rate": 2e-3,
    "learning.entropy_coef": 0.01,
    "learning.num_threads": 1,  # of a small network, threads spend their time waiting for each other
}


@register("my/catch", defaults=DEFAULTS)
def catch(options, *, render_mode=None):
    """One environment. `options.kwargs` has what the user gave as --envs.kwargs."""
    return Catch(render_mode, **options.kwargs)


@register_network("my-net")
def network(observation, config):
    """From uint8 images [N, 1, 21, 21] to features [N, out_features]. Imported here, torch stays out of the rollout workers."""
    from torch import nn

    class Net(nn.Module):
        out_features = 64

        def __init__(self):
            super().__init__()
            channels = observation["obs"].shape[0]
            self.board = nn.Sequential(nn.Conv2d(channels, 8, PIXELS, stride=PIXELS), nn.ReLU(), nn.Flatten())
            self.linear = nn.Sequential(nn.Linear(8 * ROWS * COLUMNS, self.out_features), nn.ReLU())

        def forward(self, observations):
            return self.linear(self.board(observations["obs"].float() / 255))

    return Net()
