"""The mathematics of Q-learning from replay. Imports nothing of this package.

n-step returns, h(x) and the mixture of priorities are defined here. The replay has code of its own for the priorities of new
transitions; tests compare it with this.

Sources: double Q-learning, van Hasselt et al. 2016; distributional, Bellemare et al. 2017; Ape-X, Horgan et al. 2018;
value rescaling and mixed priorities, Kapturowski et al. 2019 (R2D2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.learning.shape_checks import require, require_rank


def bootstrap_values(online: Tensor, target: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Double Q-learning: the target network's value of the online network's best action.

    Args:
        online, target: action values, float32 [..., A].
        allowed: bool [..., A], None if every action is.

    Returns: float32 [...]. Raises `ValueError` for different shapes.
    """
    require("bootstrap_values", online.shape, target=target, allowed=allowed)
    best = greedy(online, allowed)
    return target.gather(-1, best.unsqueeze(-1)).squeeze(-1)


def greedy(q: Tensor, allowed: Tensor | None = None) -> Tensor:
    """The best allowed action, int64 [...], of values [..., A]."""
    return (q if allowed is None else q.masked_fill(~allowed, -torch.inf)).argmax(-1)


def epsilon_greedy(q: Tensor, allowed: Tensor | None, epsilon: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Random allowed actions with probability `epsilon`, else the best ones.

    Args:
        q: action values, float32 [N, A].
        allowed: bool [N, A], None if every action is.
        epsilon: float32 [N].

    Returns: int64 [N].
    """
    # The largest of uniform numbers, since multinomial waits for the device.
    lots = torch.rand(q.shape, device=q.device, generator=generator)
    random = (lots if allowed is None else lots.masked_fill(~allowed, -1.0)).argmax(-1)
    chance = torch.rand(epsilon.shape, device=epsilon.device, generator=generator)
    return torch.where(chance < epsilon, random, greedy(q, allowed))


def project(support: Tensor, probabilities: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """The distribution of reward + discount z on the fixed atoms (algorithm 1 of Bellemare et al.).

    Args:
        support: the atoms z, evenly spaced and growing, float32 [M].
        probabilities: float32 [B, M].
        reward, discount: float32 [B].

    Returns: float32 [B, M], rows sum to 1. Raises `ValueError` for other shapes.
    """
    require_rank("project", 1, support=support)
    require("project", (len(reward), len(support)), probabilities=probabilities)
    require("project", (len(reward),), reward=reward, discount=discount)
    low, high, count = support[0], support[-1], len(support)
    moved = (reward[:, None] + discount[:, None] * support).clamp(low, high)
    position = ((moved - low) / (high - low) * (count - 1)).clamp(0, count - 1)
    below = position.floor().long().clamp(max=count - 2)
    upper = position - below
    result = torch.zeros_like(probabilities)
    result.scatter_add_(1, below, probabilities * (1 - upper))
    return result.scatter_add_(1, below + 1, probabilities * upper)


def rescale(x: Tensor, epsilon: float = 1e-3) -> Tensor:
    """h(x) = sign(x)(sqrt(|x| + 1) - 1) + epsilon x, which makes large returns small (Pohlen et al. 2018)."""
    # sqrt(|x| + 1) - 1 loses float32 near 0; multiplied out by sqrt(|x| + 1) + 1 it does not.
    return x / ((x.abs() + 1).sqrt() + 1) + epsilon * x


def unscale(x: Tensor, epsilon: float = 1e-3) -> Tensor:
    """The inverse of `rescale`: sign(x) (u^2 - 1) with u = (sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon).

    Computed as (u - 1)(u + 1), with u - 1 without a difference of nearly equal numbers, so that float32 is kept near 0.
    """
    root = (1 + 4 * epsilon * (x.abs() + 1 + epsilon)).sqrt()
    less = 2 * x / (root + 1 + 2 * epsilon)  # sign(x) (u - 1)
    return less * (less.abs() + 2)


def mixed_priorities(errors: Tensor, mask: Tensor, eta: float = 0.9) -> Tensor:
    """Priority of a sequence: eta max |error| + (1 - eta) mean |error| over its rows (R2D2).

    Args:
        errors: float32 [T, B]. mask: bool [T, B], False for rows that are no transitions.

    Returns: float32 [B], 0 for sequences without a transition. Raises `ValueError` for different shapes.
    """
    require("mixed_priorities", errors.shape, mask=mask)
    size = errors.abs() * mask
    return eta * size.max(0).values + (1 - eta) * size.sum(0) / mask.sum(0).clamp(min=1)


def sequence_targets(reward: Tensor, discount: Tensor, last: Tensor, values: Tensor, n_step: int) -> Tensor:
    """n-step targets of the first L rows of a sequence.

    Args:
        reward, discount: float32 [L + n, B]; discount is 0 after termination.
        last: bool [L + n, B], the episode ended with this row's action; the next row is its true last observation.
        values: float32 [L + n, B], of every row's observation.

    Returns: float32 [L, B]. Raises `ValueError` for other shapes.
    """
    require_rank("sequence_targets", 2, reward=reward)
    require("sequence_targets", reward.shape, discount=discount, last=last, values=values)
    L = len(reward) - n_step
    total, product, bootstrap = torch.zeros_like(reward[:L]), torch.ones_like(reward[:L]), torch.zeros_like(reward[:L])
    running = torch.ones_like(last[:L])
    for k in range(n_step):
        total = total + running * product * reward[k : k + L]
        product = torch.where(running, product * discount[k : k + L], product)
        ends = running & last[k : k + L]
        bootstrap = torch.where(ends, values[k + 1 : k + 1 + L], bootstrap)
        running = running & ~ends
    return total + product * torch.where(running, values[n_step : n_step + L], bootstrap)


def epsilon_ladder(envs: Tensor, num_envs: int, base: float, alpha: float, levels: int | None = None) -> Tensor:
    """Ape-X's exploration: environment i of N acts at random with probability base^(1 + alpha i / (N - 1)), for life.

    Args:
        envs: int64 [B], environment indices i.
        num_envs: N.
        base, alpha: see the formula.
        levels: number of different probabilities, each for a block of environments. None: N.

    Returns: float32 [B].
    """
    rungs = min(levels or num_envs, num_envs)
    rung = torch.div(envs * rungs, num_envs, rounding_mode="floor")
    return base ** (1 + alpha * rung.float() / max(1, rungs - 1))
