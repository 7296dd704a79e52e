"""The learner: turns batches into updates of the model.

It takes batches of tensors and returns statistics; it does not depend on processes or on the source of the experience. The loss
belongs to the algorithm (`headrace.learning.algorithm`).
"""

from __future__ import annotations

import math
import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headrace.accelerator.graphs import CudaRecorder, Function, Marker, Recorded, Recorder, Tensors
from headrace.accelerator.ranks import Ranks
from headrace.accelerator.staging import to_device
from headrace.config import Config, ConfigError
from headrace.config.errors import UserError
from headrace.config.seeds import Use, random_seed
from headrace.experience.batch import Arrivals, Batch
from headrace.learning.algorithm import Algorithm
from headrace.learning.minibatches import minibatches
from headrace.learning.off_policy import ConsecutiveGradients, lag_distribution
from headrace.learning.optimizers import clip_gradients, make_optimizer
from headrace.policies.errors import AgentFault, is_own, named, shown
from headrace.policies.normalizer import RunningMeanStd


class NotFinite(UserError, FloatingPointError):
    """The loss or its gradient is not finite; the message has the numbers."""


@dataclass
class Update:
    """What one update did."""

    statistics: Tensors
    """Scalars by metric name: means over the update's optimizer steps of what the loss reports, and the policy lag. Empty for a
    batch without a valid row."""
    priorities: Tensor | None
    """float32 [B], on the device: new priorities of the replayed samples; the next update overwrites them. None without
    replay."""


@dataclass
class Progress:
    """What has been done so far; saved with every checkpoint."""

    global_step: int = 0
    """Steps of all environments that were learned from (rows that are transitions and were not masked out as too old; with epochs
    a step still counts once). With replay: steps that entered it."""
    updates: int = 0  # batches learned from
    lost_versions: int = 0
    """Versions given to weights that were lost with a learner which died after its last checkpoint; see `version`."""
    episodes: int = 0  # episodes that ended in these steps
    stale_steps: int = 0  # steps masked out because their policy lag was above `max_policy_lag`

    @property
    def version(self) -> int:
        """Number of the weights: grows by 1 with every update and never names two different weights of a run."""
        return self.updates + self.lost_versions

    def continue_after(self, published: int) -> None:
        """Continue with versions above `published`, the newest version that actors have seen. Otherwise experience from weights
        newer than the loaded checkpoint would have a negative policy lag."""
        if self.version < published:
            self.lost_versions = published + 1 - self.updates


