"""What algorithms declare decides: defaults, experience, fields of the store, and what is refused, for ours and for users'."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch

from headrace import config as configs
from headrace import envs
from headrace.config import Config, ConfigError
from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, Continuous, EnvSpec
from headrace.evaluation.policy import load_policy
from headrace.learning import algorithm as algorithms
from headrace.learning.algorithm import algorithm_names, declaration, make_algorithm, register_algorithm
from headrace.learning.policy_gradient import PolicyGradient
from headrace.make_config import check_config, make_config
from headrace.policies.distributions import LOG_STD_RANGE
from headrace.policies.errors import AgentFault
from headrace.runs.metrics import read_jsonl
from headrace.train import train

BUILTIN = ("appo", "ppo", "impala", "a2c", "apex-dqn", "apex-dpg", "r2d2", "pqn")
VECTOR = ArraySpec((5,), np.dtype(np.float32))
DISCRETE = EnvSpec({"obs": VECTOR}, ActionSpec((Categorical(3),)), name="test")
CONTINUOUS = EnvSpec({"obs": VECTOR}, ActionSpec((Continuous((-2.0, 0.0), (2.0, 1.0)),)), name="test")


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    algorithm_names()
    before = dict(algorithms._declarations)
    yield
    algorithms._declarations.clear()
    algorithms._declarations.update(before)


# -- declared settings ------------------------------------------------------------------------------------------------


def test_settings_are_merged_from_the_environment_to_the_flags() -> None:
    """CartPole's own defaults have 4 epochs, tanh and a rollout of 32; Ape-X DQN has others, flags go before both."""
    config = make_config("gym/CartPole-v1", "apex-dqn", **{"learning.batch_size": 77})
    assert config.learning.num_epochs == 1
    assert config.policy.activation == "relu"  # the preset's
    assert config.sampling.num_workers == 1  # the environment's, which neither has
    assert config.learning.batch_size == 77
    assert config.learning.experience == "replay"
    paper = make_config("gym/CartPole-v1", "apex-dqn", **{"learning.preset": "paper"})
    assert (paper.learning.batch_size, paper.policy.activation, paper.sampling.rollout) == (512, "tanh", 50)
    assert make_config("atari/breakout", "apex-dqn").policy.encoder == "shallow-conv"
    assert make_config("gym/CartPole-v1").learning.experience == "trajectories"


@pytest.mark.parametrize("name", BUILTIN)
def test_an_algorithm_with_the_other_experience_is_refused_with_the_reason(name: str) -> None:
    config = make_config("gym/CartPole-v1", name)
    check_config(config)
    other = {"replay": "trajectories", "trajectories": "replay"}[config.learning.experience]
    words = f"{name} learns from {config.learning.experience}; it cannot work with learning.experience {other}"
    with pytest.raises(ConfigError, match=words):
        check_config(configs.override(config, **{"learning.experience": other}))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("impala", {"learning.vtrace_rho": 0.5}, "vtrace_rho"),
        ("ppo", {"policy.initial_std": 1.001 * math.exp(LOG_STD_RANGE[1])}, "initial_std is 7.396.*; .* between 0.0068 and 7.38"),
        ("ppo", {"policy.initial_std": 0.999 * math.exp(LOG_STD_RANGE[0])}, "initial_std is 0.0067"),
        ("apex-dqn", {"q.atoms": 51, "q.support": (1.0, -1.0)}, "first atom must be below the last"),
        ("apex-dqn", {"q.atoms": 51, "policy.core": "gru"}, "q.atoms must be 1 with a recurrent core"),
        ("apex-dpg", {"policy.core": "gru"}, "no recurrent core"),
    ],
)
def test_settings_that_an_algorithm_cannot_work_with_are_refused(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_config(make_config("gym/CartPole-v1", name, **settings))


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'impela' is unknown; there are: appo, ppo, impala"):
        make_config("gym/CartPole-v1", "impela")
    assert tuple(algorithm_names())[: len(BUILTIN)] == BUILTIN


def test_configuring_and_checking_need_no_torch() -> None:
    code = (
        "import sys\nfrom headrace.make_config import check_config, make_config\n"
        f"for name in {BUILTIN}: check_config(make_config('gym/CartPole-v1', name))\nprint('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# -- users' algorithms ------------------------------------------------------------------------------------------------


class Noting(PolicyGradient):
    """APPO that writes a field of its own when it acts, and looks at it when it learns."""

    def extra_fields(self, spec: EnvSpec) -> dict[str, ArraySpec]:
        return {"doubled": ArraySpec((), np.dtype(np.float32))}

    def act(self, *arguments: Any, **more: Any) -> Any:
        fields, core = super().act(*arguments, **more)
        return fields | {"doubled": 2 * fields["value"]}, core

    def loss(self, model: Any, batch: dict[str, torch.Tensor], config: Any) -> Any:
        torch.testing.assert_close(batch["doubled"], 2 * batch["value"])
        loss, statistics = super().loss(model, batch, config)
        return loss, statistics | {"losses/doubled": batch["doubled"].mean()}


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (lambda observations: {}, r"failed when it was called with \(observations, env_defaults, preset\): TypeError: .* 1 pos"),
        (lambda *given: 1 / 0, r"failed when it was called with \(observations, env_defaults, preset\): ZeroDivisionError"),
        (lambda *given: None, "returned None; expected a dictionary of dotted settings"),
    ],
)
def test_a_function_of_defaults_that_makes_none_is_named(own: Any, words: str) -> None:
    register_algorithm("mistaken", defaults=own)(lambda config: PolicyGradient())
    try:
        with pytest.raises(AgentFault, match=rf"<lambda> \(the defaults of learning.algorithm mistaken\) {words}"):
            make_config("gym/CartPole-v1", "mistaken")
    finally:
        del algorithms._declarations["mistaken"]


