"""`headrace export`: what the file computes, what its contract says, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exported_runs import REPLAY, WORLDS, trained
from gymnasium import spaces
from jsonschema import Draft202012Validator

import headrace
from headrace import cli
from headrace.config import Config, ConfigError
from headrace.envs.core.actions import action_spec
from headrace.envs.core.contract import EnvSpec
from headrace.envs.core.imports import ImportsNotGiven
from headrace.envs.make import describe_run
from headrace.evaluation.interface import ActionLeaf, interface
from headrace.evaluation.onnx_policy import CONTRACT_KEY, SCHEMA, OnnxPolicy, session
from headrace.export import contract, verification
from headrace.export.graph import ExportError
from headrace.runs import files

VALIDATOR = Draft202012Validator(json.loads(SCHEMA.read_text()))


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    """A run with a core and normalised observations."""
    core = {"policy.core": "lstm", "policy.normalize_observations": True, "policy.activation": "elu"}
    return trained("gym/CartPole-v1", tmp_path_factory.mktemp("runs") / "cartpole", **core)


def export(run, **how):
    return headrace.export_policy(run, **({"exporter": "torchscript", "episodes": 0} | how))


def test_file_and_contract_of_a_policy_with_a_core(cartpole, tmp_path):
    done = export(cartpole, to=tmp_path / "policy.onnx", episodes=4, licence="apache-2.0")
    contract = json.loads(done.path.with_suffix(".json").read_text())
    VALIDATOR.validate(contract)
    assert contract == done.contract
    inside = json.loads(session(done.path).get_modelmeta().custom_metadata_map[CONTRACT_KEY])
    assert contract["file"].items() >= inside.pop("file").items()
    assert {key: contract[key] for key in inside} == inside
    assert contract["core"] == {"width": 16, "start": 0.0}
    assert contract["licence"] == "apache-2.0"
    assert contract["evaluation"]["episodes"] == 4
    assert contract["outputs"][0]["meanings"] == ["push the cart to the left", "push the cart to the right"]
    assert contract["verification"]["batches"] == [1, 7]
    assert contract["verification"]["observations"] == 64 * 8
    assert contract["verification"]["resets"] >= 8
    assert set(contract["verification"]["differences"]) == {"logits", "next_core", "action"}
    assert contract["file"]["bytes"] == done.path.stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.json", "policy.onnx"]


@pytest.mark.process
def test_the_file_plays_the_same_games_as_the_checkpoint(cartpole, tmp_path):
    path = export(cartpole, to=tmp_path / "policy.onnx").path
    for deterministic in (True, False):
        ours, its = (headrace.evaluate(policy, 6, deterministic=deterministic, seed=3) for policy in (cartpole, path))
        assert ours.returns == its.returns
    policy, its = headrace.load_policy(cartpole, device="cpu"), headrace.load_policy(path)
    env = policy.make_env()
    for seed in range(2):
        observation, _ = env.reset(seed=seed)
        policy.reset()
        its.reset()
        for _ in range(8):
            assert policy.act(observation) == its.act(observation)
            observation = env.step(policy.act(observation))[0]


def test_core_state_and_reset_flag(cartpole, tmp_path):
    """The reset flag zeroes the state of its row alone."""
    path = export(cartpole, to=tmp_path / "policy.onnx").path
    run = session(path)
    obs, core = np.full((3, 4), 0.3, np.float32), np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)

    def after(core, first):
        return run.run(["next_core"], {"obs": obs, "core": core, "first": np.array(first)})[0]

    kept, zeroed = after(core, [False] * 3), after(np.zeros_like(core), [False] * 3)
    assert np.abs(kept - zeroed).max() > 0.01
    mixed = after(core, [False, True, False])
    np.testing.assert_allclose(mixed, np.stack([kept[0], zeroed[1], kept[2]]), atol=1e-6)


@pytest.mark.process
@pytest.mark.parametrize("core", [pytest.param("none", marks=pytest.mark.slow), "gru"])
def test_every_kind_of_observation_and_action(core, tmp_path):
    settings = {"imports": [WORLDS], "policy.core": core, "policy.normalize_observations": True}
    run = trained("odd/all", tmp_path / "run", **settings)
    done = export(run, episodes=2, exporter="auto")
    contract = done.contract
    VALIDATOR.validate(json.loads(json.dumps(contract)))
    assert {item["name"]: item["encoding"]["kind"] for item in contract["inputs"] if "encoding" in item} == {
        "camera": "image", "depth": "image", "room": "one-hot", "keys": "one-hot", "far/place": "numbers", "lamps": "numbers",
        "action_mask": "numbers",
    }  # fmt: skip
    actions = {item["name"]: item for item in contract["outputs"] if item["role"] == "action"}
    assert set(actions) == {"action/turn", "action/push", "action/grip", "action/bits", "action/free"}
    assert actions["action/turn"]["start"] == [-1]
    assert actions["action/push"]["high"] == [2.0, 5.0]
    assert headrace.evaluate(done.path, 4, imports=[WORLDS]).returns == pytest.approx(headrace.evaluate(run, 4).returns, abs=1e-3)
    # the environment's own observations go in, and its own actions come out
    policy = headrace.load_policy(done.path, imports=[WORLDS])
    env = policy.make_env()
    observation, _ = env.reset(seed=1)
    feeds = {"core": np.zeros((1, 8), np.float32), "first": np.ones(1, bool)} if core == "gru" else {}
    for item in contract["inputs"]:
        value = observation
        for key in item.get("path", ()):
            value = value[key]
        if item["role"] == "observation":
            feeds[item["name"]] = np.asarray(value, item["dtype"])[None]
    names = list(actions)
    values = session(done.path).run(names, feeds)
    taken = {actions[name]["path"][0]: value[0] for name, value in zip(names, values, strict=True)}
    assert env.action_space.contains(taken)
    ours = headrace.load_policy(run, device="cpu").act(observation)
    assert all(np.allclose(ours[name], taken[name], atol=1e-5) for name in taken)


@pytest.mark.process
@pytest.mark.parametrize(
    ("env", "settings", "kind"),
    [
        ("gym/Pendulum-v1", {"learning.algorithm": "apex-dpg", **REPLAY}, "none"),
        ("gym/CartPole-v1", {"learning.algorithm": "dqn", "q.noisy": True, "q.atoms": 11, **REPLAY}, "epsilon-greedy"),
        pytest.param(
            "gym/CartPole-v1", {"learning.algorithm": "r2d2", "policy.core": "lstm", **REPLAY}, "epsilon-greedy",
            marks=pytest.mark.slow,
        ),
        pytest.param("gym/Taxi-v4", {"envs.info_action_mask": True}, "distribution", marks=pytest.mark.slow),
        ("pettingzoo/connect_four_v3", {}, "distribution"),
        ("torch/CartPole-v1", {}, "distribution"),
    ],
)
def test_other_algorithms_and_worlds(env, settings, kind, tmp_path):
    done = export(trained(env, tmp_path / "run", **settings))
    assert done.contract["sampling"]["kind"] == kind
    assert ("without the noise" in done.contract["sampling"]["how"]) == ("q.noisy" in settings)
    assert done.contract["verification"]["differences"]["action"] <= 1e-4
    assert headrace.evaluate(done.path, 2).returns


@pytest.mark.process
@pytest.mark.parametrize("algorithm", ["impala", "r2d2"])
def test_the_last_action_and_the_last_reward_are_inputs(algorithm, tmp_path):
    inputs = {"policy.core": "lstm", "policy.previous_action": True, "policy.previous_reward": True, "envs.reward_scale": 0.5}
    run = trained("gym/CartPole-v1", tmp_path / "run", **{"learning.algorithm": algorithm, **inputs, **REPLAY})
    done = export(run)
    VALIDATOR.validate(json.loads(json.dumps(done.contract)))
    roles = {item["role"]: item for item in done.contract["inputs"]}
    assert roles["previous_action"]["shape"] == ["batch", 1]
    assert "times 0.5" in roles["previous_reward"]["meaning"]
    ours, its = (headrace.evaluate(policy, 4, deterministic=True, seed=1) for policy in (run, done.path))
    assert ours.returns == its.returns


@pytest.mark.process
def test_actions_that_are_rounded_or_cut_off_at_a_bound(tmp_path):
    """The file gives what the environment gets; the comparison took what was drawn, and refused it."""
    settings = {"imports": [WORLDS], "policy.core": "gru", "policy.previous_action": True}
    run = trained("odd/bounds", tmp_path / "run", **settings)
    path = export(run, exporter="dynamo", episodes=1).path
    ours, its = headrace.load_policy(run, device="cpu"), headrace.load_policy(path, imports=[WORLDS])
    env = ours.make_env()
    for deterministic in (True, False):
        observation, _ = env.reset(seed=1)
        ours.reset()
        its.reset()
        for _ in range(10):
            mine, theirs = (policy.act(observation, deterministic=deterministic) for policy in (ours, its))
            assert env.action_space.contains(theirs)
            a, b = (spaces.flatten(env.action_space, action) for action in (mine, theirs))
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
            observation = env.step(theirs)[0]
    assert (mine["above"] >= 2).all()


def test_integers_may_differ_only_where_the_number_is_half_way_between_them():
    space = spaces.Box(0, 10, (1,), np.int32)
    spec = EnvSpec({}, action_spec(space))
    found = verification.Verification()
    policy = SimpleNamespace(spec=spec, config=Config(env="none"), algorithm=None, step=0, model=SimpleNamespace(core_width=0))
    contract = {"outputs": [{"name": "action", "role": "action", "width": 1}]}
    exported = SimpleNamespace(rows=OnnxPolicy.rows.__get__(SimpleNamespace(contract=contract, spec=spec)))
    both = verification._Both(policy, exported, [ActionLeaf((), space, slice(0, 1))], found)
    both._compare_actions(np.array([[4.2], [4.4999], [12.0]], np.float32), np.array([[4], [5], [10]], np.float32), {})
    assert found.other_choices == 1
    with pytest.raises(ExportError, match="output action"):
        both._compare_actions(np.array([[4.4]], np.float32), np.array([[5]], np.float32), {})


def test_preprocessing_of_the_environment_is_in_the_contract(tmp_path):
    pytest.importorskip("ale_py")
    done = export(trained("atari/pong", tmp_path / "run"))
    steps = {step.pop("step"): step for step in done.contract["observation_pipeline"]}
    assert [*steps][3:7] == ["grey scale", "brighter of the last two frames", "resize", "stack"], "as the emulator does it"
    assert steps["repeat the action"]["frames"] == done.contract["environment"]["frames_per_step"] == 4
    assert steps["resize"] == {"height": 84, "width": 84, "method": "area averaging"}
    assert (steps["stack"]["images"], steps["stack"]["at_reset"]) == (4, "black images before the first")
    observed = headrace.make_vec("atari/pong", 1).reset()[0]
    assert not observed[0, :3].any()
    assert observed[0, 3].any()
    assert steps["time limit"] == {"frames": 108_000}
    assert steps["begin of an episode"] == {"noops": [1, 30], "then_fire": True}
    assert done.contract["outputs"][0]["meanings"][:3] == ["NOOP", "FIRE", "RIGHT"]
    assert done.contract["inputs"][0]["shape"] == ["batch", 4, 84, 84]
    assert done.contract["inputs"][0]["dtype"] == "uint8"


def test_images_are_prepared_in_the_order_and_in_the_way_of_the_contract():
    config = headrace.config.override(Config(env="my/catch"), **{"envs.resize": (84, 84), "envs.grayscale": True})
    first, second, third = contract._pipeline(config, EnvSpec({}, action_spec(spaces.Discrete(2)), frame_stack=2), None)
    assert (first["step"], second["step"], third["step"]) == ("grey scale", "resize", "stack")
    assert second["method"] == "bilinear if both sides shrink by less than 2, else area averaging"
    assert third["at_reset"] == "the first image, repeated"
    masked = headrace.config.override(Config(env="gym/Taxi-v4"), **{"envs.info_action_mask": True})
    (step,) = contract._pipeline(masked, EnvSpec({}, action_spec(spaces.Discrete(6))), None)
    assert step == {"step": "action mask", "from": 'info["action_mask"]', "plain_observation": "under obs"}


@pytest.mark.process
@pytest.mark.parametrize("env", ["vizdoom/health_gathering_supreme", "vizdoom/multi_duel"])
def test_what_doom_does_before_the_file_is_in_its_contract(env):
    pytest.importorskip("vizdoom")
    config = headrace.make_config(env)
    spec = describe_run(config)
    _, actions, made = interface(config, spec)
    steps = {step["step"]: step for step in contract._pipeline(config, spec, made)}
    json.dumps(list(steps.values()), allow_nan=False)
    assert (steps["resize"]["height"], steps["resize"]["width"]) == (72, 128)
    scaled = steps["divide and clip the measurements"]
    assert (scaled["variables"][0], scaled["divisors"][0], scaled["low"][0], scaled["high"][0]) == ("HEALTH", 30, 0, None)
    assert steps["time limit"]["frames"] == 2100
    meanings = contract._meanings(config, actions[0], made)
    assert len(meanings) == actions[0].space.n
    assert "nothing" in meanings
    made.close()


@pytest.mark.process
def test_dynamo_and_the_command(cartpole, tmp_path, capsys):
    assert cli.main(["export", str(cartpole), "--to", str(tmp_path / "a.onnx"), "--episodes", "3"]) == 0
    said = capsys.readouterr().out
    assert "exporter dynamo" in said
    assert "largest difference" in said
    assert "mean return" in said
    assert cli.main(["eval", str(tmp_path / "a.onnx"), "--env", "gym/CartPole-v0", "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["env"] == "gym/CartPole-v0"


# -- what is refused ------------------------------------------------------------------------------------------------------


def test_a_file_that_computes_something_else_is_not_kept(tmp_path):
    run = trained("gym/CartPole-v1", tmp_path / "run", **{"imports": [WORLDS], "policy.encoder": "other-when-exported"})
    with pytest.raises(ExportError, match=r"output logits differs from the policy's by"):
        export(run, to=tmp_path / "policy.onnx")
    assert not list(tmp_path.glob("policy*"))


def test_an_operator_without_a_form_in_onnx_is_named(tmp_path):
    run = trained("gym/CartPole-v1", tmp_path / "run", **{"imports": [WORLDS], "policy.encoder": "inverse"})
    with pytest.raises(ExportError, match=r"aten.linalg_eigvals"):
        export(run)


def test_a_batch_size_that_was_recorded_is_noticed(tmp_path):
    """PyTorch's older exporter writes the example's numbers into the file where a network makes Python's of them."""
    run = trained("gym/CartPole-v1", tmp_path / "run", **{"imports": [WORLDS], "policy.encoder": "fixed-when-recorded"})
    with pytest.raises(ExportError, match="onnxruntime fails with a batch of 1"):
        export(run)
    assert not list((tmp_path / "run").glob("policy*"))


