"""The learner alone, with batches made by hand: counters, minibatches, lag, the order of an optimizer step, recorded work."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headrace import config as configs
from headrace.accelerator.graphs import WARM_UPS, Function, Tensors
from headrace.config import Config, ConfigError, LearningConfig
from headrace.envs.core.contract import EnvSpec
from headrace.experience.batch import Arrivals, Batch
from headrace.learning import minibatches, optimizers
from headrace.learning.algorithm import Algorithm, Mode
from headrace.learning.learner import Learner, Progress
from headrace.policies.errors import AgentFault

T, B = 4, 6


class Line(Algorithm):
    """Learns y = w x + b of `x` and `y` [T, B]; remembers what it was given."""

    def __init__(self, replay: bool = False, gae: bool = False) -> None:
        self.replay, self.gae = replay, gae
        self.seen: list[Tensor] = []
        self.updates: list[int] = []

    def make_model(self, spec: EnvSpec, config: Config) -> nn.Module:
        return nn.Linear(1, 1)

    def act(
        self, model: nn.Module, obs: Any, core: Tensor, first: Tensor, envs: Tensor, generator: Any, mode: Mode = "train"
    ) -> Any:
        raise NotImplementedError

    def prepare(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> None:
        if self.gae:
            batch["known beforehand"] = batch["reward"]

    def whole_trajectories(self, config: LearningConfig) -> bool:
        return not self.gae

    def loss(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> tuple[Tensor, dict[str, Tensor]]:
        self.seen.append(batch["number"].clone())
        error = model(batch["x"].unsqueeze(-1)).squeeze(-1) - batch["y"]
        mask = batch.get("mask", torch.ones_like(error, dtype=torch.bool))
        if self.replay:
            batch["priority"] = error.detach().abs()
        loss = (error.square() * mask).sum() / mask.sum().clamp(min=1)
        return loss, {"losses/loss": loss, "losses/masked": (~mask).float().sum()}

    def after_update(self, model: nn.Module, updates: int) -> None:
        self.updates.append(updates)


class Replayer:
    """Records like a GPU: nothing is done while recording, a replay works on the same memory every time."""

    def warm_up(self, function: Function, inputs: Tensors) -> Tensors:
        return function(inputs)

    def record(self, function: Function, inputs: Tensors) -> tuple[Callable[[], object], Tensors]:
        outputs: Tensors = {}

        def replay() -> None:
            for name, x in function(inputs).items():
                outputs[name] = outputs[name].copy_(x) if name in outputs else x.clone()

        return replay, outputs


def make_learner(algorithm: Line | None = None, recorder: Any = None, **settings: Any) -> Learner:
    base = {"learning.device": "cpu", "learning.optimizer": "rmsprop", "learning.learning_rate": 0.01}
    config = configs.override(Config(), **{**base, **settings})
    torch.manual_seed(0)
    algorithm = algorithm or Line()
    return Learner(algorithm.make_model(None, config), algorithm, config, recorder)  # type: ignore[arg-type]


def test_compiling_on_a_machine_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    make_learner()
    with pytest.raises(ConfigError, match=r"learning.compile needs .* there is no no-such-compiler here"):
        make_learner(**{"learning.compile": True})


def trajectories(seed: int = 0, version: int = 0, invalid: int = 0, ended: int = 2) -> Batch:
    g = torch.Generator().manual_seed(seed)
    valid = torch.ones(T + 1, B, dtype=torch.bool)
    valid.flatten()[:invalid] = False
    data = {"x": torch.randn(T, B, generator=g), "y": torch.randn(T, B, generator=g), "reward": torch.zeros(T, B),
            "core": torch.zeros(B, 0), "number": torch.arange(T * B).view(T, B)}  # fmt: skip
    arrivals = Arrivals(int(valid[:T].sum()), np.zeros(ended, np.float32), np.ones(ended, np.int32))
    return Batch(data, torch.full((T, B), version, dtype=torch.int32), valid, None, arrivals)


def transitions(seed: int = 0, version: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    data = {"x": torch.randn(B, generator=g), "y": torch.randn(B, generator=g), "number": torch.arange(B)}
    arrivals = Arrivals(7, np.zeros(3, np.float32), np.ones(3, np.int32))
    return Batch(data, torch.full((B,), version, dtype=torch.int32), None, np.arange(B, dtype=np.uint64), arrivals)


def test_more_minibatches_than_trajectories_are_refused() -> None:
    """Some of them would be empty. With GAE `validate` counts single rows, but an algorithm of one's own may want them whole."""
    learner = make_learner(**{"learning.num_minibatches": B + 1, "learning.returns": "gae"})
    with pytest.raises(ConfigError, match=f"whole trajectories, of which a batch has {B}: learning.num_minibatches .{B + 1}."):
        learner.learn(trajectories())