class Learner:
    """Model, optimizer and counters. On CUDA nothing here waits for the device, except for the update before the last.

    Args:
        model: made by the algorithm; moved to the configured device.
        algorithm, config: what to learn, and how.
        recorder: records work where there are no CUDA graphs; for tests.
    """

    def __init__(self, model: nn.Module, algorithm: Algorithm, config: Config, recorder: Recorder | None = None):
        self.config, self.algorithm = config, algorithm
        self.device = config.device
        # Convolutions on the CPU and on tensor cores are faster with channels last; other parameters are not concerned.
        self.model = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._parameters = list(self.model.parameters())
        self.optimizer = make_optimizer(self.model, config)
        self.progress = Progress()
        # Minibatch order; its state is saved, so that a resumed serial run is the same as one that never stopped.
        self.generator = torch.Generator().manual_seed(random_seed(Use.LEARNING, config.seed))
        if config.learning.compile:
            _check_compiler(self.device)
            algorithm.loss = torch.compile(algorithm.loss)  # type: ignore[method-assign]
        self._reduce_gradients: Callable[[Tensor], None] | None = None
        self._ranks: Ranks | None = None
        self.cut_short: Callable[[], bool] = lambda: False
        """Called after every optimizer step; True ends the update early. Not called if several ranks learn together."""
        self._gradients = ConsecutiveGradients(self._parameters)
        self.measure()

        self._recorder = recorder
        self._record()
        self._names: tuple[str, ...] = ()  # metric name of each column of the statistics
        self._reports = [_Report(self.device), _Report(self.device)]  # of the present update and of the previous one

    def measure(self) -> None:
        """Have the next update report what only few updates need to: how far off-policy its first minibatch is, and how alike
        consecutive gradients are."""
        self._measuring = True
        self._gradients.begin()

    def _record(self) -> None:
        self._records = self.config.cuda_graphs or self._recorder is not None

        def recorded(name: str, function: Function) -> Recorded:
            # Graphs of one recorder overwrite each other's results. These results must last, so each function has a recorder.
            return Recorded(name, function, CudaRecorder(self.device) if self.config.cuda_graphs else self._recorder)

        self._prepare: Callable[[Tensors], Tensors] = recorded("preparing a batch", self._prepared)
        self._step = recorded("an optimizer step", self._stepped)
        self._backward = recorded("a backward pass", self._differentiated)
        self._apply = recorded("clipping and the optimizer", self._applied)

    def reconfigure(self, config: Config) -> None:
        """Use new values of `config.learning` from the next update on. Settings that change the shape of the network, the batch
        or the optimizer must stay the same. CUDA graphs are recorded again."""
        self.settle()
        self.config, c = config, config.learning
        own = {"betas": tuple(c.adam_betas), "alpha": c.rmsprop_alpha, "eps": c.optimizer_eps}
        for group in self.optimizer.param_groups:
            group.update({name: value for name, value in own.items() if name in group})
        self._record()

    @property
    def learning_rate(self) -> float:
        """The schedule is a function of `global_step` alone, so a resumed run continues it."""
        c = self.config.learning
        left = max(0.0, 1.0 - self.progress.global_step / c.total_steps) if c.lr_schedule == "linear" else 1.0
        return c.learning_rate * left

    def reduce_gradients_by(self, function: Callable[[Tensor], None]) -> None:
        """Call the function in every optimizer step between the backward pass and clipping, to combine the gradients of several
        learners. It finds them in `parameter.grad` of `model`, always in the same memory, and is given the number of samples that
        they are of, int64 []; it is never recorded."""
        self._reduce_gradients = function
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None

    def join(self, ranks: Ranks) -> None:
        """Learn together with other ranks, starting from the weights of rank 0, as one learner would with all of their batches: a
        gradient is the mean over the valid samples of all ranks, or with `learning.reduction sum` the sum. The normalisers'
        statistics and the counts of masked steps are added up. Each rank normalises the advantages of its own samples, and
        reports its own loss and lag."""
        if ranks.size == 1:
            return
        self._ranks = ranks
        for tensor in self.model.state_dict().values():
            if ranks.index:
                tensor.zero_()
            ranks.sum(tensor)
        for module in self.model.modules():
            if isinstance(module, RunningMeanStd):
                module.sum_over_ranks = ranks.sum
                self._prepare = self._prepared  # it sends and receives, which is not recorded
        summed = self.config.learning.reduction == "sum" and not self.config.uses_replay
        self.reduce_gradients_by(lambda samples: ranks.combine_gradients(self.model, None if summed else samples))

    def learn(self, batch: Batch) -> Update:
        """One update: `num_epochs` x `num_minibatches` optimizer steps; none for a batch without a valid row.

        Raises `NotFinite` with the numbers when the loss or the gradient is not finite. On the CPU the model is then as
        it was before that optimizer step. On CUDA this is found while the next update is under way, or by `settle`, and the
        model is spoilt.
        """
        progress, data = self.progress, dict(batch.data)
        # Lag of a sample: updates between the version that chose the action and the version that learns from it.
        lag = progress.version - batch.version
        learnable = True
        if batch.valid is None:
            self.note(batch.arrivals)  # they entered the replay before anything was drawn from it
        else:
            real = batch.valid[: len(data["reward"])]
            fresh = real & (lag <= self.config.learning.max_policy_lag)
            data["mask"] = to_device(fresh, self.device)
            # Without a valid row there is no gradient, but momentum would move the weights. Other learners' gradients count.
            learnable = bool(fresh.any()) or self._reduce_gradients is not None
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(self.learning_rate)
            else:
                group["lr"] = self.learning_rate
        out: Tensors = {}
        statistics: Tensors = {}
        measured: Tensors = {}
        if learnable:
            with torch.no_grad():
                data |= (added := self._prepare(data))
            if self.config.learning.num_minibatches > 1 and is_own(type(self.algorithm).prepare):
                self._check_divisible(added, *data["reward"].shape)
            out, statistics = self._optimizer_steps(data, measured)
        progress.updates += 1
        if batch.valid is not None:
            stale = int((real & ~fresh).sum())
            if self._ranks is not None:
                (stale,) = self._ranks.count(stale)
            self.note(batch.arrivals)
            progress.global_step -= stale
            progress.stale_steps += stale
            lag = lag[real]
        with self.algorithm.naming("after_update", progress.updates, self.config.learning):
            self.algorithm.after_update(self.model, progress.updates)
        with self.algorithm.naming("schedule", progress.global_step, self.config.learning):
            self.algorithm.schedule(self.model, progress.global_step)
        if lag.numel():
            lags = lag.float()
            statistics |= {"lag/mean": lags.mean(), "lag/min": lags.min(), "lag/max": lags.max()}
            if self._measuring and batch.valid is not None:
                measured |= lag_distribution(lag, None if batch.behind is None else batch.behind[real])
                self._measuring = False
        statistics |= measured
        return Update(statistics, None if batch.keys is None else self._priority(out, len(batch.keys)))

    def _optimizer_steps(self, data: Tensors, measured: Tensors) -> tuple[Tensors, Tensors]:
        """All of an update. Returns the results of the last one, and the statistics of all; adds to `measured` what is measured
        between two of them."""
        out: Tensors = {}
        steps: list[Tensor] = []
        samples: dict[str, list[Tensor]] = defaultdict(list)
        whole = self.algorithm.whole_trajectories(self.config.learning)
        for part in minibatches(data, self.config.learning, whole, self.device, self.generator):
            before = self._names
            out = self._step(part) if self._reduce_gradients is None else self._reduced_step(part)
            if steps and self._names != before:
                came = f"returned the statistics {', '.join(self._names[:-1])} after {', '.join(before[:-1])}"
                raise self._fault(came, "the same names in all optimizer steps of an update")
            steps.append(out["statistics"].clone())
            for name, x in out.items():
                if name.startswith("sample/"):  # a recorded step overwrites those of the step before
                    samples[name.removeprefix("sample/")].append(x.flatten().clone() if self._records else x.flatten())
            measured |= self._gradients.after_step()
            if self._reduce_gradients is None and self.cut_short():
                break
        with torch.no_grad():
            several = {name: torch.cat(parts) for name, parts in samples.items()}
            statistics = self._reduced_samples("statistics", several, self.model)
            if self._measuring:
                measured |= self._reduced_samples("diagnostics", {name: parts[0] for name, parts in samples.items()})
        return out, statistics | self._reported(torch.stack(steps))

    def _reduced_samples(self, method: str, samples: Tensors, *model: nn.Module) -> Tensors:
        """What `statistics` or `diagnostics` of the algorithm makes of them: tensors [] by metric name."""
        with self.algorithm.naming(method, samples, self.config.learning):
            found: Tensors = getattr(self.algorithm, method)(*model, samples, self.config.learning)
        scalars = isinstance(found, dict) and all(isinstance(x, Tensor) and not x.dim() for x in found.values())
        if not scalars and is_own(getattr(type(self.algorithm), method)):
            raise self._fault(f"returned {shown(found)}", "tensors [] by name", method)
        return found

    def note(self, arrivals: Arrivals) -> None:
        """Count experience that came in; `learn` does so for its batch."""
        self.progress.global_step += arrivals.steps
        self.progress.episodes += len(arrivals.returns)

    def settle(self) -> None:
        """Wait for the device. Raises `NotFinite`, see `learn`."""
        for report in self._reports:
            report.check(self._names)

    def _reported(self, steps: Tensor) -> Tensors:
        """Means of the statistics of an update's steps, [n, K]; those of the update before are checked now, when the device has
        more to do."""
        if self.device != "cpu":  # on the CPU each step was checked
            self._reports.reverse()
            self._reports[0].send(steps, self.progress)
            self._reports[1].check(self._names)
        return dict(zip(self._names, steps.mean(0), strict=True))

    def _prepared(self, batch: Tensors) -> Tensors:
        """What the algorithm adds to a batch, or replaces in it."""
        full = dict(batch)
        with self.algorithm.naming("prepare", full, self.config.learning):
            self.algorithm.prepare(self.model, full, self.config.learning)
        return {name: x for name, x in full.items() if x is not batch.get(name)}

    # -- an optimizer step: backward, (reduce), clip, step ---------------------------------------------------------------

    def _reduced_step(self, part: Tensors) -> Tensors:
        """`_stepped` in two separately recorded halves, with the function of `reduce_gradients_by` between them."""
        assert self._reduce_gradients is not None
        out = self._backward(part)
        # Replayed samples have no mask: every rank has equally many.
        self._reduce_gradients(part["mask"].sum() if "mask" in part else torch.ones((), device=self.device))
        return out | self._apply({"statistics": out["statistics"]})

    def _stepped(self, part: Tensors) -> Tensors:
        """The whole step: its `statistics`, float32 [K], and what the loss adds to the batch."""
        out = self._differentiated(part)
        return out | self._applied(out)

    def _differentiated(self, part: Tensors) -> Tensors:
        """The first half: gradients; the loss's `statistics`, float32 [K - 1], and what it adds to the batch."""
        full = dict(part)
        if self._reduce_gradients is None:
            for parameter in self._parameters:
                parameter.grad = None
        else:
            self.optimizer.zero_grad(set_to_none=False)
        statistics = self.algorithm.backward(self.model, full, self.config.learning)
        try:
            self._names = (*statistics, "losses/grad_norm")
            stacked = torch.stack([x.detach().float() for x in statistics.values()])
        except Exception as error:
            raise self._fault(f"returned the statistics {shown(statistics)}", "tensors [] by name, at least one") from error
        others = {name: x for name, x in full.items() if name not in part}
        if wrong := {name: x for name, x in others.items() if not isinstance(x, Tensor)}:
            raise self._fault(f"added {shown(wrong)} to the batch", "tensors")
        return {name: x.detach() for name, x in others.items()} | {"statistics": stacked}

    def _priority(self, added: Tensors, B: int) -> Tensor:
        """The new priorities of B samples. Raises `AgentFault` where the loss of the user's own has added none."""
        priority, came = added.get("priority"), ""
        if priority is None:
            came = "no 'priority'"
        elif priority.shape != (B,):
            came = f"the 'priority' {shown(priority)}"
        elif is_own(type(self.algorithm).loss) and not bool((priority.isfinite() & (priority >= 0)).all()):
            came = "a 'priority' that is negative or not finite"  # built-in algorithms are not asked, since that waits for a GPU
        if priority is None or came:
            wanted = f"the new priorities of the {B} replayed samples, float32 [{B}], 0 or more"
            raise self._fault(f"added {came} to the batch", wanted)
        return priority

    def _check_divisible(self, added: Tensors, T: int, B: int) -> None:
        """Raise `AgentFault` where `prepare` of the user's own has added what minibatches cannot divide."""
        def fits(x: Tensor) -> bool:
            return isinstance(x, Tensor) and x.dim() > 1 and x.shape[0] in (T, T + 1) and x.shape[1] == B

        if wrong := {name: x for name, x in added.items() if name != "core" and not fits(x)}:
            wanted = f"tensors [{T}, {B}, ...], which minibatches can divide (learning.num_minibatches)"
            raise self._fault(f"added {shown(wrong)} to the batch", wanted, "prepare")

    def _fault(self, came: str, wanted: str, method: str = "loss") -> AgentFault:
        who = named(type(self.algorithm), method, "learning.algorithm", self.config.learning.algorithm)
        return AgentFault(f"{who} {came}; expected: {wanted}")

    def _applied(self, inputs: Tensors) -> Tensors:
        """The second half, clipping and the optimizer's step: the statistics followed by the gradient's norm, float32 [K]."""
        norm = clip_gradients(self._parameters, self.config.learning.max_grad_norm)
        statistics = torch.cat((inputs["statistics"], norm.float().unsqueeze(0)))
        if self.device == "cpu" and not math.isfinite(float(norm)):
            _check(statistics.unsqueeze(0), self._names, self.progress.updates, self.progress.global_step)
        self.optimizer.step()
        return {"statistics": statistics}


