"""Q-learning in the device placement: the replay is in the memory of the device."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from test_serial import assert_resumed_is_straight

import headrace
from headrace.config import ConfigError
from headrace.envs.core.registry import register_tensor
from headrace.envs.groups.tensor import TensorStep
from headrace.envs.make import describe_here, make_group
from headrace.experience.batch import Batch, Filling
from headrace.experience.on_device import DeviceReplayExperience
from headrace.learning.algorithm import make_agent
from headrace.make_config import check_config, make_config
from headrace.runs.metrics import read_jsonl
from headrace.sampling.device_sampler import DeviceSampler
from headrace.train import train

QUIET: dict[str, Any] = {"run.video": False, "run.dashboard": False, "learning.device": "cpu", "learning.num_threads": 1}
DEVICE = {"sampling.placement": "device"}
RAINBOW = ["q.double", "q.dueling", "q.noisy", "q.atoms", "replay.n_step", "replay.alpha"]


def made(env: str, algorithm: str, **settings: Any) -> tuple[DeviceSampler, DeviceReplayExperience]:
    config = make_config(env, algorithm, **DEVICE, **{"learning.device": "cpu"}, **settings)
    check_config(config)
    spec = describe_here(env, config.envs)
    learned, model = make_agent(config, spec)
    group = make_group(env, config.envs, config.num_envs, device="cpu")
    sampler = DeviceSampler(config, spec, learned, model, group, seed=0)
    sampler.start(seed=0)
    return sampler, DeviceReplayExperience(config, spec, sampler.collect, range(config.num_envs))


def test_it_fills_then_keeps_the_ratio_of_samples_to_inserts() -> None:
    small = {"sampling.envs_per_worker": 4, "replay.minimum": 100, "replay.capacity": 400, "learning.batch_size": 32}
    sampler, experience = made("torch/CartPole-v1", "dqn", **small)
    steps, batches, filling = 0, 0, 0
    for _ in range(400):
        got = experience.next()
        steps += got.arrivals.steps
        if isinstance(got, Filling):
            filling += 1
            continue
        batches += 1
        assert steps >= 100
        assert got.keys is not None
        assert got.data["obs/obs"].shape == (32, 4)
        experience.update_priorities(got.keys, torch.rand(32))
        experience.release()
    sampler.close()
    ratio = experience._config.replay.samples_per_insert
    assert ratio is not None
    assert filling >= 100 // 16
    assert ratio * (steps - 200) <= batches * 32 <= ratio * (steps - 100) + ratio * 16
    assert experience.size <= 400 + 3 * 4 * 4
    assert experience.metrics()["replay/size"] == experience.size


def test_nothing_is_drawn_before_there_are_rows_enough_for_a_transition() -> None:
    """Many environments hold the minimum after a few steps."""
    small = {"sampling.envs_per_worker": 64, "replay.minimum": 64, "replay.n_step": 9, "learning.batch_size": 32}
    sampler, experience = made("torch/CartPole-v1", "dqn", **small)
    got = [experience.next() for _ in range(3)]
    sampler.close()
    assert [type(each) for each in got] == [Filling, Filling, Batch], "trajectories of 4 steps"
    assert isinstance(got[2], Batch)
    assert got[2].data["weights"].tolist() == [1.0] * 32


@pytest.mark.parametrize(
    ("envs", "rollout", "n_step", "minimum"),
    [(64, 1, 3, 32), (64, 4, 6, 32), (1, 1, 3, 1)],
    ids=["as many environments as the minimum", "a return longer than the trajectory", "one environment"],
)
def test_nothing_is_drawn_before_a_whole_return_is_there(envs: int, rollout: int, n_step: int, minimum: int) -> None:
    small = {"sampling.envs_per_worker": envs, "sampling.rollout": rollout, "replay.n_step": n_step, "replay.minimum": minimum,
             "learning.batch_size": minimum, "replay.capacity": 101, "replay.samples_per_insert": 1.0}  # fmt: skip
    sampler, experience = made("torch/CartPole-v1", "dqn", **small)
    batches = 0
    while batches < 5:
        got = experience.next()
        if isinstance(got, Batch):
            batches += 1
            assert experience._ring is not None
            assert (experience._ring.table.numbers[got.keys] > 0).all()
            assert all(bool(torch.isfinite(x.float()).all()) for x in got.data.values())
    sampler.close()


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_replay_with_other_returns_goes_on(before: int, after: int, tmp_path: Path) -> None:
    small = {"sampling.envs_per_worker": 4, "replay.minimum": 40, "replay.capacity": 400, "learning.batch_size": 32,
             "replay.checkpoint_contents": True, "replay.samples_per_insert": 8.0}  # fmt: skip
    sampler, experience = made("torch/CartPole-v1", "dqn", **small, **{"replay.n_step": before})
    while not isinstance(experience.next(), Batch):
        pass
    experience.save(tmp_path)
    state = experience.get_state()
    sampler.close()
    sampler, again = made("torch/CartPole-v1", "dqn", **small, **{"replay.n_step": after})
    assert "goes on" in again.restore(tmp_path, state)[0]
    assert state is not None
    drawn = 0
    while again._credit >= 32:
        got = again.next()
        assert isinstance(got, Batch)
        drawn += 1
        assert (torch.as_tensor(got.keys) // 4 + after <= state["head"] - 1).all(), "a return reaches behind what is there"
    assert drawn > 1
    sampler.close()


@pytest.mark.parametrize(("before", "after"), [(0.5, 1.0), (0.5, 0.0), (0.0, 0.5), (0.6, 0.6)])
def test_a_replay_with_another_exponent_goes_on_with_the_same_priorities(before: float, after: float, tmp_path: Path) -> None:
    small = {"sampling.envs_per_worker": 4, "replay.minimum": 40, "replay.capacity": 400, "learning.batch_size": 32,
             "replay.checkpoint_contents": True}  # fmt: skip
    sampler, experience = made("torch/CartPole-v1", "dqn", **small, **{"replay.alpha": before})
    while not isinstance(got := experience.next(), Batch):
        pass
    experience.update_priorities(got.keys, torch.linspace(2.0, 9.0, 32))
    experience.save(tmp_path)
    state, ring = experience.get_state(), experience._ring
    sampler.close()
    sampler, again = made("torch/CartPole-v1", "dqn", **small, **{"replay.alpha": after})
    assert "goes on" in again.restore(tmp_path, state)[0]
    sampler.close()
    assert ring is not None
    assert again._ring is not None
    saved, restored = ring.table.numbers, again._ring.table.numbers
    wanted = saved ** (after / before) if before else saved
    torch.testing.assert_close(restored, torch.where(saved > 0, wanted, 0.0))
    torch.testing.assert_close(again._ring.top, torch.tensor(9.0**after if before else 1.0))


def test_atari_transitions_are_the_frames_that_were_seen() -> None:
    pytest.importorskip("ale_py")
    small = {"sampling.envs_per_worker": 3, "replay.minimum": 50, "learning.batch_size": 32, "replay.n_step": 3,
             "replay.samples_per_insert": 3.0}  # fmt: skip
    sampler, experience = made("atari/breakout", "dqn", **small)
    seen, ended = list[dict[str, np.ndarray]](), 0
    collect = sampler.collect

    def recorded() -> Any:
        fields, envs = collect()
        seen.append({name: x.numpy().copy() for name, x in fields.items()})
        return fields, envs

    def row(name: str, t: int, env: int) -> Any:
        return seen[t // 4][name][t % 4, env]

    experience._collect = recorded  # type: ignore[method-assign]
    drawn = 0
    for _ in range(100):
        got = experience.next()
        if not isinstance(got, Batch):
            continue
        for i, key in enumerate(got.keys.tolist()[:16]):
            t, env = divmod(key, 3)
            np.testing.assert_array_equal(got.data["obs/obs"][i], row("obs/obs", t, env))
            assert got.data["action"][i] == row("action", t, env)
            over = np.array([row("terminated", t + k, env) for k in range(3)])
            after = t + (int(over.argmax()) + 1 if over.any() else 3)
            np.testing.assert_array_equal(got.data["next/obs"][i], row("obs/obs", after, env))
            assert float(got.data["discount"][i]) == pytest.approx(0.0 if over.any() else 0.99**3)
            drawn, ended = drawn + 1, ended + bool(over.any())
    sampler.close()
    assert drawn > 700
    assert ended > 3


class Chain:
    """Walk left or right from 0: an episode ends at -3, or with a reward at 5. At random one in three or so ends well."""

    single_observation_space = gymnasium.spaces.Box(-5, 5, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_envs: int, device: str) -> None:
        self.num_envs, self.position = num_envs, torch.zeros(num_envs, device=device)

    def reset(self, seed: int) -> torch.Tensor:
        return self.position.zero_()[:, None]

    def step(self, actions: torch.Tensor) -> TensorStep:
        moved = self.position + 2 * actions - 1
        good, bad = moved >= 5, moved <= -3
        self.position = torch.where(good | bad, 0.0, moved)
        return TensorStep(self.position[:, None], good.float(), good | bad, torch.zeros_like(good), moved[:, None])


@register_tensor("chain")
def chain(options: Any, num_envs: int, device: str) -> Chain:
    return Chain(num_envs, device)


@pytest.mark.parametrize("algorithm", ["dqn", "rainbow"])
def test_a_small_world_is_learned(tmp_path: Path, algorithm: str) -> None:
    settings: dict[str, Any] = {
        "policy.encoder": "auto", "policy.mlp": [32], "policy.hidden": 32, "policy.activation": "relu",
        "sampling.envs_per_worker": 16, "learning.total_steps": 8_000, "learning.batch_size": 32, "learning.learning_rate": 3e-3,
        "replay.minimum": 500, "replay.capacity": 5_000, "replay.samples_per_insert": 2.0, "q.target_period": 30,
        "q.support": (-1.0, 2.0), "q.epsilon_decay": 0.3, "learning.precision": "float32", "run.folder": str(tmp_path),
    }  # fmt: skip
    result = train(make_config("chain", algorithm, **DEVICE, **QUIET, **settings))
    assert result.mean_return > 0.9
    row = read_jsonl(tmp_path / "metrics.jsonl")[-1]
    assert math.isfinite(row["losses/td_error"])
    assert row["replay/size"] > 4_000


LEARN: dict[str, Any] = {"learning.total_steps": 30_000, "run.goal": 150.0, "learning.batch_size": 64}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dqn", "rainbow"])
def test_cartpole_is_learned(tmp_path: Path, algorithm: str) -> None:
    support = {"q.support": (0.0, 100.0)} if algorithm == "rainbow" else {}
    config = make_config("torch/CartPole-v1", algorithm, **DEVICE, **QUIET, **LEARN, **support, **{"run.folder": str(tmp_path)})
    result = train(config)
    assert result.mean_return > 100


@pytest.mark.parametrize("part", RAINBOW)
def test_every_part_of_rainbow_is_a_switch(part: str) -> None:
    plain, rainbow = make_config("torch/CartPole-v1", "dqn"), make_config("torch/CartPole-v1", "rainbow")
    group, name = part.split(".")
    off, on = getattr(getattr(plain, group), name), getattr(getattr(rainbow, group), name)
    assert off != on
    for algorithm, value in (("dqn", on), ("rainbow", off)):
        config = make_config("torch/CartPole-v1", algorithm, **DEVICE, **{part: value})
        check_config(config)
        learned, model = make_agent(config, describe_here(config.env, config.envs))
        assert type(learned).__name__ == "DQN"
        assert model is not None


@pytest.mark.process
@pytest.mark.parametrize("algorithm", ["dqn", "rainbow"])
def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path: Path, algorithm: str) -> None:
    settings: dict[str, Any] = {
        "env": "torch/CartPole-v1", "replay.checkpoint_contents": True, "replay.minimum": 100, "replay.capacity": 600,
        "learning.algorithm": algorithm, "learning.experience": "replay", "learning.num_minibatches": 1, "learning.num_epochs": 1,
        "sampling.placement": "device", "sampling.num_workers": 1, "sampling.num_groups": 1, "sampling.envs_per_worker": 4,
        "sampling.rollout": 4, "learning.batch_size": 32, "policy.core": "none", "policy.normalize_returns": False,
        "policy.normalize_observations": False, "replay.samples_per_insert": 4.0, "learning.lr_schedule": "constant",
        "q.noisy": algorithm == "rainbow", "q.target_period": 20,
        "q.epsilon_first": 0.1, "q.epsilon_last": 0.1,
    }  # fmt: skip
    straight = assert_resumed_is_straight(tmp_path, (500, 900), 1400, **settings)
    assert straight["progress"]["updates"] > 20


def test_without_its_contents_the_replay_is_filled_again(tmp_path: Path) -> None:
    settings = {"replay.minimum": 200, "sampling.envs_per_worker": 4, "learning.batch_size": 32, "run.folder": str(tmp_path)}
    for total in (600, 1200):
        train(make_config("torch/CartPole-v1", "dqn", **DEVICE, **QUIET, **settings, **{"learning.total_steps": total}))
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert rows[-1]["global_step"] >= 1200
    assert rows[-1]["replay/size"] < 700


@pytest.mark.parametrize(("algorithm", "more"), [("ppo", {"learning.batch_size": 32}), ("dqn", {"replay.n_step": 2})])
def test_the_only_policy_may_have_settings_of_its_own(tmp_path: Path, algorithm: str, more: dict[str, Any]) -> None:
    """By `population.overrides`, in trajectories and with a replay."""
    own = {"policy.mlp": [8], "learning.gamma": 0.5, **more}
    small = {"sampling.envs_per_worker": 4, "sampling.rollout": 16, "replay.minimum": 100, "learning.total_steps": 400}
    weights = []
    for folder, given in ((tmp_path / "run", own), (tmp_path / "policy", {"population.overrides": {"0": own}})):
        train(make_config("torch/CartPole-v1", algorithm, **DEVICE, **QUIET, **small, **given, **{"run.folder": str(folder)}))
        weights.append(headrace.load_policy(folder).model.state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(x, weights[1][name]) for name, x in weights[0].items())


@pytest.mark.process
@pytest.mark.parametrize("algorithm", ["dqn", "rainbow"])
def test_other_placements_learn_with_the_replay_of_ape_x(tmp_path: Path, algorithm: str) -> None:
    settings = {"sampling.placement": "serial", "replay.minimum": 200, "sampling.envs_per_worker": 4, "learning.batch_size": 16}
    folder = {"run.folder": str(tmp_path), "learning.total_steps": 600}
    train(make_config("gym/CartPole-v1", algorithm, **QUIET, **settings, **folder))
    row = read_jsonl(tmp_path / "metrics.jsonl")[-1]
    assert row["charts/updates"] > 20
    assert math.isfinite(row["losses/td_error"])


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_replay_is_filled_again(tmp_path: Path, damage: str) -> None:
    settings = {"replay.minimum": 200, "sampling.envs_per_worker": 4, "learning.batch_size": 32, "run.folder": str(tmp_path),
                "replay.checkpoint_contents": True}  # fmt: skip
    train(make_config("torch/CartPole-v1", "dqn", **DEVICE, **QUIET, **settings, **{"learning.total_steps": 600}))
    (path,) = tmp_path.glob("checkpoints/*/replay/ring.safetensors")
    path.write_bytes(path.read_bytes()[:-100]) if damage == "cut" else path.unlink()
    train(make_config("torch/CartPole-v1", "dqn", **DEVICE, **QUIET, **settings, **{"learning.total_steps": 1200}))
    assert "the replay is filled again" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("algorithm", ["dqn", "rainbow", "apex-dqn"])
@pytest.mark.parametrize("env", ["torch/CartPole-v1", "gym/CartPole-v1", "atari/pong"])
def test_the_placement_alone_is_enough(env: str, algorithm: str) -> None:
    check_config(make_config(env, algorithm, **DEVICE))


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("apex-dqn", {"replay.copies": 8}, "keeps the newest transitions, each once"),
        ("apex-dpg", {"replay.evict_alpha": -0.4}, "keeps the newest transitions, each once"),
        ("r2d2", {}, "device replays single transitions, no sequences"),
        ("dqn", {"policy.core": "lstm"}, "device replays single transitions, no sequences"),
    ],
)
def test_what_the_replay_on_the_device_cannot_do_is_refused(algorithm: str, settings: dict[str, Any], message: str) -> None:
    env = "gym/Pendulum-v1" if algorithm == "apex-dpg" else "gym/CartPole-v1"
    with pytest.raises(ConfigError, match=message):
        check_config(make_config(env, algorithm, **DEVICE, **settings))