def test_a_users_algorithm_has_every_right_that_ours_have(tmp_path: Path) -> None:
    def refuse(config: Config) -> None:
        if config.learning.gamma > 0.95:
            raise ConfigError("noting needs a smaller gamma")

    @register_algorithm("noting", defaults={"learning.gamma": 0.9, "policy.mlp": [7]}, check=refuse)
    def make(config: Config) -> Noting:
        return Noting()

    settings = {"sampling.placement": "serial", "learning.total_steps": 600, "learning.device": "cpu", "run.video": False,
                "run.dashboard": False, "run.folder": str(tmp_path), "run.log_interval": 0.0}  # fmt: skip
    config = make_config("gym/CartPole-v1", "noting", **settings)
    assert (config.learning.gamma, config.policy.mlp, config.learning.experience) == (0.9, (7,), "trajectories")
    with pytest.raises(ConfigError, match="noting needs a smaller gamma"):
        train(configs.override(config, **{"learning.gamma": 0.99}))
    assert not any(tmp_path.iterdir())
    train(config)
    assert any("losses/doubled" in row for row in read_jsonl(tmp_path / "metrics.jsonl"))


def documented(name: str, folder: Path) -> Path:
    """A file with the algorithm of this name in docs/extending.md."""
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (code,) = [block for block in blocks if f'@register_algorithm("{name}"' in block]
    file = folder / f"{name}.py"
    file.write_text(code)
    return file


def test_the_algorithm_in_the_documentation_trains(tmp_path: Path) -> None:
    file = documented("decayed", tmp_path)
    settings = {"sampling.placement": "serial", "learning.total_steps": 600, "learning.device": "cpu", "run.video": False,
                "run.dashboard": False, "run.folder": str(tmp_path / "run"), "run.log_interval": 0.0}  # fmt: skip
    config = make_config("gym/CartPole-v1", "decayed", imports=[str(file)], **settings)
    assert config.learning.ppo_clip == 0.2
    with pytest.raises(ConfigError, match="made for learning"):
        check_config(configs.override(config, **{"learning.optimizer": "rmsprop"}))
    train(config)
    assert any(row.get("losses/penalty", 0) > 0 for row in read_jsonl(tmp_path / "run" / "metrics.jsonl"))


@pytest.mark.parametrize("name", ["averaging", "deep-head"])
def test_the_core_and_the_head_in_the_documentation_train(name: str, tmp_path: Path) -> None:
    settings = {"sampling.placement": "serial", "learning.total_steps": 600, "learning.device": "cpu", "run.video": False,
                "run.dashboard": False, "run.folder": str(tmp_path / "run")}  # fmt: skip
    config = make_config("gym/CartPole-v1", name, imports=[str(documented(name, tmp_path))], **settings)
    result = train(config)
    assert result.reason == "total_steps"
    weights = load_policy(result.folder).model.state_dict()
    assert weights[{"averaging": "trunk.core.rate", "deep-head": "action_head.0.bias"}[name]].any()  # zeros before learning


def test_a_users_algorithm_on_replay() -> None:
    def by_preset(observations: str, env_defaults: Any, preset: str) -> dict[str, Any]:
        return {"learning.batch_size": {"small": 3, "paper": 5}[preset], "policy.hidden": len(env_defaults),
                "policy.encoder": observations}  # fmt: skip

    register_algorithm("mine", experience="replay", defaults=by_preset)(lambda config: Noting())
    config = make_config("gym/CartPole-v1", "mine", **{"learning.preset": "paper"})
    assert (config.learning.experience, config.uses_replay, config.learning.batch_size) == ("replay", True, 5)
    assert config.policy.encoder == "vectors"
    assert config.policy.hidden > 3
    assert isinstance(make_algorithm(config), Noting)
    assert declaration("mine").experience == "replay"