def _check_compiler(device: str) -> None:
    """Raise `ConfigError` where torch has none, and would fail in the first update with a traceback of its own."""
    compiler = os.environ.get("CXX", "g++")  # as torch looks for it
    if device == "cpu" and shutil.which(compiler) is None:
        raise ConfigError(
            f"learning.compile needs a C++ compiler on the CPU, and there is no {compiler} here: install one (CXX names "
            "another) or leave the setting out"
        )


class _Report:
    """The statistics of one update on their way from the device."""

    def __init__(self, device: str):
        self._arrived = Marker(device)
        self._device = device
        self._steps: Tensor | None = None
        self._when = (0, 0)

    def send(self, steps: Tensor, progress: Progress) -> None:
        """[n, K], one row for each optimizer step."""
        if self._steps is None or self._steps.shape != steps.shape:  # an update that was cut short has fewer
            self._steps = torch.zeros(steps.shape, pin_memory=self._device != "cpu")
        self._steps.copy_(steps, non_blocking=True)
        self._when = progress.updates, progress.global_step
        self._arrived.set()

    def check(self, names: tuple[str, ...]) -> None:
        """Wait for them, and raise `NotFinite` if the gradient was not finite."""
        if self._steps is not None:
            self._arrived.wait()
            _check(self._steps, names, *self._when)


def _check(steps: Tensor, names: tuple[str, ...], update: int, global_step: int) -> None:
    """The gradient's norm is the last column of [n, K]; it is not finite where the loss is not."""
    for numbers in steps[~steps[:, -1].isfinite()].tolist():
        listed = ", ".join(f"{name} {number:.4g}" for name, number in zip(names, numbers, strict=True))
        first = ", then, in a first update, at what a network or a loss of your own returns" if update == 0 else ""
        raise NotFinite(
            f"update {update}, step {global_step}: the gradient is not finite ({listed}). A smaller learning rate or "
            f"max_grad_norm often helps; look at the rewards first{first}."
        )
