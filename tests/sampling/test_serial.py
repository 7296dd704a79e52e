"""The serial placement repeats itself bit for bit, also across a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace import config as configs
from headrace.accelerator.weights import FlatWeights
from headrace.config import Config
from headrace.config.validation import validate
from headrace.runs import checkpoint
from headrace.sampling.actor import Actor
from headrace.sampling.placements.serial import Serial
from headrace.sampling.worker_process import actor_seed, environment_seed
from headrace.train import train

get_state: Any = Serial.get_state
WALK = str(Path(__file__).with_name("walk.py"))


def run(
    folder: Path, total_steps: int, seed: int = 0, env: str = "walk", stop: Any = None, **settings: object
) -> dict[str, Any]:  # fmt: skip
    """Train serially, until `stop` is True of the metrics; returns the whole state of the last checkpoint."""
    config = configs.override(
        Config(env=env, imports=(WALK,), seed=seed),
        **{
            "run.folder": str(folder),
            "run.dashboard": False,
            "run.video": False,
            "sampling.placement": "serial",
            "sampling.num_workers": 2,
            "sampling.envs_per_worker": 4,
            "sampling.rollout": 8,
            "learning.batch_size": 8 * 2 * 3,
            "learning.num_minibatches": 3,
            "learning.num_epochs": 2,
            "learning.learning_rate": 1e-3,
            "learning.lr_schedule": "linear",
            "learning.total_steps": total_steps,
            "learning.device": "cpu",
            "learning.num_threads": 1,
            "policy.mlp": (16,),
            "policy.core": "gru",
            "policy.core_size": 8,
            "policy.normalize_observations": True,
            "policy.normalize_returns": True,
            **settings,
        },
    )
    train(config, on_update=stop)
    found = checkpoint.load_newest(config.policy_folder(0) / "checkpoints")
    assert found is not None
    return found.unpack()


def assert_same(a: Any, b: Any, path: str = "") -> None:
    """Bit for bit, through the whole tree."""
    assert type(a) is type(b), path
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}/{i}")
    elif isinstance(a, torch.Tensor):
        assert a.numpy().tobytes() == b.numpy().tobytes(), path
    elif isinstance(a, np.ndarray):
        assert a.tobytes() == b.tobytes(), path
    else:
        assert a == b or (a != a and b != b), path


def assert_resumed_is_straight(folder: Path, stops: tuple[int, ...], total_steps: int, **settings: Any) -> dict[str, Any]:
    """A run stopped at `stops` ends in the same state, which is returned, as one that never stopped."""
    straight = run(folder / "straight", total_steps, **settings)
    for stop in stops:
        run(folder / "stopped", stop, **settings)
    assert_same(straight, run(folder / "stopped", total_steps, **settings))
    return straight


def test_policies_that_have_learned_enough_do_not_keep_the_others_from_going_on_exactly(tmp_path: Path) -> None:
    """Their environments wait for slots that nobody frees any more."""
    both = {"learning.batch_size": 8 * 2, "learning.num_minibatches": 1, "learning.lr_schedule": "constant"}
    both |= {"population.size": 2, "population.overrides": {"1": {"learning.total_steps": 200}}}
    straight = run(tmp_path / "straight", 2000, **both)
    run(tmp_path / "stopped", 1000, **both)
    resumed = run(tmp_path / "stopped", 2000, **both)
    assert straight.pop("moment") < resumed.pop("moment"), "of the checkpoints that all policies have in common"
    assert_same(straight, resumed)


def test_same_seed_same_bits_other_seed_other_bits(tmp_path: Path) -> None:
    one, two, other = run(tmp_path / "1", 1500), run(tmp_path / "2", 1500), run(tmp_path / "3", 1500, seed=1)
    assert_same(one["model"], two["model"])
    assert_same(one["optimizer"], two["optimizer"])
    weights = "value_head.linear.weight"
    assert not torch.equal(one["model"][weights], other["model"][weights])


@pytest.mark.parametrize(
    ("settings", "largest"),
    [
        ({"sampling.num_workers": 1, "sampling.num_groups": 1, "learning.batch_size": 8 * 4}, 0),
        ({"sampling.num_workers": 2, "sampling.num_groups": 1, "learning.batch_size": 8 * 4 * 2}, 0),
        ({"sampling.num_workers": 1, "sampling.num_groups": 2, "learning.batch_size": 8 * 2}, 1),
        ({"sampling.num_workers": 2, "sampling.num_groups": 2, "learning.batch_size": 8 * 2 * 3}, 1),
    ],
)
def test_lag_is_as_the_page_about_it_says(tmp_path: Path, settings: dict[str, Any], largest: int) -> None:
    """docs/policy-lag.md: none where each batch takes all trajectories that were begun, some where groups take turns."""
    run(tmp_path, 2000, **settings, **{"run.log_interval": 0.0, "learning.num_minibatches": 1})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    lags = [row["lag/max"] for row in rows if "lag/max" in row]
    assert len(lags) > 5
    assert max(lags) == largest
    assert min(row["lag/min"] for row in rows if "lag/min" in row) == 0


def test_actors_act_with_the_weights_of_exactly_so_many_updates_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch takes all trajectories that were begun, so that the knob is the only lag there is."""
    learned: list[tuple[int, bytes]] = []
    acting: list[tuple[int, bytes]] = []
    publish, act = Serial.publish, Actor.act

    def published(placement: Serial, p: int, model: torch.nn.Module, version: int) -> None:
        publish(placement, p, model, version)
        flat = FlatWeights(model)
        flat.gather()
        learned.append((version, flat.held().tobytes()))

    def acts(actor: Actor, lanes: np.ndarray) -> None:
        flat = FlatWeights(actor.model)
        flat.gather()
        acting.append((actor.version, flat.held().tobytes()))
        assert acting[-1] == learned[max(0, len(learned) - 1 - 3)]
        act(actor, lanes)

    monkeypatch.setattr(Serial, "publish", published)
    monkeypatch.setattr(Actor, "act", acts)
    one_group = {"sampling.num_workers": 1, "sampling.num_groups": 1, "learning.batch_size": 8 * 4, "learning.num_minibatches": 1}
    run(tmp_path, 640, **one_group, **{"sampling.policy_lag": 3, "run.log_interval": 0.0})
    assert len({version for version, _ in acting}) > 10
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    lags = [(row["lag/min"], row["lag/max"]) for row in rows if "lag/max" in row]
    assert lags == [(n, n) for n in (0, 1, 2)] + [(3, 3)] * (len(lags) - 3)
    assert len(lags) > 10


