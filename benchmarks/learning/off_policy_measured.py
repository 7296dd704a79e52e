"""Distributions that a run does not report by itself, as metrics; imported by `headrace train` for off_policy.py.

Shares of the samples of a batch, whose means over all batches are the distribution over all samples:

    measured/lag_0 ... lag_20, lag_21    policy lag in updates; the last one: 21 and more
    measured/ratio_0 ... ratio_6         importance ratio pi / mu between the edges `RATIOS`

The learner and the algorithm are patched where these numbers are at hand, so that what is measured is the run as it is.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
from typing import Any

RATIOS = (0.5, 0.8, 0.95, 1.05, 1.25, 2.0)
"""Edges between the bins of importance ratios."""
MOST_LAG = 21


def lag_names() -> list[str]:
    """Metrics of the lag's distribution, in order."""
    return [f"measured/lag_{n}" for n in range(MOST_LAG + 1)]


def ratio_names() -> list[str]:
    """Metrics of the ratios' distribution, in order."""
    return [f"measured/ratio_{n}" for n in range(len(RATIOS) + 1)]


def install() -> None:
    """Patch the learner and the algorithm of this process."""
    import torch

    from headrace.learning import losses
    from headrace.learning.learner import Learner
    from headrace.learning.policy_gradient import PolicyGradient

    clipped, learn = PolicyGradient._clipped, Learner.learn
    edges = torch.tensor([math.log(edge) for edge in RATIOS])

    @functools.wraps(clipped)
    def with_ratios(self: Any, log_prob: Any, batch: Any, c: Any) -> dict[str, Any]:
        bins = torch.bucketize(log_prob.detach() - batch["log_prob"], edges)
        shares = {name: losses.masked_mean((bins == n).float(), batch["mask"]) for n, name in enumerate(ratio_names())}
        return clipped(self, log_prob, batch, c) | shares

    @functools.wraps(learn)
    def with_lag(self: Any, batch: Any) -> Any:
        lag = (self.progress.version - batch.version)[batch.valid[: len(batch.version)]].clamp(0, MOST_LAG).long()
        update = learn(self, batch)
        if lag.numel():
            shares = torch.bincount(lag.flatten(), minlength=MOST_LAG + 1).float() / lag.numel()
            update.statistics.update(zip(lag_names(), shares.unbind(), strict=True))
        return update

    PolicyGradient._clipped, Learner.learn = with_ratios, with_lag  # type: ignore[method-assign]


# Only where something is learned: in the learner's process, or in the only one; off_policy.py wants no more than the names.
if __name__ != "off_policy_measured":
    process = multiprocessing.current_process().name
    if "learner" in process or process == "MainProcess":
        install()
