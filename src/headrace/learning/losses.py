"""Losses and their statistics, as means over the valid samples.

Every function takes a boolean `mask` of the batch's shape; where it may be None, that means that all samples are valid. Some also
take `count`, int64 []: the number of valid samples, at least 1, which saves counting them again. Masked samples have no
influence, even if they are NaN: they are replaced before use, because NaN times zero is NaN, in the gradient too. Without a
valid sample a mean, and so a loss, is 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.learning.shape_checks import require

MAX_LOG_RATIO = math.log(20.0)
"""|log pi - log mu| is clamped to this in losses: a larger ratio carries no more information, and exp would overflow."""
MAX_SYMMETRIC_KL = 30.0
"""The exploration term stops growing here."""


def valid_count(mask: Tensor) -> Tensor:
    """Number of valid samples, at least 1: int64 []."""
    return mask.sum().clamp_min(1)


def _kept(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x` where `mask` is True, 0 elsewhere."""
    return x if mask is None else torch.where(mask, x, 0.0)


def masked_mean(x: Tensor, mask: Tensor | None, count: Tensor | None = None) -> Tensor:
    """Mean of `x` where `mask` is True, 0 if it is nowhere: []."""
    if mask is None:
        return x.mean()
    return _kept(x, mask).sum() / (valid_count(mask) if count is None else count)


def normalize_advantages(advantages: Tensor, mask: Tensor | None, floor: float = 1e-7, count: Tensor | None = None) -> Tensor:
    """(A - mean) / max(std, floor) over the valid samples, 0 elsewhere: same shape."""
    centred = _kept(advantages - masked_mean(advantages, mask, count), mask)
    std = masked_mean(centred.square(), mask, count).sqrt()
    return centred / std.clamp_min(floor)


def policy_loss(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    advantages: Tensor,
    mask: Tensor | None,
    clip: float | None,
    count: Tensor | None = None,
) -> Tensor:
    """Policy gradient loss, clipped (PPO) or plain: [].

    With w = pi / mu: -mean(min(w A, clamp(w, 1/(1+clip), 1+clip) A)) (Schulman et al., 2017, arXiv 1707.06347, equation 7, with
    the symmetric-in-log range of Petrenko et al., 2020), or, if `clip` is None, -mean(A log pi) (IMPALA, A2C).

    Args:
        log_prob: float32, of the actions under the learner's policy, with gradient.
        behaviour_log_prob: float32, of the policy that chose them.
        advantages: float32; no gradient flows into them.

    Raises `ValueError` for different shapes.
    """
    require("policy_loss", log_prob.shape, behaviour_log_prob=behaviour_log_prob, advantages=advantages, mask=mask)
    advantages = _kept(advantages.detach(), mask)
    if clip is None:
        return -masked_mean(_kept(log_prob, mask) * advantages, mask, count)
    ratio = _log_ratio(log_prob, behaviour_log_prob, mask).exp()
    clamped = ratio.clamp(1 / (1 + clip), 1 + clip)
    return -masked_mean(torch.minimum(ratio * advantages, clamped * advantages), mask, count)


def _log_ratio(log_prob: Tensor, behaviour_log_prob: Tensor, mask: Tensor | None) -> Tensor:
    return (_kept(log_prob, mask) - _kept(behaviour_log_prob, mask)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


class RatioStatistics(NamedTuple):
    """What the probability ratios w = pi / mu of samples say: [] each."""

    approx_kl: Tensor
    """KL(mu || pi), estimated by the mean of w - 1 - log w, which is never negative (Schulman, 2020, "Approximating KL")."""
    clip_fraction: Tensor
    """Share of valid samples whose probability ratio is outside the clipping range; 0 without one."""
    mean_ratio: Tensor
    max_ratio: Tensor
    entropy: Tensor
    """Of pi, in nats, estimated by the mean of -w log pi (importance sampling). To compute it is a third of the operations of the
    loss where actions are squashed Gaussians."""


@torch.no_grad()
def ratio_statistics(log_prob: Tensor, behaviour_log_prob: Tensor, mask: Tensor, clip: float | None) -> RatioStatistics:
    """For arguments, see `policy_loss`."""
    log_ratio, count = _log_ratio(log_prob, behaviour_log_prob, mask), valid_count(mask)
    ratio = log_ratio.exp()
    outside = torch.zeros_like(mask) if clip is None else (ratio < 1 / (1 + clip)) | (ratio > 1 + clip)
    each = ratio - 1 - log_ratio, outside.to(ratio.dtype), ratio, -ratio * _kept(log_prob, mask)
    approx_kl, clip_fraction, mean_ratio, entropy = (masked_mean(x, mask, count) for x in each)
    return RatioStatistics(approx_kl, clip_fraction, mean_ratio, _kept(ratio, mask).max(), entropy)


def value_loss(
    values: Tensor,
    targets: Tensor,
    mask: Tensor | None,
    behaviour_values: Tensor | None = None,
    clip: float | None = None,
    count: Tensor | None = None,
) -> Tensor:
    """mean((V - v)^2) / 2, or with `clip` the mean of the larger of that and the error of V clipped to V_mu +- clip: [].

    Args:
        values: float32, with gradient.
        targets: float32; no gradient flows into them.
        behaviour_values: float32 V_mu, the values when the actions were chosen; needed with `clip`.

    Raises `ValueError` for different shapes.
    """
    require("value_loss", values.shape, targets=targets, mask=mask, behaviour_values=behaviour_values)
    values, targets = _kept(values, mask), _kept(targets.detach(), mask)
    error = (values - targets).square()
    if clip is not None:
        if behaviour_values is None:
            raise ValueError("value clipping needs behaviour_values")
        old = _kept(behaviour_values.detach(), mask)
        error = torch.maximum(error, (old + (values - old).clamp(-clip, clip) - targets).square())
    return 0.5 * masked_mean(error, mask, count)


def symmetric_kl_loss(symmetric_kl: Tensor, mask: Tensor | None, count: Tensor | None = None) -> Tensor:
    """Mean symmetric KL divergence from the uniform distribution, each clamped at 30: []."""
    return masked_mean(symmetric_kl.clamp_max(MAX_SYMMETRIC_KL), mask, count)


@torch.no_grad()
def explained_variance(values: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(v - V) / Var(v) over the valid samples; 0 where the targets do not vary: []."""
    total, left = _variance(targets, mask), _variance(targets - values, mask)
    return torch.where(total > 0, 1 - left / total.clamp_min(1e-30), 0.0)


def _variance(x: Tensor, mask: Tensor) -> Tensor:
    return masked_mean((x - masked_mean(x, mask)).square(), mask)