def test_statistics_of_another_name_in_the_next_optimizer_step_are_refused() -> None:
    """Each column of an update's statistics has one name: the numbers of one had been reported under that of another."""

    class Changing(Line):
        def loss(self, model: nn.Module, batch: Tensors, config: LearningConfig) -> tuple[Tensor, Tensors]:
            loss, _ = super().loss(model, batch, config)
            return loss, {f"losses/{len(self.seen)}": loss}

    make_learner(Changing()).learn(trajectories())
    with pytest.raises(AgentFault, match=r"Changing.loss \(.*\) returned the statistics losses/2 after losses/1; "):
        make_learner(Changing(), **{"learning.num_epochs": 2}).learn(trajectories())


@pytest.mark.parametrize(("extra", "came"), [(torch.zeros(()), "float32 []"), (torch.zeros(B), "float32 [6]"), (3.0, "float")])
@pytest.mark.parametrize("whole", [True, False])
def test_what_prepare_adds_can_be_divided(extra: Any, came: str, whole: bool) -> None:
    class Prepared(Line):
        def prepare(self, model: nn.Module, batch: Tensors, config: LearningConfig) -> None:
            super().prepare(model, batch, config)
            batch |= {"extra": extra, "fine": batch["reward"]}

        def whole_trajectories(self, config: LearningConfig) -> bool:
            return whole

    make_learner(Prepared()).learn(trajectories())
    words = rf"Prepared.prepare \(.*\) added {{'extra': {re.escape(came)}}} to the batch; expected: tensors \[4, 6, ...\]"
    with pytest.raises(AgentFault, match=words):
        make_learner(Prepared(), **{"learning.num_minibatches": 2}).learn(trajectories())


# -- counters ---------------------------------------------------------------------------------------------------------


def test_steps_episodes_and_updates_are_counted() -> None:
    learner = make_learner(**{"learning.num_epochs": 3})
    for seed in range(2):
        learner.learn(trajectories(seed, invalid=5))
    assert learner.progress == Progress(global_step=2 * (T * B - 5), updates=2, episodes=4)
    learner.note(Arrivals(100, np.zeros(1, np.float32), np.ones(1, np.int32)))
    assert (learner.progress.global_step, learner.progress.episodes, learner.progress.updates) == (2 * (T * B - 5) + 100, 5, 2)
    assert learner.algorithm.updates == [1, 2]  # type: ignore[attr-defined]


def test_samples_that_are_too_old_are_masked_and_counted() -> None:
    learner = make_learner(**{"learning.max_policy_lag": 2})
    learner.progress = Progress(updates=5, lost_versions=2)
    batch = trajectories(invalid=1)
    batch.version[:2] = torch.arange(2 * B).view(2, B) % 6 + 2  # versions 2 to 7; the others are version 0
    update = learner.learn(batch)
    lag = (7 - batch.version)[batch.valid[:T]]  # type: ignore[index]
    assert update.statistics["lag/max"] == lag.max() == 7
    assert update.statistics["lag/min"] == lag.min() == 0
    assert update.statistics["lag/mean"] == lag.float().mean()
    stale = int((lag > 2).sum())
    assert learner.progress.stale_steps == stale
    assert update.statistics["losses/masked"] == stale + 1


def test_the_learning_rate_falls_with_the_steps_learned_from_before() -> None:
    settings = {"learning.lr_schedule": "linear", "learning.total_steps": 4 * T * B, "learning.learning_rate": 0.4}
    learner, rates = make_learner(**settings), []
    for seed in range(5):
        learner.learn(trajectories(seed))
        rates.append(learner.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0])


