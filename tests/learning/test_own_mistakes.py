"""Mistakes in a network, a core or an algorithm of one's own: the message says whose it is, what was expected, what came."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headrace.config import ConfigError, override
from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, EnvSpec
from headrace.learning import Algorithm, register_algorithm
from headrace.learning import algorithm as algorithms
from headrace.learning.algorithm import make_agent
from headrace.learning.learner import NotFinite
from headrace.learning.policy_gradient import PolicyGradient
from headrace.make_config import make_config
from headrace.policies import register_network
from headrace.policies.errors import AgentFault
from headrace.policies.registry import NETWORKS
from headrace.sampling.trial import try_agent
from headrace.train import train


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    known, networks = dict(algorithms._declarations), dict(NETWORKS)
    yield
    for registry, before in ((algorithms._declarations, known), (NETWORKS, networks)):
        registry.clear()  # type: ignore[attr-defined]
        registry.update(before)  # type: ignore[attr-defined]


def run(folder: Path, algorithm: str = "appo", env: str = "gym/CartPole-v1", **settings: Any) -> None:
    given = {"sampling.placement": "serial", "learning.total_steps": 600, "learning.device": "cpu", "run.video": False,
             "run.dashboard": False, "run.folder": str(folder / "run"), "sampling.num_workers": 1} | settings  # fmt: skip
    train(make_config(env, algorithm, **given))


def refused(folder: Path, algorithm: str = "appo", **settings: Any) -> str:
    with pytest.raises(AgentFault) as error:
        run(folder, algorithm, **settings)
    message = str(error.value)
    assert "\n" not in message
    return message


def mine(name: str, base: type, defaults: dict[str, Any] | None = None, **methods: Any) -> None:
    """Register the algorithm `name`, of a class Mine with these methods."""
    own = type("Mine", (base,), methods)
    register_algorithm(name, defaults=defaults)(lambda config: own())


# -- a network --------------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    out_features = 16

    def __init__(self, change: Callable[[torch.Tensor], Any]):
        super().__init__()
        self.layer, self.change = nn.Linear(4, 16), change

    def forward(self, obs: dict[str, torch.Tensor]) -> Any:
        return self.change(self.layer(obs["obs"]))


class Flat(nn.Sequential):
    out_features = 16

    def __init__(self, observation: dict[str, ArraySpec]):
        super().__init__(nn.Linear(observation["obs"].shape[0], 16), nn.Tanh())

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        return super().forward(obs["obs"])


@pytest.mark.parametrize(
    ("change", "came"),
    [
        (lambda x: x[:, :8], "float32 [2, 8]"),
        (lambda x: x.mean(0), "float32 [16]"),
        (lambda x: (x, None), "(float32 [2, 16], None)"),
        (lambda x: None, "None"),
        (lambda x: x.numpy(), "ndarray"),
        (lambda x: x.to("meta"), "float32 [2, 16] on meta"),
    ],
)
@pytest.mark.parametrize("separate", [False, True])
def test_a_network_returns_something_else(tmp_path: Path, change: Any, came: str, separate: bool) -> None:
    register_network("net")(lambda observation, config: Encoder(change))
    message = refused(tmp_path, **{"policy.encoder": "net", "policy.separate_critic": separate})
    words = f"returned {came} for 2 observations; expected float32 [2, 16]: [N, out_features]"
    assert message == f"Encoder.forward (policy.encoder net) {words}"
    assert not (tmp_path / "run").exists()


def test_errors_in_a_network_have_its_lines(tmp_path: Path) -> None:
    def change(x: torch.Tensor) -> Any:
        return x @ torch.zeros(7, 16)

    register_network("net")(lambda observation, config: Encoder(change))
    with pytest.raises(AgentFault) as error:
        run(tmp_path, **{"policy.encoder": "net"})
    words = "failed when it was called with ({'obs': float32 [2, 4]}): RuntimeError: mat1 and mat2"
    assert str(error.value).startswith(f"Encoder.forward (policy.encoder net) {words}")
    assert isinstance(error.value.__cause__, RuntimeError)
    frames = error.value.frames
    assert frames.count("File ") == 2
    assert "x @ torch.zeros(7, 16)" in frames


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.reshape(2, 16), "failed when it was called with ({'obs': float32 [1, 4]}): RuntimeError: "),
        (lambda x: x.squeeze(), "returned float32 [16] for 1 observation; expected float32 [1, 16]: "),
        (lambda x: x / (len(x) - 1), "returned NaN or infinite numbers in float32 [1, 16], for every observation"),
        (lambda x: x.reshape(2, -1), "returned float32 [2, 8] for 1 observation; expected float32 [1, 16]: "),
    ],
)
def test_a_network_for_some_sizes_of_batches(tmp_path: Path, change: Any, words: str) -> None:
    register_network("net")(lambda observation, config: Encoder(change))
    assert refused(tmp_path, **{"policy.encoder": "net"}).startswith(f"Encoder.forward (policy.encoder net) {words}")
    assert not (tmp_path / "run").exists()


def test_a_function_makes_no_network(tmp_path: Path) -> None:
    @register_network("few")
    def few(observation: Any) -> Any: ...

    @register_network("nothing")
    def nothing(observation: Any, config: Any) -> Any: ...

    words = "few (policy.encoder few) failed when it was called with (observation, config): TypeError: "
    assert refused(tmp_path, **{"policy.encoder": "few"}).startswith(words)
    message = refused(tmp_path, **{"policy.encoder": "nothing"})
    assert message == "nothing (policy.encoder nothing) returned None; expected a torch.nn.Module with the attribute out_features"


def test_a_layer_without_its_size_is_refused(tmp_path: Path) -> None:
    register_network("lazy")(lambda observation, config: nn.LazyLinear(16))
    assert "returned LazyLinear, whose 'weight' has no size yet" in refused(tmp_path, **{"policy.encoder": "lazy"})


def test_a_network_of_another_dtype_is_not_refused(tmp_path: Path) -> None:
    """The trunk converts it."""
    register_network("double")(lambda observation, config: Encoder(lambda x: x.double()))
    run(tmp_path, **{"policy.encoder": "double"})


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("number", [torch.nan, -torch.inf])
def test_a_network_with_numbers_that_are_not_finite(tmp_path: Path, number: float, separate: bool) -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x[:, :-1], torch.full_like(x[:, -1:], number)), -1)

    register_network("net")(lambda observation, config: Encoder(change))
    message = refused(tmp_path, **{"policy.encoder": "net", "policy.separate_critic": separate})
    words = "returned NaN or infinite numbers in float32 [2, 16], for every observation that was tried"
    assert message == f"Encoder.forward (policy.encoder net) {words}"
    assert not (tmp_path / "run").exists()


def test_a_network_that_is_not_finite_for_zeros_only_trains(tmp_path: Path) -> None:
    class Direction(Encoder):
        def forward(self, obs: dict[str, torch.Tensor]) -> Any:
            return self.layer(obs["obs"] / obs["obs"].norm(dim=-1, keepdim=True))

    register_network("net")(lambda observation, config: Direction(lambda x: x))
    run(tmp_path, **{"policy.encoder": "net"})


def test_a_network_for_masked_actions_trains(tmp_path: Path) -> None:
    register_network("any")(lambda observation, config: Flat(observation))
    for algorithm in ("appo", "apex-dqn"):
        settings = {"policy.encoder": "any", "envs.info_action_mask": True, "learning.total_steps": 300, "run.goal": None}
        run(tmp_path / algorithm, algorithm, env="gym/Taxi-v4", **settings)


def test_a_network_that_needs_the_runs_device_is_left_to_the_run() -> None:
    def needs_a_gpu(x: torch.Tensor) -> Any:
        raise RuntimeError("this kernel needs a GPU")

    spec = EnvSpec({"obs": ArraySpec((4,), np.dtype(np.float32))}, ActionSpec((Categorical(2),)))
    config = make_config("gym/CartPole-v1", "appo", **{"learning.device": "cuda", "policy.encoder": "net"})
    register_network("net")(lambda observation, config: Encoder(needs_a_gpu))
    try_agent(*make_agent(config, spec), config, spec)
    with pytest.raises(AgentFault, match="this kernel needs a GPU"):
        try_agent(*make_agent(config, spec), override(config, **{"learning.device": "cpu"}), spec)
    register_network("net")(lambda observation, config: Encoder(lambda x: x[:1]))
    with pytest.raises(AgentFault, match=r"returned \w+ \[1, 16\]"):
        try_agent(*make_agent(config, spec), config, spec)


# -- an algorithm -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda config: None, "returned None; expected an object of a class derived from"),
        (lambda config: PolicyGradient, "returned the class PolicyGradient; expected an object of a class derived from"),
        (lambda: None, "failed when it was called with (config): TypeError: "),
        (lambda config: Algorithm(), "failed when it was called with (config): TypeError: Can't instantiate abstract class"),  # type: ignore[abstract]
    ],
)
def test_a_function_makes_no_algorithm(tmp_path: Path, make: Any, words: str) -> None:
    make.__name__ = "make"
    register_algorithm("own")(make)
    assert refused(tmp_path, "own").startswith(f"make (learning.algorithm own) {words}")


@pytest.mark.parametrize("model", [None, nn.Linear(4, 2)])
def test_an_algorithm_makes_no_model(tmp_path: Path, model: Any) -> None:
    mine("own", PolicyGradient, make_model=lambda self, spec, config: model)
    message = refused(tmp_path, "own")
    assert message.startswith(f"Mine.make_model (learning.algorithm own) returned {'Linear' if model else 'None'}; expected ")
    assert "core_width" in message


@pytest.mark.parametrize(
    ("change", "came"),
    [
        (lambda f, c: ({"action": f["action"][:, 0]}, c), "({'action': int32 [2]}, float32 [2, 0])"),
        (lambda f, c: ({"action": f["action"] + 0.5}, c), "({'action': float32 [2, 1]}, float32 [2, 0])"),
        (lambda f, c: ({"actions": f["action"]}, c), "({'actions': int32 [2, 1]}, float32 [2, 0])"),
        (lambda f, c: ({}, c), "({}, float32 [2, 0])"),
        (lambda f, c: ({"action": f["action"]}, None), "({'action': int32 [2, 1]}, None)"),
        (lambda f, c: {"action": f["action"]}, "{'action': int32 [2, 1]}"),
        (lambda f, c: None, "None"),
    ],
)
def test_act_returns_something_else(tmp_path: Path, change: Any, came: str) -> None:
    mine("own", PolicyGradient, act=lambda self, *given, **more: change(*PolicyGradient.act(self, *given, **more)))
    words = f"Mine.act (learning.algorithm own) returned {came} for 2 observations; expected ({{'action': int32 [2, 1]}}, float32"
    assert refused(tmp_path, "own").startswith(words)


@pytest.mark.parametrize("name", ["action", "log_prob", "value"])
def test_act_returns_numbers_that_are_not_finite(tmp_path: Path, name: str) -> None:
    def act(self: Any, *given: Any, **more: Any) -> Any:
        fields, core = PolicyGradient.act(self, *given, **more)
        return fields | {name: torch.full_like(fields[name], torch.nan)}, core

    mine("own", PolicyGradient, act=act)
    shape = "[2, 1]" if name == "action" else "[2]"
    message = refused(tmp_path, "own", env="gym/Pendulum-v1")
    assert message.startswith(f"Mine.act (learning.algorithm own) returned NaN or infinite numbers in {name}, float32 {shape}")


def test_act_takes_too_few_arguments(tmp_path: Path) -> None:
    mine("own", PolicyGradient, act=lambda self, model, obs: None)
    message = refused(tmp_path, "own")
    words = "(model, {'obs': float32 [2, 4]}, float32 [2, 0], bool [2], int64 [2], generator)"
    assert message.startswith(f"Mine.act (learning.algorithm own) failed when it was called with {words}: TypeError: ")


def test_wrong_extra_fields_are_not_the_fault_of_act(tmp_path: Path) -> None:
    mine("mine", PolicyGradient, extra_fields=lambda self, spec: {"foo": (1,)})
    message = refused(tmp_path, "mine")
    assert message.startswith("Mine.extra_fields (learning.algorithm mine) failed when it was called with (spec)")


@pytest.mark.parametrize(
    ("change", "came"),
    [
        (lambda loss, s: (float(loss), s), "(float, {"),
        (lambda loss, s: (loss * torch.ones(4), s), "(float32 [4], {"),
        (lambda loss, s: (loss.detach(), {}), "(float32 [], {}), a loss without a gradient"),
        (lambda loss, s: {"total": loss}, "{'total': float32 []}"),
        (lambda loss, s: loss, "float32 []"),
        (lambda loss, s: None, "None"),
        (lambda loss, s: (loss, {"x": 0.5}), "the statistics {'x': float}"),
        (lambda loss, s: (loss, {"x": loss, "y": torch.zeros(3)}), "the statistics {'x': float32 [], 'y': float32 [3]}"),
        (lambda loss, s: (loss, None), "the statistics None"),
    ],
)
def test_a_loss_is_something_else(tmp_path: Path, change: Any, came: str) -> None:
    mine("own", PolicyGradient, loss=lambda self, *given: change(*PolicyGradient.loss(self, *given)))
    message = refused(tmp_path, "own")
    assert message.startswith(f"Mine.loss (learning.algorithm own) returned {came}")
    assert "; expected" in message


@pytest.mark.parametrize("method", ["loss", "prepare"])
def test_errors_in_an_algorithm_have_its_lines(tmp_path: Path, method: str) -> None:
    def broken(self: Any, model: nn.Module, batch: dict[str, torch.Tensor], config: Any) -> Any:
        return batch["reward"] @ torch.zeros(7, 16)

    mine("own", PolicyGradient, **{method: broken})
    with pytest.raises(AgentFault) as error:
        run(tmp_path, "own")
    words = str(error.value)
    assert words.startswith(f"Mine.{method} (learning.algorithm own) failed when it was called with (model, {{")
    assert "'reward': float32 [32, " in words
    assert "config): RuntimeError: mat1 and mat2" in words
    assert error.value.frames.count("File ") == 1
    assert 'batch["reward"] @ torch.zeros(7, 16)' in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(("method", "given"), [("after_update", "1"), ("schedule", r"\d+")])
def test_errors_after_an_update_are_named(tmp_path: Path, method: str, given: str) -> None:
    def broken(self: Any, model: nn.Module, count: int) -> None:
        model.nothing.fill_(count)  # type: ignore[operator, union-attr]

    mine("own", PolicyGradient, **{method: broken})
    words = rf"Mine\.{method} \(learning\.algorithm own\) failed when it was called with \(model, {given}\): AttributeError: "
    with pytest.raises(AgentFault, match=words) as error:
        run(tmp_path, "own")
    assert error.value.frames.count("File ") == 2  # `broken`, and what it called


@pytest.mark.parametrize(("method", "given"), [("statistics", "(model, {"), ("diagnostics", "({")])
def test_mistakes_in_statistics_of_an_update_are_named(tmp_path: Path, method: str, given: str) -> None:
    mine("failing", PolicyGradient, **{method: lambda self, *given: {}["x"]})
    words = f"Mine.{method} (learning.algorithm failing) failed when it was called with {given}"
    assert refused(tmp_path / "failing", "failing").startswith(words)
    for name, found, came in (("none", None, "None"), ("number", {"losses/x": 0.5}, "{'losses/x': float}")):
        mine(name, PolicyGradient, **{method: lambda self, *given, found=found: found})
        words = f"Mine.{method} (learning.algorithm {name}) returned {came}; expected: tensors [] by name"
        assert refused(tmp_path / name, name) == words


def test_errors_of_a_check_are_named(tmp_path: Path) -> None:
    def own_check(limit: float, config: Any) -> None:
        if config.learning.gama > limit:
            raise ConfigError("learning.gamma is too large")

    for check, name in ((lambda config: own_check(1, config), "<lambda>"), (partial(own_check, 1), "partial")):
        register_algorithm("own", check=check)(lambda config: PolicyGradient())
        words = f"{name} (the check of learning.algorithm own) failed when it was called with (config): AttributeError: "
        assert refused(tmp_path, "own").startswith(words)
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    def not_finite(self: Any, *given: Any) -> Any:
        loss, statistics = PolicyGradient.loss(self, *given)
        return loss * torch.nan, statistics

    mine("own", PolicyGradient, loss=not_finite)
    with pytest.raises(NotFinite, match="a network or a loss of your own"):
        run(tmp_path, "own")


def test_an_error_of_the_backward_pass_stays_what_it_is(tmp_path: Path) -> None:
    def broken(self: Any, *given: Any) -> Any:
        loss, statistics = PolicyGradient.loss(self, *given)
        loss.register_hook(lambda gradient: 1 / 0)
        return loss, statistics

    mine("own", PolicyGradient, loss=broken)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, "own")


# -- a core -----------------------------------------------------------------------------------------------------------


class Core(nn.Module):
    def __init__(self, in_features: int, change: Callable[..., Any]):
        super().__init__()
        self.width, self.change, self.input = 8, change, nn.Linear(in_features, 8)

    def forward(self, x: torch.Tensor, state: torch.Tensor, first: torch.Tensor) -> Any:
        outputs = self.input(x)
        return self.change(outputs, state + outputs.sum(0))


def with_core(change: Callable[..., Any], width: int = 8) -> None:
    def make_model(self: Any, spec: Any, config: Any) -> Any:
        policy = PolicyGradient.make_model(self, spec, config)
        policy.trunk.core = Core(policy.trunk.core.weight_ih.shape[1], change)  # type: ignore[union-attr, assignment]
        policy.trunk.core.width = width  # type: ignore[union-attr]
        return policy

    mine("own", PolicyGradient, {"policy.core": "gru", "policy.core_size": 8}, make_model=make_model)


@pytest.mark.parametrize(
    ("change", "came"),
    [
        (lambda outputs, state: (outputs, state[:, :5]), "(float32 [1, 2, 8], float32 [2, 5])"),
        (lambda outputs, state: (outputs, state[None]), "(float32 [1, 2, 8], float32 [1, 2, 8])"),
        (lambda outputs, state: (outputs[0], state), "(float32 [2, 8], float32 [2, 8])"),
        (lambda outputs, state: outputs, "float32 [1, 2, 8]"),
    ],
)
def test_a_core_returns_something_else(tmp_path: Path, change: Any, came: str) -> None:
    with_core(change)
    words = f"Core.forward (the core of learning.algorithm own) returned {came} for 2 observations; expected (float32 [1, 2, 8], "
    assert refused(tmp_path, "own").startswith(f"{words}float32 [2, 8])")


def test_a_core_that_is_not_finite(tmp_path: Path) -> None:
    with_core(lambda outputs, state: (outputs, state / 0))
    words = "returned NaN or infinite numbers in float32 [2, 8], for every observation that was tried"
    assert refused(tmp_path, "own") == f"Core.forward (the core of learning.algorithm own) {words}"


def test_a_core_with_another_width(tmp_path: Path) -> None:
    with_core(lambda outputs, state: (outputs, state), width=3)
    words = "failed when it was called with (float32 [1, 2, 64], float32 [2, 3], bool [1, 2]): RuntimeError: The size of tensor"
    assert refused(tmp_path, "own").startswith(f"Core.forward (the core of learning.algorithm own) {words}")


def test_a_right_core_trains(tmp_path: Path) -> None:
    with_core(lambda outputs, state: (outputs, state))
    run(tmp_path, "own")


# -- other places -----------------------------------------------------------------------------------------------------

FILE = """
from headrace.learning import register_algorithm
from headrace.policies import register_network

