"""Environments of every kind of array, and networks that cannot be exported or that the exporters get wrong."""

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

import headrace
from headrace.policies import register_network


class Odd(gymnasium.Env):
    """Observations of every encoding, actions of every space; episodes of 20 steps. Rewards depend on the actions."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (40, 44, 3), np.uint8),
            "depth": spaces.Box(0, 255, (40, 44), np.float32),
            "room": spaces.Discrete(5, start=2),
            "keys": spaces.MultiDiscrete([2, 3]),
            "far": spaces.Dict({"place": spaces.Box(-np.inf, np.inf, (2, 2), np.float64)}),
            "lamps": spaces.MultiBinary(3),
            "action_mask": spaces.MultiBinary(3 + 2 + 4 + 2 + 2),
        }
    )
    action_space = spaces.Dict(
        {
            "turn": spaces.Discrete(3, start=-1),
            "push": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32)),
            "grip": spaces.MultiDiscrete([2, 4]),
            "bits": spaces.MultiBinary(2),
            "free": spaces.Box(-np.inf, np.inf, (1,), np.float32),
        }
    )

    def _look(self):
        self.steps += 1
        observation = self.observation_space.sample()
        observation["action_mask"] = np.ones(13, np.int8)
        observation["action_mask"][[1, 3, 5, 7, 8, 11]] = self.np_random.integers(0, 2, 6)  # of each part a choice is left
        observation["far"]["place"] = self.np_random.normal(3, 2, (2, 2))
        return observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = float(action["turn"]) + float(action["push"].sum()) - float(action["grip"].sum())
        return self._look(), reward, self.steps >= 20, False, {}


class Bounds(gymnasium.Env):
    """Actions that the environment gets in another form than policies draw them: rounded, cut off at a bound, counted from 3."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Dict(
        {
            "count": spaces.Box(0, 100, (2, 2), np.int32),
            "level": spaces.Box(-100, 100, (), np.int64),
            "byte": spaces.Box(0, 255, (1,), np.uint8),
            "most": spaces.Box(0, np.iinfo(np.int32).max, (1,), np.int32),
            "above": spaces.Box(2, np.inf, (2,), np.float32),
            "below": spaces.Box(np.array([-np.inf, -np.inf], np.float32), np.array([-1, 1], np.float32)),
            "double": spaces.Box(0.1, 0.7, (1,), np.float64),
            "nested": spaces.Tuple((spaces.Discrete(3, start=3), spaces.MultiBinary(2), spaces.Box(-np.inf, 0, (), np.float64))),
            "grip": spaces.MultiDiscrete([2, 4], start=[1, -2]),
        }
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), float(action["count"].sum()), self.steps >= 20, False, {}


@headrace.envs.register("odd/bounds")
def bounds(options, *, render_mode=None):
    return Bounds()


@headrace.envs.register("odd/all")
def odd(options, *, render_mode=None):
    return Odd()


@headrace.envs.register("odd/cartpole")
def cartpole(options, *, render_mode=None):
    return gymnasium.make("CartPole-v1")


class Unlike:
    """Two agents that observe differently, for three steps."""

    possible_agents = ("small", "large")

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2 if agent == "small" else 3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _look(self):
        return {agent: np.ones(self.observation_space(agent).shape, np.float32) for agent in self.possible_agents}

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(self.possible_agents), 0
        return self._look(), {}

    def step(self, actions):
        self.steps += 1
        rewards = {agent: float(action) for agent, action in actions.items()}
        ends, never = (dict.fromkeys(actions, over) for over in (self.steps == 3, False))
        self.agents = [] if self.steps == 3 else self.agents
        return self._look(), rewards, ends, never, {}

    def close(self):
        pass


@headrace.envs.register_parallel("odd/unlike", agents=2)
def unlike(options, *, render_mode=None):
    return Unlike()


class Network(nn.Module):
    def __init__(self, observation, what):
        super().__init__()
        self.names, self.what = list(observation), what
        self.linear = nn.Linear(sum(int(np.prod(array.shape)) for array in observation.values()), 8)
        self.out_features = 8

    def forward(self, obs):
        x = self.linear(torch.cat([obs[name].flatten(1).float() for name in self.names], -1))
        if self.what == "inverse":
            return x + torch.linalg.eigvals(x.unsqueeze(-1) * x.unsqueeze(-2)).real * 0
        if self.what == "fixed":
            return x.reshape(int(x.shape[0]), 8)  # a recording has the number of the example
        if torch.onnx.is_in_onnx_export() or torch.compiler.is_compiling():  # as an exporter would that computes something else
            return x + 0.5
        return x


@register_network("inverse")
def inverse(observation, config):
    return Network(observation, "inverse")


@register_network("fixed-when-recorded")
def fixed(observation, config):
    return Network(observation, "fixed")


@register_network("other-when-exported")
def other(observation, config):
    return Network(observation, "other")