def test_versions_never_name_two_different_weights() -> None:
    progress = Progress(updates=10)
    progress.continue_after(9)
    assert progress.version == 10  # nothing was lost
    progress.continue_after(14)
    assert progress.version == 15
    progress.updates += 1
    assert progress.version == 16


# -- replay -----------------------------------------------------------------------------------------------------------


def test_replay_gets_priorities_and_its_arrivals_count_before_the_update() -> None:
    settings = {"learning.lr_schedule": "linear", "learning.total_steps": 14, "learning.learning_rate": 0.4}
    learner = make_learner(Line(replay=True), **settings)
    batch = transitions(version=3)
    with torch.no_grad():
        expected = (learner.model(batch.data["x"].unsqueeze(-1)).squeeze(-1) - batch.data["y"]).abs()
    learner.progress.updates = 4
    update = learner.learn(batch)
    torch.testing.assert_close(update.priorities, expected)
    assert update.statistics["lag/mean"] == 1
    assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(0.2)
    assert learner.progress == Progress(global_step=7, updates=5, episodes=3)
    assert learner.algorithm.updates == [5]  # type: ignore[attr-defined]
    assert make_learner().learn(trajectories()).priorities is None


# -- minibatches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["trajectories", "single rows"])
def test_every_sample_is_learned_from_once_an_epoch(rows: str) -> None:
    settings = {"learning.num_epochs": 2, "learning.num_minibatches": 3, "learning.returns": "gae"}
    algorithm = Line(gae=rows == "single rows")
    learner = make_learner(algorithm, **settings)
    learner.learn(trajectories())
    parts = algorithm.seen
    assert len(parts) == 6
    shape = (1, T * B // 3) if algorithm.gae else (T, B // 3)
    assert all(part.shape == shape for part in parts)
    for epoch in (parts[:3], parts[3:]):
        assert torch.cat([part.flatten() for part in epoch]).sort().values.tolist() == list(range(T * B))
    assert not torch.equal(parts[0], parts[3])  # another order
    if not algorithm.gae:
        assert all((part.diff(dim=0) == B).all() for part in parts), "a trajectory's rows stay together"


# -- an optimizer step ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorder", [None, Replayer()], ids=["eager", "recorded"])
def test_gradients_are_reduced_between_backward_and_clipping(recorder: Any) -> None:
    """Three learners: alone, with a reduction that changes nothing, and with one that makes gradients larger."""
    settings = {"learning.num_minibatches": 2, "learning.max_grad_norm": 0.3, "learning.optimizer": "adam"}
    alone, same, large = (make_learner(recorder=recorder, **settings) for _ in range(3))
    calls: list[list[int]] = []

    def note(samples: torch.Tensor) -> None:
        assert 0 < samples <= T * B
        calls.append([parameter.grad.data_ptr() for parameter in same.model.parameters()])  # type: ignore[union-attr]

    def enlarge(samples: torch.Tensor) -> None:
        for parameter in large.model.parameters():
            parameter.grad.mul_(1000)  # type: ignore[union-attr]

    same.reduce_gradients_by(note)
    large.reduce_gradients_by(enlarge)
    for seed in range(WARM_UPS + 3):
        first, second, third = (learner.learn(trajectories(seed)).statistics for learner in (alone, same, large))
        assert first.keys() == second.keys()
        for name, number in first.items():
            torch.testing.assert_close(second[name], number, rtol=0, atol=0)
        before_clipping = first["losses/grad_norm"] if seed == 0 else None
        if before_clipping is not None:
            assert third["losses/grad_norm"] > 300 * before_clipping, "the norm is that of what was reduced"
    assert len(calls) == 2 * (WARM_UPS + 3), "once an optimizer step, replayed ones too"
    assert all(call == calls[0] for call in calls), "always in the same memory"
    for a, b in zip(alone.model.parameters(), same.model.parameters(), strict=True):
        assert torch.equal(a, b)
    for parameter in large.model.parameters():
        assert parameter.grad is not None
    norm = torch.stack([p.grad.norm() for p in large.model.parameters()]).norm()  # type: ignore[union-attr]
    assert norm.item() == pytest.approx(0.3, rel=1e-4), "clipped after it was reduced"


@pytest.mark.parametrize("reduced", [False, True])
def test_a_loss_that_is_not_finite_leaves_the_model_as_it_was(reduced: bool) -> None:
    learner = make_learner()
    if reduced:
        learner.reduce_gradients_by(lambda samples: None)
    learner.learn(trajectories())
    before = [p.clone() for p in learner.model.parameters()]
    batch = trajectories(1)
    batch.data["y"][0, 0] = torch.inf
    with pytest.raises(FloatingPointError, match=r"update 1, step 24: the gradient is not finite \(losses/loss inf"):
        learner.learn(batch)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))
    assert learner.progress.updates == 1


