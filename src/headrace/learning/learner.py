"""The learner: turns batches of trajectories into updates of the model.

It knows nothing of processes: batches come in as tensors, and what it did comes out as numbers. The mathematics of an
algorithm is its loss (`headrace.learning.algorithms`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.config import Config
from headrace.learning.algorithms import Algorithm


@dataclass
class Progress:
    """What has been done so far; saved with every checkpoint."""

    global_step: int = 0
    """Steps learned from, over all environments (rows that are transitions; with epochs a step still counts once)."""
    updates: int = 0
    """Batches learned from."""
    lost_versions: int = 0
    """Versions given to weights that were lost with a learner which died after its last checkpoint; see `version`."""
    episodes: int = 0
    """Games finished in what was learned from."""
    stale_steps: int = 0
    """Steps masked out because their policy lag was above `max_policy_lag`."""

    @property
    def version(self) -> int:
        """Number of the weights: grows by 1 with every update and never names two different weights of a run."""
        return self.updates + self.lost_versions

    def continue_after(self, published: int) -> None:
        """Go on with versions above `published`, the newest that others have seen. Experience of weights that are newer than the
        checkpoint a learner starts from has then a lag as old as it is in the run's history, not a negative one."""
        if self.version < published:
            self.lost_versions = published + 1 - self.updates


class Learner:
    """Model, optimizer and counters."""

    def __init__(self, model: nn.Module, algorithm: Algorithm, config: Config):
        self.config, self.algorithm = config, algorithm
        self.device = config.device
        # Convolutions on the CPU and on tensor cores are faster with channels last; other parameters are not concerned.
        self.model = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = _make_optimizer(self.model, config)
        self.progress = Progress()
        # Minibatch order; its state is saved, so that a resumed serial run is the same as one that never stopped.
        self.generator = torch.Generator().manual_seed(config.seed + 1)
        self._loss = torch.compile(algorithm.loss) if config.learning.compile else algorithm.loss

    @property
    def learning_rate(self) -> float:
        """The schedule is a function of `global_step` alone, so a resumed run continues it."""
        c = self.config.learning
        left = max(0.0, 1.0 - self.progress.global_step / c.total_steps) if c.lr_schedule == "linear" else 1.0
        return c.learning_rate * left

    def extra_state(self) -> dict[str, Any]:
        """What a checkpoint holds beside model, optimizer and counters."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from `extra_state`."""

    def learn(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """One batch, `num_epochs` x `num_minibatches` optimizer steps. Returns means of the losses' statistics.

        `batch`: fields of the slab, [T+1, B, ...], [T, B, ...] and `core` [B, S]. Raises `FloatingPointError` with the
        numbers when the loss or the gradient is not finite; the model is then as it was before that optimizer step.
        """
        c, T = self.config.learning, len(batch["reward"])
        # Lag of a sample: updates between the version that chose the action and the version that learns from it.
        lag = self.progress.version - batch["version"]
        real = batch["valid"][:T]
        batch["mask"] = real & (lag <= c.max_policy_lag)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        with torch.no_grad():
            self.algorithm.prepare(self.model, batch, c)
        # Targets computed beforehand and no recurrence: nothing ties the rows of a trajectory together any more, and minibatches
        # of single samples are less correlated than minibatches of trajectories.
        separable = c.returns == "gae" and "advantage" in batch and batch["core"].shape[-1] == 0
        samples = _as_single_rows(batch, T) if separable and c.num_minibatches > 1 else batch
        statistics: list[dict[str, Tensor]] = []
        for _ in range(c.num_epochs):
            order = torch.randperm(samples["reward"].shape[1], generator=self.generator) if c.num_minibatches > 1 else None
            for i in range(c.num_minibatches):
                part = samples if order is None else _columns(samples, order[i :: c.num_minibatches].to(self.device))
                statistics.append(self._step(part))
        self.progress.updates += 1
        self.progress.global_step += int(real.sum())
        self.progress.stale_steps += int((real & ~batch["mask"]).sum())
        ended = ~batch["episode_return"].isnan()
        self.progress.episodes += int(ended.sum())
        result = {key: torch.stack([s[key] for s in statistics]).mean() for key in statistics[0]}
        lags = lag[real].float()
        result |= {"lag/mean": lags.mean(), "lag/min": lags.min(), "lag/max": lags.max()}
        return result

    def _step(self, part: dict[str, Tensor]) -> dict[str, Tensor]:
        """One optimizer step."""
        c = self.config.learning
        loss, statistics = self._loss(self.model, part, c)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), c.max_grad_norm or float("inf"))
        if not torch.isfinite(norm):  # also so where the loss is not finite
            numbers = ", ".join(f"{k} {float(v):.4g}" for k, v in statistics.items())
            raise FloatingPointError(
                f"update {self.progress.updates}, step {self.progress.global_step}: loss {float(loss):.4g}, gradient norm "
                f"{float(norm):.4g} ({numbers}). A smaller learning rate or max_grad_norm often helps; look at the rewards first."
            )
        self.optimizer.step()
        return {**{k: v.detach() for k, v in statistics.items()}, "losses/grad_norm": norm.detach()}


def _as_single_rows(batch: dict[str, Tensor], T: int) -> dict[str, Tensor]:
    """[T, B, ...] to [1, T B, ...]; row T is needed no more."""
    return {
        name: t.new_empty(T * t.shape[0], 0) if name == "core" else t[:T].flatten(0, 1).unsqueeze(0)
        for name, t in batch.items()
    }


def _columns(batch: dict[str, Tensor], index: Tensor) -> dict[str, Tensor]:
    """Some of a batch's trajectories (whole, so that recurrences and traces stay together)."""
    return {name: t[index] if name == "core" else t[:, index] for name, t in batch.items()}


def _make_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    c = config.learning
    parameters: Any = model.parameters()
    if c.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=c.learning_rate, betas=c.adam_betas, eps=c.optimizer_eps, foreach=True)
    return torch.optim.RMSprop(
        parameters, lr=c.learning_rate, alpha=c.rmsprop_alpha, eps=c.optimizer_eps, centered=c.rmsprop_centered, foreach=True
    )