@register_network("net")
def net(observation, config):
    import torch

    class Encoder(torch.nn.Module):
        out_features = 16

        def forward(self, obs):
            return obs["observation"]

    return Encoder()

@register_algorithm("own")
def own(config):
    from headrace.learning.policy_gradient import PolicyGradient

    class Mine(PolicyGradient):
        def loss(self, model, batch, config):
            return super().loss(model, batch, config)[0].item(), {}

    return Mine()

@register_algorithm("broken")
def broken(config):
    from headrace.learning.policy_gradient import PolicyGradient

    class Mine(PolicyGradient):
        def loss(self, model, batch, config):
            return batch["rewards"].sum(), {}

    return Mine()
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("flags", "words", "line"),
    [
        (["--policy.encoder", "net"], "headrace: Encoder.forward (policy.encoder net) failed", 'return obs["observation"]'),
        (["--learning.algorithm", "own"], "Mine.loss (learning.algorithm own) returned (float, {}); expected", ""),
        (["--learning.algorithm", "broken"], "Mine.loss (learning.algorithm broken) failed", 'return batch["rewards"].sum(), {}'),
    ],
)
def test_on_the_command_line_with_processes(tmp_path: Path, flags: list[str], words: str, line: str) -> None:
    (tmp_path / "own.py").write_text(FILE)
    command = [
        sys.executable, "-m", "headrace.cli", "train", "--import", "own.py", "--env", "gym/CartPole-v1", "--run.folder", "run",
        "--sampling.placement", "served", "--sampling.num_workers", "1", "--run.dashboard", "false", "--run.video", "false",
        "--learning.device", "cpu", *flags,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert line in done.stderr
    assert "src/headrace/" not in done.stderr


def test_a_name_that_is_taken() -> None:
    with pytest.raises(ConfigError, match="'ppo' is a built-in algorithm; choose another name"):
        register_algorithm("ppo")
    register_network("net")(lambda observation, config: Encoder(lambda x: x))
    with pytest.raises(ConfigError, match=r"there is a network 'net' already: .*; choose another name"):
        register_network("net")(test_a_name_that_is_taken)  # type: ignore[arg-type]
