"""What the policy network's last layer means: a distribution over the flat action rows of an `ActionSpec`.

The parts of an action are independent given the observation. All discrete parts live in one padded tensor [..., K, n]: padding
is just a mask, so sampling, log-probability, entropy and divergences have a single code path, and an action mask cannot be
applied in one of them and forgotten in another. A squashed Gaussian is a Gaussian pushed through tanh onto [low, high]
(Haarnoja et al., 2018, arXiv 1812.05905, appendix C); the log-probability always starts from the action as it is stored, so
acting and learning agree to the last bit about the same parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headrace.envs.core.contract import ActionSpec, Categorical, Continuous

MASKED_LOGIT = -1e9
"""Logit of a forbidden choice. Finite, so that 0 x log 0 needs no special case and a row without any choice is uniform."""
LOG_STD_RANGE = (-5.0, 2.0)  # log standard deviations of continuous actions are clamped to this range
TANH_LIMIT = 1.0 - 1e-6  # normalised actions are clamped to +-this before atanh: float32 cannot tell larger ones from 1

_TINY = torch.finfo(torch.float32).tiny
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Layout:
    """Where the K discrete parts and the C continuous numbers of an `ActionSpec` are in parameter and action rows."""

    choices: tuple[int, ...]  # n of each discrete part
    discrete_columns: Tensor  # int64 [K], in the action row
    continuous_columns: Tensor  # int64 [C], in the action row
    gather: Tensor | None  # int64 [K * max n], flat logits to padded ones; None where all parts have equally many choices
    exists: Tensor | None  # bool [K, max n], False for padding; None without padding
    bounded: Tensor  # bool [C]: squashed into bounds (both finite), else a plain Gaussian
    fixed: Tensor | None  # bool [C]: low and high are equal; None where there is no such number
    low: Tensor  # float32 [C], -inf where not squashed
    high: Tensor  # float32 [C], inf where not squashed
    middle: Tensor  # float32 [C], (low + high) / 2; 0 where unbounded
    half_range: Tensor  # float32 [C], (high - low) / 2; 1 where unbounded or degenerate
    squashes: bool  # whether any number is bounded


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # also if the first caller is in inference mode: the tensors may be used in a graph later
def layout(spec: ActionSpec, device: torch.device) -> Layout:
    """Of these actions; the same object for the same arguments."""
    discrete = np.repeat([isinstance(part, Categorical) for part in spec.parts], [part.width for part in spec.parts])
    choices = [part.n for part in spec.parts if isinstance(part, Categorical)]
    gather = exists = None
    if len(set(choices)) > 1:
        position = np.arange(max(choices))
        existing = position < np.array(choices)[:, None]
        starts = np.cumsum([0, *choices[:-1]])
        gather = torch.as_tensor(np.where(existing, starts[:, None] + position, 0).reshape(-1), device=device)
        exists = torch.as_tensor(existing, device=device)
    numbers = [part for part in spec.parts if isinstance(part, Continuous)]
    low, high = np.array([sum((part.low for part in numbers), ()), sum((part.high for part in numbers), ())], np.float64)
    bounded = np.isfinite(low) & np.isfinite(high)
    fixed = bounded & (low == high)
    with np.errstate(invalid="ignore"):  # infinite bounds, whose results are not taken
        middle = np.where(bounded, (low + high) / 2, 0.0)
        half_range = np.where(bounded & (high > low), (high - low) / 2, 1.0)
    return Layout(
        tuple(choices),
        discrete_columns=torch.as_tensor(np.flatnonzero(discrete), device=device),
        continuous_columns=torch.as_tensor(np.flatnonzero(~discrete), device=device),
        gather=gather,
        exists=exists,
        bounded=torch.as_tensor(bounded, device=device),
        fixed=torch.as_tensor(fixed, device=device) if fixed.any() else None,
        low=torch.as_tensor(np.where(bounded, low, -np.inf), dtype=torch.float32, device=device),
        high=torch.as_tensor(np.where(bounded, high, np.inf), dtype=torch.float32, device=device),
        middle=torch.as_tensor(middle, dtype=torch.float32, device=device),
        half_range=torch.as_tensor(half_range, dtype=torch.float32, device=device),
        squashes=bool(bounded.any()),
    )


def param_width(spec: ActionSpec) -> int:
    """P: numbers that parametrise the distribution: the logits of all discrete parts, then all means, then all log stds."""
    return spec.mask_width + 2 * sum(part.width for part in spec.parts if isinstance(part, Continuous))


class ActionDistribution:
    """Distribution over action rows.

    Args:
        spec: the parts of an action.
        params: [..., P] floating point; see `param_width` for the order. Computed with in float32.
        mask: bool or uint8 [..., M], 0 forbids a choice; M = `spec.mask_width`, the choices of all discrete parts in order.
            A part without any allowed choice counts as unmasked (such rows are masked out of learning).
    """

    def __init__(self, spec: ActionSpec, params: Tensor, mask: Tensor | None = None):
        if params.shape[-1] != param_width(spec):
            raise ValueError(f"params have {params.shape[-1]} columns, the action spec needs {param_width(spec)}")
        self.spec = spec
        self.params = params.float()
        self._layout = layout(spec, params.device)
        logits, self._mean, log_std = self.params.split(
            [spec.mask_width, *[(param_width(spec) - spec.mask_width) // 2] * 2], dim=-1
        )
        self._log_std = log_std.clamp(*LOG_STD_RANGE) if log_std.shape[-1] else log_std
        if self._layout.fixed is not None:  # nothing is learned about a number that has one value only
            self._mean, self._log_std = (x.masked_fill(self._layout.fixed, 0.0) for x in (self._mean, self._log_std))
        self._allowed: Tensor | None = None
        if self._layout.choices:
            self._logits = self._pad(logits)
            self._allowed = self._layout.exists
            if mask is not None:
                allowed = self._pad(mask) != 0
                allowed = allowed | ~self._exist(allowed).any(-1, keepdim=True)
                self._allowed = self._exist(allowed)
            if self._allowed is not None:
                self._logits = self._logits.masked_fill(~self._allowed, MASKED_LOGIT)

    def _pad(self, flat: Tensor) -> Tensor:
        """[..., M] -> [..., K, max n]."""
        if self._layout.gather is not None:
            flat = flat.index_select(-1, self._layout.gather)
        return flat.unflatten(-1, (len(self._layout.choices), -1))

    def _exist(self, allowed: Tensor) -> Tensor:
        return allowed if self._layout.exists is None else allowed & self._layout.exists

    @cached_property
    def _log_probs(self) -> Tensor:
        """[..., K, max n]."""
        return self._logits.log_softmax(-1)

    # -- actions -----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions [..., A] in the dtype of the spec (int32 or float32)."""
        choice = number = None
        if self._layout.choices:
            # A race of exponential arrival times with rates exp(logit) is won with probability softmax(logit). Times are -log of
            # uniform numbers, since exponential_ is several times slower on the CPU; the floor keeps forbidden choices from
            # winning by default.
            uniform = torch.empty_like(self._logits).uniform_(generator=generator).clamp_min_(_TINY)
            choice = (self._logits - uniform.log_().neg_().log_()).argmax(-1)
        if self._mean.shape[-1]:
            noise = torch.empty_like(self._mean).normal_(generator=generator)
            number = self._squash(self._mean + self._log_std.exp() * noise)
        return self._join(choice, number)

    @torch.no_grad()
    def mode(self) -> Tensor:
        """The most probable choices, and the means pushed into two finite bounds: [..., A]."""
        choice = self._logits.argmax(-1) if self._layout.choices else None
        return self._join(choice, self._squash(self._mean) if self._mean.shape[-1] else None)

    def _join(self, choice: Tensor | None, number: Tensor | None) -> Tensor:
        if number is None:
            assert choice is not None
            return choice.to(torch.int32)
        if choice is None:
            return number
        actions = number.new_empty(*number.shape[:-1], self.spec.width)
        actions[..., self._layout.discrete_columns] = choice.to(number.dtype)
        actions[..., self._layout.continuous_columns] = number
        return actions

    def _squash(self, number: Tensor) -> Tensor:
        at = self._layout
        # The clamp catches rounding at the bounds. A number with one bound stays as it was drawn, so that its density is that of
        # the Gaussian; the environment gets it clamped (`envs.core.actions`).
        return torch.where(at.bounded, at.middle + at.half_range * number.tanh(), number).clamp(at.low, at.high)

    # -- parameters, for those who sample elsewhere ---------------------------------------------------------------------

    @property
    def logits(self) -> Tensor | None:
        """Of all choices in order, float32 [..., M]; `MASKED_LOGIT` for forbidden ones. None without discrete parts."""
        if not self._layout.choices:
            return None
        return torch.cat([self._logits[..., i, :n] for i, n in enumerate(self._layout.choices)], -1)

    @property
    def mean(self) -> Tensor | None:
        """Of the Gaussians that are squashed into bounds, float32 [..., C]; None without continuous parts."""
        return self._mean if self._mean.shape[-1] else None

    @property
    def std(self) -> Tensor | None:
        """Standard deviations of the same, float32 [..., C]."""
        return self._log_std.exp() if self._mean.shape[-1] else None

    # -- quantities --------------------------------------------------------------------------------------------------------

    def log_prob(self, actions: Tensor, known: Unsquashed | None = None) -> Tensor:
        """Log-probability (density, for continuous parts) of `actions` [..., A]: float32 [...]. `known`: what `unsquashed` has
        made of the same actions; None: it is done here."""
        total: Tensor | float = 0.0
        if self._layout.choices:
            chosen = actions if not self._mean.shape[-1] else actions[..., self._layout.discrete_columns]
            chances = self._log_probs.gather(-1, chosen.long().unsqueeze(-1)).squeeze(-1)
            total = chances.squeeze(-1) if len(self._layout.choices) == 1 else chances.sum(-1)
        if self._mean.shape[-1]:
            raw, log_slope = known or unsquashed(self.spec, actions)
            scaled = (raw - self._mean) * (-self._log_std).exp()
            total = total + (-0.5 * scaled.square() - self._log_std).sum(-1) - (log_slope + raw.shape[-1] * _LOG_SQRT_2PI)
        assert isinstance(total, Tensor), "an action has at least one part"
        return total

    def entropy(self) -> Tensor:
        """Entropy in nats, summed over the parts: float32 [...].

        That of a squashed Gaussian is H(u) + E[log da/du], whose error is below 0.001 nats; see `_expected_log_2_cosh`.
        """
        total = self.params.new_zeros(self.params.shape[:-1])
        if self._layout.choices:
            total = total - (self._log_probs.exp() * self._log_probs).sum((-1, -2))
        if self._mean.shape[-1]:
            total = total + (0.5 + _LOG_SQRT_2PI + self._log_std).sum(-1)
            if self._layout.squashes:
                at = self._layout
                # log(1 - tanh(u)^2) = 2 (log 2 - log(2 cosh u))
                slope = 2.0 * (math.log(2.0) - _expected_log_2_cosh(self._mean, self._log_std.exp())) + at.half_range.log()
                total = total + torch.where(at.bounded, slope, 0.0).sum(-1)
        return total

    def symmetric_kl_to_uniform(self) -> Tensor:
        """(KL(p || u) + KL(u || p)) / 2 with u uniform over the allowed choices and within the bounds, summed over the parts:
        float32 [...]. There is no such u for unbounded numbers, which are left out.

        An exploration term that grows without limit as a choice dies out, where entropy's gradient vanishes.
        """
        total = self.params.new_zeros(self.params.shape[:-1])
        if self._layout.choices:
            log_probs = self._log_probs
            if self._allowed is None:
                uniform = torch.full_like(log_probs, 1.0 / log_probs.shape[-1])
            else:
                uniform = (self._allowed / self._allowed.sum(-1, keepdim=True)).expand_as(log_probs)
            # The two logarithms of u cancel out in KL(p || u) + KL(u || p) = sum (p - u) (log p - log u).
            log_uniform = uniform.clamp_min(1e-30).log()
            difference = torch.where(uniform > 0, log_probs - log_uniform, 0.0)
            total = total + 0.5 * ((log_probs.exp() - uniform) * difference).sum((-1, -2))
        if self._layout.squashes:
            # Of x uniform in (-1, 1), E[atanh(x)^2] = pi^2 / 12 and E[log(1 - x^2)] = 2 log 2 - 2. With p's entropy (`entropy`)
            # all logarithms of scales cancel out.
            std = self._log_std.exp()
            square = (math.pi**2 / 12 + self._mean.square()) / (2 * std.square())
            each = 0.5 * (square - 2.5) + _expected_log_2_cosh(self._mean, std)
            total = total + torch.where(self._layout.bounded, each, 0.0).sum(-1)
        return total