def test_names_of_built_in_algorithms_are_taken() -> None:
    with pytest.raises(ValueError, match="'ppo' is a built-in algorithm"):
        register_algorithm("ppo")


# -- acting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "spec", "draws"),
    [
        ("appo", DISCRETE, {"train": True, "evaluate": True}),
        ("appo", CONTINUOUS, {"train": True, "evaluate": True}),
        ("apex-dqn", DISCRETE, {"train": True, "evaluate": False}),  # an epsilon of 0.00164
        ("apex-dpg", CONTINUOUS, {"train": True, "evaluate": False}),
    ],
)
def test_modes_of_acting(name: str, spec: EnvSpec, draws: dict[str, bool]) -> None:
    """What two generators choose differs where actions are drawn at random, and nowhere else."""
    config = make_config("gym/CartPole-v1", name, **{"policy.mlp": [16], "policy.hidden": 16, "learning.device": "cpu"})
    algorithm = make_algorithm(config)
    torch.manual_seed(0)
    model, n = algorithm.make_model(spec, config), 200
    obs, core, envs = {"obs": torch.randn(n, 5)}, torch.zeros(n, 0), torch.arange(n) % config.num_envs
    first = torch.zeros(n, dtype=torch.bool)

    def actions(mode: Any, seed: int) -> torch.Tensor:
        with torch.no_grad():
            return algorithm.act(model, obs, core, first, envs, torch.Generator().manual_seed(seed), mode)[0]["action"]

    for mode in ("train", "evaluate", "deterministic"):
        differ = (actions(mode, 1) != actions(mode, 2)).any(-1).float().mean().item()
        assert (differ > 0.05) == draws.get(mode, False), mode
        assert differ > 0 or torch.equal(actions(mode, 1), actions("deterministic", 3)) or mode == "train"


def test_a_trained_q_network_is_random_in_a_small_share_of_its_actions() -> None:
    config = make_config("gym/CartPole-v1", "apex-dqn", **{"learning.device": "cpu"})
    algorithm, n = make_algorithm(config), 400_000
    model = algorithm.make_model(DISCRETE, config)
    arguments = (model, {"obs": torch.zeros(n, 5)}, torch.zeros(n, 0), torch.zeros(n, dtype=torch.bool), torch.zeros(n).long())
    modes = ("deterministic", "evaluate")
    with torch.no_grad():
        best, drawn = (algorithm.act(*arguments, torch.Generator().manual_seed(0), mode)[0]["action"] for mode in modes)
    assert (best != drawn).float().mean().item() == pytest.approx(0.00164 * 2 / 3, rel=0.15)


def test_episodes_are_reported_of_those_who_explore_least() -> None:
    config = make_config("gym/CartPole-v1", "apex-dqn")
    assert [*make_algorithm(config).reported_envs(16)] == [12, 13, 14, 15]
    assert [*make_algorithm(config).reported_envs(1)] == [0]
    assert [*make_algorithm(make_config("gym/CartPole-v1", "apex-dpg")).reported_envs(3)] == [0, 1, 2]


def test_apex_dpg_acts_and_learns_where_a_number_can_have_one_value_only() -> None:
    spec = EnvSpec({"obs": ArraySpec((3,), np.dtype(np.float32))}, ActionSpec((Continuous((-1.0, 2.0), (1.0, 2.0)),)))
    config = make_config("gym/Pendulum-v1", "apex-dpg", **{"learning.device": "cpu"})
    algorithm = make_algorithm(config)
    model = algorithm.make_model(spec, config)
    first, envs = torch.ones(5, dtype=torch.bool), torch.arange(5)
    fields, _ = algorithm.act(model, {"obs": torch.randn(5, 3)}, torch.zeros(5, 0), first, envs, torch.Generator().manual_seed(0))
    assert (fields["action"][:, 1] == 2).all()
    assert fields["q"].isfinite().all()
    assert fields["value"].isfinite().all()


