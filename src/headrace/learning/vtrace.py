"""V-trace (Espeholt et al., 2018, arXiv 1802.01561, section 4.1): off-policy value targets and advantages.

The row convention is that of `headrace.learning.gae`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace.learning.gae import Targets, require_rows, reverse_scan


@torch.no_grad()
def vtrace(
    log_ratio: Tensor,
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    lambda_: float = 1.0,
    rho: float = 1.0,
    c: float = 1.0,
    pg_rho: float | None = 1.0,
    next_values: Tensor | None = None,
) -> Targets:
    """V-trace targets and policy gradient advantages.

    With w_t = pi(a_t | x_t) / mu(a_t | x_t), rho_t = min(rho, w_t), c_t = lambda min(c, w_t):

        delta_t = rho_t (r_t + gamma V_{t+1} - V_t)
        v_s     = V_s + sum_{t >= s} gamma^{t-s} (c_s ... c_{t-1}) delta_t
        A_s     = min(pg_rho, w_s) (r_s + gamma v_{s+1} - V_s)

    The sum ends with the episode, the valid rows or the trajectory; v behind its end is V, or 0 if row t is terminated.

    Args:
        log_ratio: float32 [T, B]: log pi(a_t | x_t) - log mu(a_t | x_t), target minus behaviour policy, of any size.
        rewards, values, terminated, truncated, valid, gamma, next_values: see `gae`; values under the target policy.
        lambda_: factor of the trace coefficients.
        rho: truncation of the importance weights; sets the fixed point.
        c: truncation of the trace coefficients; sets the speed. Not above rho.
        pg_rho: truncation of the weight of the advantages; None leaves them unweighted, for a surrogate objective that holds the
            probability ratio itself (PPO).

    Raises `ValueError` if rho < c, or for other shapes.
    """
    if rho < c:
        raise ValueError(f"rho ({rho}) must not be below c ({c})")
    others = {"log_ratio": log_ratio, "terminated": terminated, "truncated": truncated, "next_values": next_values}
    require_rows("vtrace", rewards, values, valid, **others)
    valid = valid[: len(rewards)]
    alive = (~(terminated | truncated)).to(values.dtype)
    bootstrap = values[1:] if next_values is None else next_values
    discounts = gamma * (~terminated).to(values.dtype)

    deltas = _clipped_exp(log_ratio, rho) * (rewards + discounts * bootstrap - values[:-1])
    coefficients = discounts * alive * lambda_ * _clipped_exp(log_ratio, c)
    corrections = reverse_scan(torch.where(valid, deltas, 0.0), torch.where(valid, coefficients, 0.0))

    later = torch.cat((corrections[1:], torch.zeros_like(corrections[:1])))
    advantages = rewards + discounts * (bootstrap + alive * later) - values[:-1]
    if pg_rho is not None:
        advantages = advantages * _clipped_exp(log_ratio, pg_rho)
    return Targets(values[:-1] + corrections, torch.where(valid, advantages, 0.0))


def _clipped_exp(log_ratio: Tensor, limit: float) -> Tensor:
    """min(limit, exp(log_ratio)) without overflow."""
    return log_ratio.clamp_max(math.log(limit) if limit > 0 else -math.inf).exp()