class Unsquashed(NamedTuple):
    """What of a log-probability depends on the actions alone."""

    raw: Tensor
    """float32 [..., C]: the numbers before they were squashed into bounds."""
    log_slope: Tensor
    """float32 [...]: sum of log da/du of the squashing there."""


def unsquashed(spec: ActionSpec, actions: Tensor) -> Unsquashed:
    """Of actions [..., A] with C continuous numbers."""
    at = layout(spec, actions.device)
    number = actions[..., at.continuous_columns] if at.choices else actions
    unit = ((number - at.middle) / at.half_range).clamp(-TANH_LIMIT, TANH_LIMIT)
    raw = torch.where(at.bounded, unit.atanh(), number)
    # log(1 - tanh(u)^2) in a form that does not underflow, plus log scale.
    slope = 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw)) + at.half_range.log()
    return Unsquashed(raw, torch.where(at.bounded, slope, 0.0).sum(-1))


_COSH_MIXTURE = ((0.65429, 0.68382), (0.34571, 1.22073))
"""Weights and standard deviations of the two Gaussians of `_expected_log_2_cosh`, fitted by least squares over |u| < 8."""


def _expected_log_2_cosh(mean: Tensor, std: Tensor) -> Tensor:
    """E[log(2 cosh u)] of a Gaussian u, the same shape.

    The second derivative of log(2 cosh u) is twice a probability density, that of a logistic variable X; so log(2 cosh u) =
    E|u + X|. With Gaussians instead of X the expectation has a closed form. A mixture of two is within 0.0006 of it
    everywhere, and Gauss-Hermite quadrature of the small, smooth difference leaves less than half of that. (Quadrature of
    log cosh itself fails for a wide u, which sees a kink.)
    """
    nodes, weights = _quadrature(mean.device)
    u = mean.unsqueeze(-1) + std.unsqueeze(-1) * nodes
    closed: Tensor | float = 0.0
    rest = u.abs() + torch.log1p(torch.exp(-2 * u.abs()))
    for weight, width in _COSH_MIXTURE:
        closed = closed + weight * _expected_abs(mean, (std.square() + width**2).sqrt())
        rest = rest - weight * _expected_abs(u, torch.full_like(u, width))
    return closed + rest @ weights


def _expected_abs(mean: Tensor, std: Tensor) -> Tensor:
    """E|u| of a Gaussian u."""
    scaled = mean / std
    return std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * scaled.square()) + mean * torch.erf(scaled / math.sqrt(2))


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _quadrature(device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights [8] for expectations under a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    return (
        torch.as_tensor(nodes, dtype=torch.float32, device=device),
        torch.as_tensor(weights / weights.sum(), dtype=torch.float32, device=device),
    )
