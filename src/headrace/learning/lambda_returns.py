"""Lambda returns of action values (Gallici et al. 2024, arXiv 2407.04811, section 4; Peng and Williams 1996)."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.learning.gae import require_rows, reverse_scan


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
    """Targets of Q(s_t, a_t), the action values of rows of a trajectory.

    Formula: G_t = r_t + gamma (lambda G_{t+1} + (1 - lambda) V_{t+1}), where V is the largest action value. Where the trajectory
    or the episode ends with row t, or row t+1 is invalid, G_{t+1} is V_{t+1}; a terminated row has G_t = r_t. Rows are as in
    `headrace.learning.gae`.

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