def test_a_batch_is_not_changed() -> None:
    learner, batch = make_learner(Line(gae=True)), trajectories()
    names = set(batch.data)
    learner.learn(batch)
    assert set(batch.data) == names


@pytest.mark.parametrize("most", [0.5, 1e6, None])
def test_gradients_are_clipped_as_pytorch_does_to_the_last_bit(most: float | None) -> None:
    def parameters() -> list[torch.nn.Parameter]:
        generator = torch.Generator().manual_seed(0)
        made = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((7, 5), (64,), ())]
        for parameter in made[:2]:  # the last one has no gradient
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        return made

    ours, theirs = parameters(), parameters()
    norm = optimizers.clip_gradients(ours, most)
    assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(theirs, most or float("inf")))
    for a, b in zip(ours[:2], theirs[:2], strict=True):
        assert torch.equal(a.grad, b.grad)
    assert ours[2].grad is None


@pytest.mark.parametrize("small", [0, 200])
def test_single_rows_are_divided_the_same_whether_a_field_is_small_or_not(small: int, monkeypatch) -> None:
    monkeypatch.setattr(minibatches, "SMALL", small)
    samples = {"reward": torch.randn(1, 10), "obs/x": torch.randn(1, 10, 6), "core": torch.zeros(10, 0)}
    samples |= {"obs/image": torch.randint(0, 256, (1, 10, 3, 5, 4), dtype=torch.uint8)}
    order = torch.randperm(10)
    parts = [order[i::3] for i in range(3)]
    for part, found in zip(parts, minibatches._divided(samples, parts), strict=True):
        expected = minibatches._columns(samples, part)
        assert found.keys() == expected.keys()
        for name, x in expected.items():
            assert torch.equal(found[name], x)
            assert found[name].is_contiguous()


class Diagnosed(Line):
    """Has its samples looked at: the errors of each minibatch, as its loss computes them."""

    def __init__(self) -> None:
        super().__init__(gae=True)
        self.errors: list[Tensor] = []
        self.diagnosed: list[Tensor] = []

    def loss(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> tuple[Tensor, dict[str, Tensor]]:
        error = (model(batch["x"].unsqueeze(-1)).squeeze(-1) - batch["y"]).detach()
        batch["sample/error"] = error
        self.errors.append(error.flatten().clone())
        return super().loss(model, batch, config)

    def diagnostics(self, samples: dict[str, Tensor], config: LearningConfig) -> dict[str, Tensor]:
        self.diagnosed.append(samples["error"].clone())
        return {"off_policy/kl": samples["error"].mean()}


@pytest.mark.parametrize("recorder", [None, Replayer()], ids=["as it is", "recorded"])
def test_diagnostics_are_of_the_first_minibatch_before_the_update(recorder: Any) -> None:
    algorithm = Diagnosed()
    learner = make_learner(algorithm, recorder, **{"learning.num_epochs": 2, "learning.num_minibatches": 2})
    for update in range(WARM_UPS + 3):
        algorithm.errors.clear()
        learner.measure()
        statistics = learner.learn(trajectories(seed=update)).statistics
        if recorder is None or update < WARM_UPS:
            assert torch.equal(algorithm.diagnosed[-1], algorithm.errors[0])
            assert not torch.equal(algorithm.errors[0], algorithm.errors[2])
        assert float(statistics["off_policy/kl"]) == float(algorithm.diagnosed[-1].mean())
    assert len(algorithm.diagnosed) == WARM_UPS + 3
    assert len({float(x.sum()) for x in algorithm.diagnosed}) == WARM_UPS + 3
    assert "off_policy/kl" not in learner.learn(trajectories()).statistics  # nobody has asked again
