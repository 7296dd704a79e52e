"""`examples/play_exported.py` in an environment that has neither torch nor headrace."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest
from exported_runs import WORLDS, trained

import headrace
from headrace.config import EnvConfig
from headrace.envs.core.contract import ActionSpec, Continuous, EnvSpec
from headrace.envs.groups.rewards import reward_transform
from headrace.export.contract import _sampling

EXAMPLE = Path(__file__).parents[2] / "examples" / "play_exported.py"
PACKAGES = ("numpy", "onnxruntime", "gymnasium", "flatbuffers", "packaging", "cloudpickle", "farama_notifications",
            "typing_extensions", "google", "protobuf")  # fmt: skip


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory):
    """A Python with these packages alone."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False, symlinks=True)
    own = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for site in {Path(np.__file__).parents[1], Path(sysconfig.get_paths()["purelib"])}:
        for path in site.iterdir():
            if path.name.lower().startswith(PACKAGES) and not (own / path.name).exists():
                (own / path.name).symlink_to(path)
    python = str(folder / "bin" / "python")
    for name in ("torch", "headrace"):
        assert subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode == 1
    return python


@pytest.mark.parametrize("sample", [False, True])
def test_a_policy_with_a_core_plays_without_torch(clean_python, tmp_path, sample):
    run = trained("gym/CartPole-v1", tmp_path / "run", **{"policy.core": "gru", "policy.normalize_observations": True})
    path = headrace.export_policy(run, exporter="torchscript", episodes=0).path
    command = [clean_python, str(EXAMPLE), str(path), "--episodes", "2", *(["--sample"] if sample else [])]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    policy = headrace.load_policy(run, device="cpu")
    env, returns = policy.make_env(), []
    for seed in range(2):
        observation, _ = env.reset(seed=seed)
        policy.reset()
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            total, ended = total + reward, terminated or truncated
        returns.append(total)
    assert said.startswith("gym/CartPole-v1: returns")
    assert sample or said == f"gym/CartPole-v1: returns {returns[0]:.1f}, {returns[1]:.1f}; mean {np.mean(returns):.1f}\n"


def loaded():
    """The example as a module."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("play_exported", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def test_the_example_plays_the_game_that_the_policy_was_trained_in(tmp_path, monkeypatch, capsys):
    """Its limit of steps is kept; what else is done to steps and observations is not in the file, so it is named."""

    def play(env, **settings):
        run = trained(env, tmp_path / "-".join(map(str, settings)), **settings)
        path = str(headrace.export_policy(run, episodes=0).path)
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["play_exported.py", path, "--episodes", "2"])
        loaded().main()

    play("gym/CartPole-v1", **{"envs.max_episode_steps": 3})
    assert capsys.readouterr().out == "gym/CartPole-v1: returns 3.0, 3.0; mean 3.0\n"
    with pytest.raises(SystemExit):
        play("gym/CartPole-v1", **{"envs.frameskip": 2, "envs.frame_stack": 3, "envs.max_episode_steps": 3})
    assert "this example does not: repeat the action, stack;" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        play("gym/Taxi-v4", **{"envs.info_action_mask": True})
    assert "this example does not: action mask;" in capsys.readouterr().err


def test_parts_of_an_action_become_what_its_space_is():
    """A tuple for a Tuple: an environment that unpacks a dictionary gets its keys."""
    example, action = loaded(), {}
    for number, path in enumerate([("arm", 0), ("arm", 1, "grip"), ("legs", "left")]):
        example.put(action, path, number)
    assert example.with_tuples(action) == {"arm": (0, {"grip": 1}), "legs": {"left": 2}}
    assert example.with_tuples({0: 3, 1: 1}) == (3, 1)
    assert example.with_tuples(7) == 7


@pytest.mark.parametrize(("soft", "clip"), [(None, None), (5.0, None), (2.0, 0.3), (None, 1.0)])
def test_the_example_scales_and_clips_rewards_as_training_does(soft, clip):
    example, scale = loaded(), 0.25
    policy = object.__new__(example.ExportedPolicy)
    settings = {"reward_scale": scale, "reward_soft_clip": soft, "reward_clip": clip}
    policy.contract = {"environment": {"settings": settings}}
    rewards = np.array([-40.0, -1.0, 0.0, 3.0, 100.0])
    ours = reward_transform(EnvConfig(**settings))(rewards)
    assert [float(policy.transformed(reward)) for reward in rewards] == pytest.approx(ours.tolist())


def test_a_number_with_one_bound_is_drawn_within_it():
    example = loaded()
    policy = object.__new__(example.ExportedPolicy)
    policy.random = np.random.default_rng(0)
    spec = EnvSpec({}, ActionSpec((Continuous((0.0, -np.inf, -np.inf), (np.inf, 0.5, np.inf)),)))
    numbers = _sampling(spec, ["mean", "std"])["numbers"]
    outputs = {"mean": np.zeros((1, 3)), "std": np.ones((1, 3))}
    drawn = [[policy.draw_number(how, outputs, i) for _ in range(200)] for i, how in enumerate(numbers)]
    assert (min(drawn[0]), max(drawn[1])) == (0, 0.5)
    assert min(drawn[2]) < -1
    assert max(drawn[2]) > 1


def test_integers_are_drawn_rounded():
    policy = object.__new__(loaded().ExportedPolicy)
    policy.random = np.random.default_rng(0)
    policy.actions = [{"name": "action", "space": "Box", "width": 1}]
    policy.contract = {"sampling": {"kind": "distribution", "numbers": [{"low": 0.0, "high": 10.0, "squashed": True}]}}
    outputs = {"mean": np.array([[0.18]]), "std": np.zeros((1, 1)), "action": np.zeros((1, 1), np.int32)}
    policy.draw(outputs, {})
    assert outputs["action"] == 6, "5.89 before it is rounded"


def test_a_random_action_of_q_learning_is_one_that_the_mask_allows():
    policy = object.__new__(loaded().ExportedPolicy)
    policy.random = np.random.default_rng(0)
    policy.actions = [{"name": "action", "n": [4], "start": [3]}]
    policy.contract = {"sampling": {"kind": "epsilon-greedy", "epsilon": 1.0}}

    def drawn(feeds):
        outputs = {"action": np.full(1, 5)}
        policy.draw(outputs, feeds)
        return int(outputs["action"][0])

    assert {drawn({"action_mask": np.array([[0, 1, 0, 1]], np.int8)}) for _ in range(50)} == {4, 6}
    assert {drawn({}) for _ in range(50)} == {3, 4, 5, 6}


@pytest.mark.process
@pytest.mark.parametrize("sample", [False, True])
def test_the_example_reads_every_kind_of_contract(tmp_path, sample):
    """Compound observations in, actions of the compound space out."""
    example = loaded()
    run = trained("odd/all", tmp_path / "run", imports=[WORLDS])
    policy = example.ExportedPolicy(str(headrace.export_policy(run, episodes=0).path))
    env = headrace.load_policy(run).make_env()
    assert example.play(policy, env, 0, sample) == pytest.approx(example.play(policy, env, 0, False), abs=200)