def test_impossible_requests(cartpole, tmp_path, capsys, monkeypatch):
    with pytest.raises(ConfigError, match="no run folder"):
        export(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"must end in \.onnx"):
        export(cartpole, to=tmp_path / "policy.pt")
    with pytest.raises(ConfigError, match="no folder"):
        export(cartpole, to=tmp_path / "nowhere" / "policy.onnx")
    with pytest.raises(ConfigError, match="no file"):
        headrace.load_policy(tmp_path / "policy.onnx")
    (tmp_path / "policy.onnx").write_bytes(b"no model")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        headrace.load_policy(tmp_path / "policy.onnx")
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    assert cli.main(["export", str(cartpole)]) == 2
    assert 'pip install "headrace[export]"' in capsys.readouterr().err


def test_another_environment_must_observe_and_act_alike(cartpole, tmp_path):
    path = export(cartpole, to=tmp_path / "policy.onnx").path
    assert headrace.load_policy(path, env="gym/CartPole-v0").spec.name == "gym/CartPole-v0"
    with pytest.raises(ConfigError, match="is for observations"):
        headrace.load_policy(path, env="gym/Acrobot-v1")


def test_damaged_contracts_are_named(cartpole, tmp_path):
    """Whatever a contract holds, what is wrong is said; the file's own inputs and outputs are the measure."""
    onnx = pytest.importorskip("onnx")
    path = export(cartpole, to=tmp_path / "policy.onnx").path
    model = onnx.load(path)
    contract = json.loads(model.metadata_props[0].value)

    def refused(said, match):
        onnx.helper.set_model_props(model, {CONTRACT_KEY: said if isinstance(said, str) else json.dumps(said)})
        other = tmp_path / "other.onnx"
        onnx.save(model, other)
        with pytest.raises(ConfigError, match=match):
            headrace.load_policy(other)

    refused("{no JSON", "damaged")
    refused([1, 2], "contract version None")
    refused(contract | {"contract": 2}, "contract version 2; this version reads 1")
    refused({key: contract[key] for key in contract if key != "environment"}, "'environment' is a required property")
    refused(contract | {"inputs": "obs"}, r"\$.inputs: 'obs' is not of type 'array'")
    refused(contract | {"inputs": contract["inputs"][:1], "core": None}, "has other inputs than the file")
    renamed = [contract["inputs"][0] | {"name": "picture"}, *contract["inputs"][1:]]
    refused(contract | {"inputs": renamed}, "has other inputs than the file")
    refused(contract | {"outputs": contract["outputs"][:1]}, "has other outputs than the file")


