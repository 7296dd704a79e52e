"""How far off-policy a batch is: measured now and then, not in every update.

With w = pi / mu for the action taken, pi the policy before the update, mu the policy that chose the action, and N samples of mu:

    effective sample size   (sum w)^2 / (N sum w^2), 1 where the policies are equal (Kong 1992)
    total variation         mean |w - 1| / 2
    KL(mu || pi)            mean (w - 1 - log w)                                    (Schulman 2020, "Approximating KL divergence")

and the shares of samples whose w the limits of V-trace and of PPO clip. With the cosine of consecutive gradients, these are what
recent work watches to predict that off-policy learning collapses: arXiv 2602.17616, 2603.01365, 2603.01501.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.config import LearningConfig
from headrace.learning.losses import MAX_LOG_RATIO, masked_mean
from headrace.learning.shape_checks import require
from headrace.runs import lag_bins


@torch.no_grad()
def off_policyness(log_prob: Tensor, behaviour_log_prob: Tensor, mask: Tensor, c: LearningConfig) -> dict[str, Tensor]:
    """The numbers of the module's docstring over the valid samples, [] each by metric name; without a valid sample 0.

    Args:
        log_prob, behaviour_log_prob: float32 [...], of the actions under pi and mu. log w is clamped as in the losses.
        mask: bool [...].

    Raises `ValueError` for different shapes.
    """
    require("off_policyness", log_prob.shape, behaviour_log_prob=behaviour_log_prob, mask=mask)
    log_w = torch.where(mask, log_prob - behaviour_log_prob, 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    w = log_w.exp()
    second = masked_mean(w.square(), mask)
    found = {
        "off_policy/effective_sample_size": masked_mean(w, mask).square() / second.clamp_min(1e-30),
        "off_policy/total_variation": masked_mean((w - 1).abs(), mask) / 2,
        "off_policy/kl": masked_mean(w - 1 - log_w, mask),
        "off_policy/rho_clipped": masked_mean((w > c.vtrace_rho).float(), mask),
        "off_policy/c_clipped": masked_mean((w > c.vtrace_c).float(), mask),
    }
    if c.ppo_clip is not None:
        limit = math.log1p(c.ppo_clip)
        found["off_policy/ppo_clipped"] = masked_mean((log_w.abs() > limit).float(), mask)
    return found


@torch.no_grad()
def lag_distribution(lag: Tensor, behind: Tensor | None) -> dict[str, Tensor]:
    """Percentiles and the histogram of the policy lag, and its two sources, [] each by metric name.

    Args:
        lag: int [N]: updates between the weights that chose the action and those that learn from it.
        behind: int [N]: those of them that had been published when it was chosen: the actor's weights were that old. The others
            were made afterwards. None: actors always had the newest.
    """
    lags = lag.float()
    bins = torch.bucketize(lag, torch.tensor(lag_bins.LAGS[1:]), right=True)
    shares = torch.bincount(bins, minlength=len(lag_bins.LAGS)) / lag.numel()
    when_chosen = torch.zeros(()) if behind is None else behind.float().mean()
    return {
        "lag/p50": torch.quantile(lags, 0.5, interpolation="nearest"),
        "lag/p95": torch.quantile(lags, 0.95, interpolation="nearest"),
        "lag/when_chosen": when_chosen,
        "lag/since_chosen": lags.mean() - when_chosen,
        **{f"lag/share/{name}": share for name, share in zip(lag_bins.NAMES, shares.unbind(), strict=True)},
    }


class ConsecutiveGradients:
    """Cosine of the gradients of two optimizer steps that follow each other: of the first two after every `begin`."""

    def __init__(self, parameters: Sequence[Tensor]):
        self._parameters = parameters
        self._before: Tensor | None = None
        self._wanted = False

    def begin(self) -> None:
        """Measure the next two optimizer steps."""
        self._wanted, self._before = True, None

    @torch.no_grad()
    def after_step(self) -> dict[str, Tensor]:
        """To be called after every optimizer step; the metric when it is known, which is once, else nothing."""
        if not self._wanted:
            return {}
        now = torch.cat([p.grad.flatten() for p in self._parameters if p.grad is not None])
        if self._before is None or self._before.shape != now.shape:
            self._before = now
            return {}
        cosine = torch.nn.functional.cosine_similarity(self._before, now, dim=0)
        self._wanted, self._before = False, None
        return {"losses/grad_cosine": cosine}