class TwoIntegers(gymnasium.Env[Any, Any]):
    """The reward is minus the distance of two integers from 4 and 1; `seen` has all actions."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(0, 5, (2,), np.int64)
    seen: ClassVar[list[Any]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.seen.append(action)
        self.steps += 1
        reward = -float(np.abs(action - [4, 1]).sum())
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), reward, False, self.steps == 10, {}


def test_apex_dpg_acts_and_learns_where_actions_are_integers(tmp_path: Path) -> None:
    """The environment gets its actor's numbers rounded."""
    envs.register("own/integers")(TwoIntegers)
    small = {
        "sampling.placement": "serial", "learning.device": "cpu", "learning.num_threads": 1, "learning.total_steps": 4_000,
        "learning.gamma": 0.0, "replay.minimum": 500, "q.actor_layers": (32,), "q.critic_layers": (32, 32),
        "run.video": False, "run.dashboard": False, "run.folder": str(tmp_path / "run"),
    }  # fmt: skip
    result = train(make_config("own/integers", "apex-dpg", **small))
    assert all(action.dtype == np.int64 and TwoIntegers.action_space.contains(action) for action in TwoIntegers.seen)
    assert {*np.ravel(TwoIntegers.seen)} == {0, 1, 2, 3, 4, 5}
    assert result.mean_return > -25  # of random actions it is -37


OTHERS: dict[str, Any] = {
    "learning.ppo_clip": 0.3, "learning.value_clip": 0.2, "learning.value_coef": 0.9, "learning.entropy_coef": 0.2,
    "learning.normalize_advantages": False, "learning.vtrace_rho": 3.0, "learning.vtrace_c": 2.0, "learning.gae_lambda": 0.3,
    "learning.max_policy_lag": 1, "learning.reduction": "sum", "learning.precision": "bf16",
    "q.epsilon": 0.9, "q.epsilon_alpha": 3.0, "q.epsilon_levels": 2,
    "q.epsilon_first": 0.8, "q.epsilon_last": 0.7, "q.epsilon_decay": 0.9,
    "q.double": False, "q.noisy": True, "q.atoms": 5, "q.target_period": 77, "q.burn_in": 30, "q.sequence": 33, "q.rescale": True,
    "q.noise": 0.9, "q.actor_layers": (9,), "q.critic_layers": (9, 9),
    "policy.mlp": (9,), "policy.hidden": 9, "policy.activation": "tanh", "policy.initial_std": 0.3,
    "replay.alpha": 0.1, "replay.minimum": 77,
}  # fmt: skip
"""Values that no algorithm has by default on CartPole, or with continuous actions on Pendulum."""


@pytest.mark.parametrize(
    ("name", "idle"),
    [
        ("pqn", ["q.epsilon", "q.epsilon_alpha", "q.double", "q.target_period", "q.rescale", "q.actor_layers"]),
        ("dqn", ["q.epsilon", "q.epsilon_alpha", "q.burn_in", "learning.reduction", "learning.max_policy_lag"]),
        ("apex-dqn", ["q.epsilon_first", "q.epsilon_last", "q.epsilon_decay", "q.noise"]),
        ("apex-dpg", ["policy.mlp", "policy.activation", "learning.precision", "q.double", "q.noisy", "q.atoms", "q.epsilon"]),
        ("ppo", ["q.epsilon", "replay.alpha"]),
    ],
)
def test_what_is_named_is_that_setting_and_no_longer_name(name: str, idle: list[str]) -> None:
    falling, own = ("q.epsilon_last", "q.epsilon_first"), ("q.epsilon", "q.noise", "policy.mlp")
    used = dict(zip(("pqn", "dqn", "apex-dqn", "apex-dpg", "ppo"), (*falling, *own), strict=True))
    assert declaration(name).without_effect([*idle, used[name], "learning.gamma"]) == idle


@pytest.mark.process
@pytest.mark.parametrize("name", ["ppo", "impala", "pqn", "dqn", "apex-dqn", "r2d2", "apex-dpg"])
def test_settings_without_effect_are_named_and_have_none(name: str, tmp_path: Path) -> None:
    """The weights after a training are the same bit for bit; and one setting that is not named changes them."""
    env = "gym/Pendulum-v1" if name == "apex-dpg" else "gym/CartPole-v1"
    small = {
        "sampling.placement": "serial", "learning.device": "cpu", "learning.num_threads": 1, "learning.total_steps": 3_000,
        "run.video": False, "run.dashboard": False, "run.goal": None,
    }  # fmt: skip

    def weights(folder: str, **settings: Any) -> dict[str, torch.Tensor]:
        train(make_config(env, name, **small, **settings, **{"run.folder": str(tmp_path / folder)}))
        return dict(load_policy(tmp_path / folder).model.state_dict())

    idle = declaration(name).without_effect(OTHERS)
    assert idle
    assert declaration(name).without_effect(configs.given(make_config(env, name))) == []
    before, after = weights("before"), weights("after", **{setting: OTHERS[setting] for setting in idle})
    assert all(torch.equal(before[part], after[part]) for part in before)
    other = weights("other", **{"learning.gamma": 0.7})
    assert not all(torch.equal(before[part], other[part]) for part in before)
