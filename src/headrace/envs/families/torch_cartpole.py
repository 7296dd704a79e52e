"""Gymnasium's CartPole for any number of environments at once, in PyTorch, on the CPU or a GPU.

This example of a tensor environment (`headrace.envs.groups.tensor`) is fast: a step of thousands of environments costs little
more than a step of one. Dynamics (Euler's method, float64), initial states (uniform in [-0.05, 0.05]) and the limit of 500 steps
are Gymnasium's.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from headrace.envs.groups.tensor import TensorStep

STEP_LIMIT = 500
GRAVITY, CART, POLE, LENGTH, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02  # m/s2, kg, kg, m (half of the pole's), N, s
TOTAL, POLE_LENGTH = POLE + CART, POLE * LENGTH
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * math.pi / 360  # m, radians: where an episode terminates


class CartPole:
    """See `headrace.envs.groups.tensor.TensorEnv`. The state, float64 [4, N], is position, velocity, angle, angular velocity."""

    def __init__(self, num_envs: int, device: str = "cpu", step_limit: int = STEP_LIMIT) -> None:
        high = np.array([2 * X_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], np.float32)
        self.single_observation_space: gymnasium.Space = gymnasium.spaces.Box(-high, high)
        self.single_action_space: gymnasium.Space = gymnasium.spaces.Discrete(2)
        self.num_envs, self.device = num_envs, device
        self.limit = step_limit
        self.generator = torch.Generator(device)
        self.state = torch.zeros(4, num_envs, dtype=torch.float64, device=device)
        self.steps = torch.zeros(num_envs, dtype=torch.int32, device=device)

    def _starts(self) -> Tensor:
        uniform = torch.rand(4, self.num_envs, dtype=torch.float64, device=self.device, generator=self.generator)
        return uniform * 0.1 - 0.05

    def reset(self, seed: int) -> Tensor:
        self.generator.manual_seed(seed)
        self.state = self._starts()
        self.steps.zero_()
        return self.state.T.float()

    def step(self, actions: Tensor) -> TensorStep:
        _, x_dot, theta, theta_dot = self.state
        force = actions * (2 * FORCE) - FORCE
        cos, sin = theta.cos(), theta.sin()
        temp = (force + POLE_LENGTH * theta_dot.square() * sin) / TOTAL
        theta_acc = (GRAVITY * sin - cos * temp) / (LENGTH * (4.0 / 3.0 - POLE * cos.square() / TOTAL))
        x_acc = temp - POLE_LENGTH * theta_acc * cos / TOTAL
        speeds = torch.stack([x_dot, x_acc, theta_dot, theta_acc])
        state = self.state + TAU * speeds
        self.steps += 1
        terminated = (state[0].abs() > X_LIMIT) | (state[2].abs() > ANGLE_LIMIT)
        truncated = self.steps >= self.limit
        ended = terminated | truncated
        self.state = torch.where(ended, self._starts(), state)
        self.steps.masked_fill_(ended, 0)
        reward = torch.ones_like(force, dtype=torch.float32)
        return TensorStep(self.state.T.float(), reward, terminated, truncated, state.T.float())

    def get_state(self) -> dict[str, Any]:
        state, steps = self.state.cpu().clone(), self.steps.cpu().clone()
        return {"state": state, "steps": steps, "generator": self.generator.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.state, self.steps = state["state"].to(self.device), state["steps"].to(self.device)
        self.generator.set_state(state["generator"])