def test_a_damaged_file_is_noticed_by_its_digest(cartpole, tmp_path):
    path = export(cartpole, to=tmp_path / "policy.onnx").path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # of a weight: onnxruntime sees nothing
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="SHA-256"):
        headrace.load_policy(path)


def test_addresses_in_a_file_are_not_dialled(cartpole, tmp_path):
    onnx = pytest.importorskip("onnx")
    path = export(cartpole, to=tmp_path / "policy.onnx").path
    model = onnx.load(path)
    contract = json.loads(model.metadata_props[0].value)
    contract["environment"]["settings"] |= {"remote": "stranger.example:1", "remote_token_file": "/etc/hostname"}
    onnx.helper.set_model_props(model, {CONTRACT_KEY: json.dumps(contract)})
    onnx.save(model, tmp_path / "other.onnx")
    envs = headrace.load_policy(tmp_path / "other.onnx").config.envs
    assert (envs.remote, envs.remote_token_file) == (None, None)


def test_other_files_are_not_overwritten(cartpole, tmp_path):
    before = (Path(cartpole) / "config.json").read_bytes()
    with pytest.raises(ConfigError, match=r"config\.json, where the contract would be written, is another file"):
        export(cartpole, to=Path(cartpole) / "config.onnx")
    assert (Path(cartpole) / "config.json").read_bytes() == before
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.onnx cannot be written: it is no regular file"):
        export(cartpole, to=tmp_path / "folder.onnx")