def test_a_resumed_run_with_lag_is_the_run_that_never_stopped(tmp_path: Path) -> None:
    assert_resumed_is_straight(tmp_path, (300, 700), 1500, **{"sampling.policy_lag": 4, "learning.lr_schedule": "constant"})


def test_only_the_serial_placement_can_hold_its_lag() -> None:
    with pytest.raises(configs.ConfigError, match=r"policy_lag 2 needs sampling\.placement serial"):
        validate(configs.override(Config(env="x"), **{"sampling.policy_lag": 2}))


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_resumed_run_on_replay_is_the_run_that_never_stopped(tmp_path: Path, core: str) -> None:
    settings = {
        "learning.algorithm": "apex-dqn", "learning.experience": "replay", "learning.batch_size": 16,
        "learning.num_minibatches": 1, "learning.num_epochs": 1,
        "learning.lr_schedule": "constant", "policy.core": core, "policy.hidden": 16, "policy.normalize_observations": False,
        "policy.normalize_returns": False, "q.target_period": 7, "q.burn_in": 4, "q.sequence": 8, "q.noisy": core == "none",
        "replay.minimum": 200, "replay.capacity": 600, "replay.slack": 1.5, "replay.evict_period": 5,
        "replay.samples_per_insert": 1.0, "replay.checkpoint_contents": True, "sampling.weights_period": 7,
    }  # fmt: skip
    straight = assert_resumed_is_straight(tmp_path, (150, 1300), 2000, **settings)
    assert straight["progress"]["updates"] > 10
    assert len(list((tmp_path / "stopped" / "checkpoints").glob("*/replay/history-0.safetensors"))) == 1  # the newest's only


def test_a_run_on_replay_that_is_stopped_between_two_trajectories_counts_all_of_their_steps(tmp_path: Path) -> None:
    """Ctrl-C, or a callback, comes at any moment, and not only where enough was learned."""
    settings = {
        "learning.algorithm": "dqn", "learning.experience": "replay", "learning.batch_size": 16, "learning.num_minibatches": 1,
        "learning.num_epochs": 1, "learning.lr_schedule": "constant", "policy.core": "none", "policy.normalize_returns": False,
        "policy.normalize_observations": False, "replay.minimum": 100, "replay.capacity": 600, "replay.checkpoint_contents": True,
        "run.log_interval": 0.0,
    }  # fmt: skip
    straight = run(tmp_path / "straight", 800, **settings)
    for at in (150, 300, 450):
        run(tmp_path / "stopped", 800, stop=lambda metrics, at=at: metrics["global_step"] >= at, **settings)
    resumed = run(tmp_path / "stopped", 800, **settings)
    for state in (straight, resumed):
        del state["sampler"]  # the rows of a slot that are not written yet are those of an earlier trajectory
    assert_same(straight, resumed)


