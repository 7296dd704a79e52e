"""Generalized advantage estimation (Schulman et al., 2016, arXiv 1506.02438), lambda returns, and the recursion they share with
V-trace.

Row convention: row t holds an observation, the action on it, and that action's reward and flags. If the episode ends at t, row
t+1 is its true last observation and invalid: no transition starts there. Hence a done row bootstraps from the row after it like
any other row (unless terminated), the trace is cut behind it, and an invalid row contributes nothing and passes nothing on.
A row may be marked invalid for any other reason too; the rows before it then bootstrap from its value.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headrace.learning.shape_checks import require, require_rank


class Targets(NamedTuple):
    """float32 [T, B] each, without gradient."""

    values: Tensor
    """Targets of the value function; the value itself in invalid rows."""
    advantages: Tensor
    """Advantages for the policy gradient; 0 in invalid rows."""


def require_rows(function: str, rewards: Tensor, values: Tensor, valid: Tensor, **others: Tensor | None) -> None:
    """Raise `ValueError` unless `rewards` and `others` are [T, B], `values` [T+1, B] and `valid` one of the two."""
    require_rank(function, 2, rewards=rewards)
    T, B = rewards.shape
    require(function, (T, B), **others)
    require(function, (T + 1, B), values=values)
    require(function, (T + 1, B) if len(valid) > T else (T, B), valid=valid)


def reverse_scan(x: Tensor, coefficient: Tensor) -> Tensor:
    """y_t = x_t + coefficient_t y_{t+1} with y_T = 0, over the first axis: [T, B] -> [T, B]."""
    y = torch.zeros_like(x[0])
    ys = []
    for x_t, coefficient_t in zip(reversed(x.unbind()), reversed(coefficient.unbind()), strict=True):
        y = torch.addcmul(x_t, coefficient_t, y)
        ys.append(y)
    return torch.stack(ys[::-1])


@torch.no_grad()
def gae(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    lambda_: float,
    next_values: Tensor | None = None,
) -> Targets:
    """Advantages and value targets.

    Formula: delta_t = r_t + gamma V_{t+1} - V_t; A_t = sum_k (gamma lambda)^k delta_{t+k} up to the end of the episode, of the
    valid rows or of the trajectory; target A_t + V_t. V_{t+1} counts as 0 if row t is terminated.

    Args:
        rewards: float32 [T, B].
        values: float32 [T+1, B]: V of rows 0..T.
        terminated: bool [T, B]: nothing follows.
        truncated: bool [T, B]: cut off; bootstrapped.
        valid: bool [T, B] or [T+1, B] (row T is not used).
        gamma: discount per step.
        lambda_: 0 is one-step, 1 is n-step to the end of the trajectory.
        next_values: float32 [T, B] instead of `values[1:]`, for environments that reset in the same step: V of `final_obs`
            where an episode ended, `values[1:]` elsewhere.

    Raises `ValueError` for other shapes.
    """
    require_rows("gae", rewards, values, valid, terminated=terminated, truncated=truncated, next_values=next_values)
    alive = (~(terminated | truncated)).to(values.dtype)
    valid = valid[: len(rewards)]
    bootstrap = values[1:] if next_values is None else next_values
    discounts = gamma * (~terminated).to(values.dtype)
    deltas = torch.where(valid, rewards + discounts * bootstrap - values[:-1], 0.0)
    advantages = reverse_scan(deltas, torch.where(valid, discounts * alive * lambda_, 0.0))
    return Targets(values[:-1] + advantages, advantages)


@torch.no_grad()
def lambda_returns(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    lambda_: float,
    next_values: Tensor | None = None,
) -> Tensor:
    """Targets of Q(s_t, a_t), the action values of rows of a trajectory (Gallici et al. 2024, arXiv 2407.04811, section 4; Peng
    and Williams 1996).

    Formula: G_t = r_t + gamma (lambda G_{t+1} + (1 - lambda) V_{t+1}), where V is the largest action value. Where the trajectory
    or the episode ends with row t, or row t+1 is invalid, G_{t+1} is V_{t+1}; a terminated row has G_t = r_t.

    Args: see `gae`; with `lambda_` 0 this is one-step Q-learning, with 1 the n-step return to the end of the trajectory.

    Returns: float32 [T, B], 0 in invalid rows. Raises `ValueError` for other shapes.
    """
    require_rows("lambda_returns", rewards, values, valid, terminated=terminated, truncated=truncated, next_values=next_values)
    valid = valid[: len(rewards)]
    following = values[1:] if next_values is None else next_values
    goes_on = ~(terminated | truncated) & torch.cat([valid[1:], torch.zeros_like(valid[:1])])
    trace = lambda_ * goes_on.to(values.dtype)
    discounts = gamma * (~terminated).to(values.dtype)
    # Not multiplied by 0: of the observation after a termination no value need exist.
    bootstrap = torch.where(terminated, 0.0, discounts * (1 - trace) * following)
    one_step = torch.where(valid, rewards + bootstrap, 0.0)
    return reverse_scan(one_step, torch.where(valid, discounts * trace, 0.0))