@pytest.mark.process
def test_a_population_needs_a_number(tmp_path):
    run = trained("gym/CartPole-v1", tmp_path / "run", **{"population.size": 2, "sampling.placement": "served"})
    with pytest.raises(ConfigError, match="2 policies: choose one with --policy"):
        export(run)
    assert export(run, policy=1).path.name == "policy-1.onnx"


@pytest.mark.process
def test_an_agent_with_spaces_of_its_own_plays_from_the_file(tmp_path, monkeypatch):
    """The contract's return was refused: the games are played by the file, which was missing among the players."""
    population = {"population.size": 2, "matches.matchmaker": "fixed", "sampling.placement": "served"}
    run = trained("odd/unlike", tmp_path / "run", imports=[WORLDS], **population)
    played = []
    own = OnnxPolicy.act_rows
    monkeypatch.setattr(OnnxPolicy, "act_rows", lambda self, *a, **how: (played.append(self), own(self, *a, **how))[1])
    done = export(run, policy=1, episodes=2)
    assert len(played) == 3, "both matches together, step by step"
    assert done.contract["evaluation"]["mean"] == headrace.evaluate(run, 2, number=1, deterministic=True).mean


def test_code_of_the_environment_runs_only_if_it_is_named(tmp_path, monkeypatch, capsys):
    run = trained("odd/cartpole", tmp_path / "run", imports=[WORLDS])
    path = export(run).path
    monkeypatch.setattr("headrace.envs.core.imports.imported", tuple)
    with pytest.raises(ImportsNotGiven, match=r"odd_worlds\.py"):
        headrace.load_policy(path)
    capsys.readouterr()
    assert cli.main(["eval", str(path), "--episodes", "2"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"headrace: {path} (odd/cartpole) needs Python code that it names:\n  odd_worlds.py\n")
    assert said.endswith(f"headrace eval {path} --episodes 2 --import odd_worlds.py\n")
    assert headrace.load_policy(path, imports=[WORLDS]).config.env == "odd/cartpole"


def test_a_full_disk_leaves_no_half_file(cartpole, tmp_path, monkeypatch):
    real = files.write_synced

    def full(path: Path, data: bytes) -> str:
        if path.name.endswith(".json"):
            path.write_bytes(data[: len(data) // 2])
            raise OSError(28, "No space left on device", str(path))
        return real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_synced", full)
        with pytest.raises(OSError, match=r"No space left.*policy\.json"):
            export(cartpole, to=tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
    # what was exported before stays, both files of it
    path = export(cartpole, to=tmp_path / "policy.onnx").path
    monkeypatch.setattr(files, "write_synced", full)
    with pytest.raises(OSError, match="No space left"):
        export(cartpole, to=path, licence="mit")
    assert headrace.load_policy(path).contract["licence"] is None
    assert len(list(tmp_path.iterdir())) == 2


def test_actions_are_compared_not_only_what_they_come_from(cartpole, tmp_path, monkeypatch):
    from headrace.evaluation.module import PolicyModule

    own = PolicyModule._action
    monkeypatch.setattr(PolicyModule, "_action", lambda self, *how: torch.ones_like(own(self, *how)))
    with pytest.raises(ExportError, match="output action"):
        export(cartpole, to=tmp_path / "policy.onnx")