@pytest.mark.parametrize("returns", ["vtrace", "gae"])
def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path: Path, returns: str) -> None:
    settings = {"learning.returns": returns, "learning.lr_schedule": "constant"}
    straight = assert_resumed_is_straight(tmp_path, (700, 1300), 2000, **settings)
    assert straight["progress"]["updates"] > 40


@pytest.mark.parametrize(
    ("env", "needs"),
    [
        ("gym/CartPole-v1", "gymnasium"),
        ("gym/Pendulum-v1", "gymnasium"),
        ("atari/pong", "ale_py"),
        pytest.param("vizdoom/basic", "vizdoom", marks=pytest.mark.slow),
        ("dm_control/cartpole-swingup", "dm_control"),
    ],
)
def test_real_environments_are_brought_back_to_where_they_were(tmp_path: Path, env: str, needs: str) -> None:
    """Atari consoles give their state. Of the others the generator at the episode's start and the actions since tell it."""
    pytest.importorskip(needs)
    settings: dict[str, Any] = {"learning.lr_schedule": "constant", "envs.frame_stack": 2, "policy.core": "none", "env": env}
    assert_resumed_is_straight(tmp_path, (300,), 700, **settings)
    assert "begin anew" not in (tmp_path / "stopped" / "log.txt").read_text()


def test_where_that_is_not_possible_it_is_said_and_nothing_is_repeated(tmp_path: Path) -> None:
    """An environment with a source of randomness of its own."""
    settings: dict[str, Any] = {"env": "walk/astray", "learning.lr_schedule": "constant"}
    first = run(tmp_path / "stopped", 500, **settings)
    resumed = run(tmp_path / "stopped", 1000, **settings)
    assert resumed["progress"]["global_step"] > first["progress"]["global_step"]
    log = (tmp_path / "stopped" / "log.txt").read_text()
    assert "Episodes begin anew: walk/astray: the same actions" in log


DEVICE = {
    "sampling.placement": "device", "sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": 8,
    "learning.batch_size": 64, "learning.num_minibatches": 1,
}  # fmt: skip
TWO_POLICIES = {"population.size": 2, "sampling.num_workers": 4, "learning.batch_size": 96}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"sampling.num_workers": 3}),
        ({"sampling.num_workers": 3}, {}),
        ({}, {"sampling.envs_per_worker": 8, "learning.batch_size": 96}),
        ({}, {"sampling.num_groups": 1, "learning.batch_size": 96}),
        ({}, {"sampling.rollout": 16, "learning.batch_size": 96}),
        ({}, DEVICE),
        (DEVICE, {}),
        (DEVICE, DEVICE | {"sampling.envs_per_worker": 16, "learning.batch_size": 128}),
        (DEVICE, DEVICE | {"learning.batch_size": 16}),
        (TWO_POLICIES, TWO_POLICIES | {"learning.batch_size": 48}),
    ],
)
def test_other_sampling_settings_begin_episodes_anew(tmp_path: Path, before: dict[str, Any], after: dict[str, Any]) -> None:
    """They may change from start to start, so the checkpoint is good. Then the run goes on exactly again."""
    constant = {"learning.lr_schedule": "constant"}
    for settings, total in ((before, 500), (after, 1000), (after, 1500)):
        run(tmp_path, total, **constant, **settings)
    log = (tmp_path / "log.txt").read_text()
    assert log.count("Episodes begin anew: other sampling settings") == 1


def test_a_checkpoint_from_before_these_settings_were_saved_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Serial, "get_state", lambda self: {k: v for k, v in get_state(self).items() if k != "shape"})
        run(tmp_path, 500)
    run(tmp_path, 1000)
    assert "begin anew" not in (tmp_path / "log.txt").read_text()


def test_a_resumed_run_has_other_seeds() -> None:
    """Where episodes begin anew, they are not those of the run's beginning."""
    config = Config(env="walk")
    assert len({environment_seed(config, 0, 0, version) for version in range(100)}) == 100
    assert len({actor_seed(config, 0, 0, version) for version in range(100)}) == 100


def test_training_in_this_process_leaves_torch_as_it_was(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    run(tmp_path / "run", 100)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == 2
