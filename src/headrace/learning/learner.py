"""The learner: turns batches of trajectories into updates of the model.

It knows nothing of processes: batches come in as tensors, and what it did comes out as numbers. The mathematics of an
algorithm is its loss (`headrace.learning.algorithm`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.accelerator.graphs import CudaRecorder, Marker, Recorded, Recorder, Tensors
from headrace.config import Config
from headrace.learning.algorithm import Algorithm


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
    """Model, optimizer and counters. On CUDA nothing here waits for the device, except for the update before the last.

    Args:
        model, algorithm, config: see there.
        recorder: what records where there are no CUDA graphs; for tests.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        config: Config,
        recorder: Recorder | None = None,
    ):
        self.config, self.algorithm = config, algorithm
        self.device = config.device
        # Convolutions on the CPU and on tensor cores are faster with channels last; other parameters are not concerned.
        self.model = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = _make_optimizer(self.model, config)
        self.progress = Progress()
        # Minibatch order; its state is saved, so that a resumed serial run is the same as one that never stopped.
        self.generator = torch.Generator().manual_seed(config.seed + 1)
        self._loss = torch.compile(algorithm.loss) if config.learning.compile else algorithm.loss
        # Two, since what a batch was prepared with must outlive all of its steps: they share no memory.
        recorders = [CudaRecorder(self.device) if config.cuda_graphs else recorder for _ in range(2)]
        self._prepare = Recorded("preparing a batch", self._prepared, recorders[0])
        self._step = Recorded("an optimizer step", self._stepped, recorders[1])
        self._names: tuple[str, ...] = ()
        """What the columns of a step's statistics are."""
        self._reports = [_Report(self.device), _Report(self.device)]
        """Of this update and of the one before."""

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

    def learn(self, batch: Tensors, host: Tensors | None = None) -> Tensors:
        """One batch, `num_epochs` x `num_minibatches` optimizer steps. Returns means of the losses' statistics.

        `batch`: fields of the slab, [T+1, B, ...], [T, B, ...] and `core` [B, S]. `host`: those of them that are only counted
        (`valid`, `version`, `episode_return`) in host memory; None: the batch is.

        Raises `FloatingPointError` with the numbers when the loss or the gradient is not finite. On the CPU the model is then as
        it was before that optimizer step. On CUDA this is found while the next update is under way, or by `settle`, and the
        model is spoilt.
        """
        c, T, host = self.config.learning, len(batch["reward"]), host or batch
        # Lag of a sample: updates between the version that chose the action and the version that learns from it.
        lag = self.progress.version - host["version"]
        real = host["valid"][:T]
        fresh = real & (lag <= c.max_policy_lag)
        batch["mask"] = fresh.to(self.device, non_blocking=True)
        self._set_learning_rate()
        with torch.no_grad():
            batch |= self._prepare(batch)
        # Targets computed beforehand and no recurrence: nothing ties the rows of a trajectory together any more, and minibatches
        # of single samples are less correlated than minibatches of trajectories.
        separable = c.returns == "gae" and "advantage" in batch and batch["core"].shape[-1] == 0
        samples = _as_single_rows(batch, T) if separable and c.num_minibatches > 1 else batch
        steps: list[Tensor] = []
        for _ in range(c.num_epochs):
            order = None
            if c.num_minibatches > 1:
                order = torch.randperm(samples["reward"].shape[1], generator=self.generator).to(self.device, non_blocking=True)
            for i in range(c.num_minibatches):
                part = samples if order is None else _columns(samples, order[i :: c.num_minibatches])
                steps.append(self._step(part)["statistics"].clone())
        result = self._reported(torch.stack(steps))
        self.progress.updates += 1
        self.progress.global_step += int(real.sum())
        self.progress.stale_steps += int((real & ~fresh).sum())
        self.progress.episodes += int((~host["episode_return"].isnan()).sum())
        lags = lag[real].float()
        return result | {"lag/mean": lags.mean(), "lag/min": lags.min(), "lag/max": lags.max()}

    def settle(self) -> None:
        """Wait for the device. Raises `FloatingPointError`, see `learn`."""
        for report in self._reports:
            report.check(self._names)

    def _set_learning_rate(self) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(self.learning_rate)
            else:
                group["lr"] = self.learning_rate

    def _reported(self, steps: Tensor) -> Tensors:
        """Means of the statistics of an update's steps, [n, K]; what the update before has to report is looked at now, when the
        device has more to do."""
        if self.device != "cpu":  # there each step was checked
            self._reports.reverse()
            self._reports[0].send(steps, self.progress)
            self._reports[1].check(self._names)
        return dict(zip(self._names, steps.mean(0), strict=True))

    def _prepared(self, batch: Tensors) -> Tensors:
        """What the algorithm adds to a batch, or replaces in it."""
        full = dict(batch)
        self.algorithm.prepare(self.model, full, self.config.learning)
        return {name: x for name, x in full.items() if x is not batch.get(name)}

    def _stepped(self, part: Tensors) -> Tensors:
        """One optimizer step: its statistics, [K], and what the loss adds to the batch."""
        full = dict(part)
        loss, statistics = self._loss(self.model, full, self.config.learning)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.learning.max_grad_norm or float("inf"))
        statistics = {**statistics, "losses/grad_norm": norm}
        self._names = tuple(statistics)
        numbers = torch.stack([x.detach().float() for x in statistics.values()])
        if self.device == "cpu":
            _check(numbers.unsqueeze(0), self._names, self.progress.updates, self.progress.global_step)
        self.optimizer.step()
        return {"statistics": numbers, **{name: x.detach() for name, x in full.items() if name not in part}}


class _Report:
    """The statistics of one update on their way from the device."""

    def __init__(self, device: str):
        self._arrived = Marker(device)
        self._device = device
        self._steps: Tensor | None = None
        self._when = (0, 0)

    def send(self, steps: Tensor, progress: Progress) -> None:
        """[n, K], one row for each optimizer step."""
        if self._steps is None:
            self._steps = torch.zeros(steps.shape, pin_memory=self._device != "cpu")
        self._steps.copy_(steps, non_blocking=True)
        self._when = progress.updates, progress.global_step
        self._arrived.set()

    def check(self, names: tuple[str, ...]) -> None:
        """Wait for them, and raise `FloatingPointError` if the gradient was not finite."""
        if self._steps is not None:
            self._arrived.wait()
            _check(self._steps, names, *self._when)


def _check(steps: Tensor, names: tuple[str, ...], update: int, global_step: int) -> None:
    """The gradient's norm is the last column of [n, K]; it is not finite where the loss is not."""
    for numbers in steps[~steps[:, -1].isfinite()].tolist():
        listed = ", ".join(f"{name} {number:.4g}" for name, number in zip(names, numbers, strict=True))
        raise FloatingPointError(
            f"update {update}, step {global_step}: the gradient is not finite ({listed}). A smaller learning rate or "
            "max_grad_norm often helps; look at the rewards first."
        )


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
    graphs = config.cuda_graphs
    # A recorded step reads the learning rate from the device.
    lr: Any = torch.tensor(c.learning_rate, device=config.device) if graphs else c.learning_rate
    if c.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, betas=c.adam_betas, eps=c.optimizer_eps, capturable=graphs, fused=True)
    return torch.optim.RMSprop(
        parameters, lr=lr, alpha=c.rmsprop_alpha, eps=c.optimizer_eps, centered=c.rmsprop_centered, foreach=True,
        capturable=graphs,
    )  # fmt: skip
