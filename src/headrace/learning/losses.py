"""Losses and their statistics, as means over the valid samples.

Every function takes a boolean `mask` of the batch's shape. Some also take `count`, int64 []: the number of valid samples, at
least 1, which saves counting them again; then `mask` None means that all samples are valid. Masked samples have no influence,
even if they are NaN: they are replaced before use, because NaN times zero is NaN, in the gradient too. Without a valid sample a
mean, and so a loss, is 0.
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


def valid_count(mask: Tensor | None) -> Tensor:
    """Number of valid samples, at least 1: int64 []."""
    if mask is None:
        raise ValueError("without a mask the number of samples must be given")
    return mask.sum().clamp_min(1)


def _kept(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x` where `mask` is True, 0 elsewhere."""
    return x if mask is None else torch.where(mask, x, 0.0)


def masked_mean(x: Tensor, mask: Tensor | None, count: Tensor | None = None) -> Tensor:
    """Mean of `x` where `mask` is True, 0 if it is nowhere: []."""
    return _kept(x, mask).sum() / (valid_count(mask) if count is None else count)


def normalize_advantages(advantages: Tensor, mask: Tensor | None, floor: float = 1e-7, count: Tensor | None = None) -> Tensor:
    """(A - mean) / max(std, floor) over the valid samples, 0 elsewhere: same shape."""
    count = valid_count(mask) if count is None else count
    centred = _kept(advantages - masked_mean(advantages, mask, count), mask)
    std = masked_mean(centred.square(), mask, count).sqrt()
    return centred / std.clamp_min(floor)


class PolicyLoss(NamedTuple):
    """The policy's loss and its diagnostics: [] each; only `loss` has a gradient."""

    loss: Tensor
    approx_kl: Tensor
    """KL(mu || pi), estimated by the mean of w - 1 - log w, which is never negative (Schulman, 2020, "Approximating KL")."""
    clip_fraction: Tensor
    """Share of valid samples whose probability ratio is outside the clipping range."""
    mean_ratio: Tensor
    max_ratio: Tensor
    entropy: Tensor
    """Of pi, in nats, estimated by the mean of -w log pi (importance sampling). To compute it is a third of the operations of the
    loss where actions are squashed Gaussians."""


def policy_loss(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    advantages: Tensor,
    mask: Tensor | None,
    clip: float | None,
    count: Tensor | None = None,
) -> PolicyLoss:
    """Policy gradient loss, clipped (PPO) or plain.

    With w = pi / mu: -mean(min(w A, clamp(w, 1/(1+clip), 1+clip) A)) (Schulman et al., 2017, arXiv 1707.06347, equation 7, with
    the symmetric-in-log range of Petrenko et al., 2020), or, if `clip` is None, -mean(A log pi) (IMPALA, A2C).

    Args:
        log_prob: float32, of the actions under the learner's policy, with gradient.
        behaviour_log_prob: float32, of the policy that chose them.
        advantages: float32; no gradient flows into them.

    Raises `ValueError` for different shapes.
    """
    require("policy_loss", log_prob.shape, behaviour_log_prob=behaviour_log_prob, advantages=advantages, mask=mask)
    count = valid_count(mask) if count is None else count
    advantages = _kept(advantages.detach(), mask)
    log_prob = _kept(log_prob, mask)
    log_ratio = (log_prob - _kept(behaviour_log_prob, mask)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    if clip is None:
        loss = -masked_mean(log_prob * advantages, mask, count)
        clipped = torch.zeros_like(ratio)
    else:
        low, high = 1 / (1 + clip), 1 + clip
        loss = -masked_mean(torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages), mask, count)
        clipped = (ratio < low) | (ratio > high)
    with torch.no_grad():
        # In one tensor, since on small batches an operation costs more than its arithmetic.
        diagnostics = _kept(torch.stack((ratio - 1 - log_ratio, clipped.to(ratio.dtype), ratio, -ratio * log_prob)), mask)
        approx_kl, clip_fraction, mean_ratio, entropy = (diagnostics.flatten(1).sum(1) / count).unbind()
        return PolicyLoss(loss, approx_kl, clip_fraction, mean_ratio, diagnostics[2].max(), entropy)


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
def explained_variance(values: Tensor, targets: Tensor, mask: Tensor | None, count: Tensor | None = None) -> Tensor:
    """1 - Var(v - V) / Var(v) over the valid samples; 0 where the targets do not vary: []."""
    count = valid_count(mask) if count is None else count
    both = torch.stack((targets, targets - values)).flatten(1)
    valid = None if mask is None else mask.flatten()
    means = _kept(both, valid).sum(1, keepdim=True) / count
    total, left = (_kept((both - means).square(), valid).sum(1) / count).unbind()
    return torch.where(total > 0, 1 - left / total.clamp_min(1e-30), 0.0)
