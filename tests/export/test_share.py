"""`headrace share`: the folder, the card, the hub's interface."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from exported_runs import WORLDS, trained
from hub_stand_in import Hub

import headrace
from headrace import cli
from headrace import config as configs
from headrace.config import ConfigError
from headrace.envs.core.imports import ImportsNotGiven
from headrace.export import share as sharing
from headrace.make_config import make_config
from headrace.runs.checkpoint import CheckpointError

TOKEN = "hf_a-secret-that-nobody-may-see"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained("gym/CartPole-v1", tmp_path_factory.mktemp("runs") / "cartpole", **{"policy.core": "gru"})


@pytest.fixture(scope="module")
def shared(run, tmp_path_factory):
    """A shared folder, exported by the quicker exporter."""
    own, folder = sharing.export_policy, tmp_path_factory.mktemp("shared") / "me"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "export_policy", lambda *where, **how: own(*where, exporter="torchscript", **how))
        return sharing.share(run, "me/cartpole", folder, episodes=5, licence="apache-2.0", video=False)


def test_folder_and_card(run, shared):
    files = {path.name for path in shared.iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "policy.onnx", "policy.json"} <= files
    card = huggingface_hub.ModelCard.load(shared / "README.md")
    assert card.data.library_name == "headrace"
    assert card.data.license == "apache-2.0"
    assert {"CartPole-v1", "reinforcement-learning", "ppo", "onnx"} <= set(card.data.tags)
    (result,) = card.data.eval_results
    assert (result.task_type, result.metric_type, result.verified) == ("reinforcement-learning", "mean_reward", False)
    played = json.loads((shared / "policy.json").read_text())["evaluation"]
    assert result.metric_value == f"{played['mean']:.2f} +/- {played['std']:.2f}"
    assert "headrace eval hf://me/cartpole" in card.text
    assert str(run) not in "".join(path.read_text(errors="replace") for path in shared.iterdir())


def test_one_episode_has_no_deviation(run, tmp_path):
    sharing.share(run, "me/cartpole", tmp_path / "one", episodes=1, licence="apache-2.0", video=False)
    (result,) = huggingface_hub.ModelCard.load(tmp_path / "one" / "README.md").data.eval_results
    assert "+/-" not in result.metric_value


def test_what_a_shared_policy_and_a_file_do_not_have_is_refused(shared):
    file = shared / "policy.onnx"
    for path, flags in ((shared, {"which": "best"}), (file, {"which": "best"}), (file, {"policy": 7})):
        with pytest.raises(headrace.ConfigError, match="holds one policy of one checkpoint: --policy and --checkpoint choose"):
            headrace.load_policy(path, **flags)


def test_a_shared_folder_is_a_run_folder_for_those_who_play(run, shared, tmp_path, capsys):
    assert headrace.evaluate(shared, 4, seed=2).returns == headrace.evaluate(run, 4, seed=2).returns
    assert headrace.load_policy(shared).step == headrace.load_policy(run).step
    assert cli.main(["eval", str(shared), "--episodes", "1"]) == 0
    copy = shutil.copytree(shared, tmp_path / "copy")
    (copy / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="is damaged"):
        headrace.load_policy(copy)


def test_the_command_on_the_card_names_nothing_of_the_machine():
    given = ["train", "--env", "gym/CartPole-v1", "--run.folder", "/home/me/secret", "--run.no-video", "--learning.lr", "-1e-3",
             "--envs.remote=10.0.0.1:99", "--envs.remote_token_file", "/home/me/token", "--import", "/home/me/o.py"]  # fmt: skip
    kept = ["train", "--env", "gym/CartPole-v1", "--learning.lr", "-1e-3", "--import", "o.py"]
    assert sharing._repeatable(given) == kept
    short = ["train", "gym/CartPole-v1", "--folder", "mine/secret", "--no-video", "--remote", "10.0.0.1:99", "--gamma", "0.9",
             "--remote-token-file=mine/token", "--remote-timeout", "9", "--cluster.listen", "10.0.0.1:5", "--token-file",
             "mine/token", "--cluster.nodes", "2"]  # fmt: skip
    kept = ["train", "gym/CartPole-v1", "--gamma", "0.9", "--remote-timeout", "9", "--cluster.nodes", "2"]
    assert sharing._repeatable(short) == kept, "most flags need no group"


def test_the_command_of_a_run_that_compare_started(tmp_path):
    facts = {"command": ["/x/headrace/cli/__main__.py", "train", "--seed", "1"], "processor": "", "cores": 1, "accelerator": None}
    (tmp_path / "system.json").write_text(json.dumps([facts]))
    assert sharing._origin(tmp_path)[0] == "headrace train --seed 1"


def test_the_shared_settings_name_nothing_of_the_machine():
    config = make_config("gym/CartPole-v1", **{"cluster.nodes": 2, "run.folder": "mine/secret"})
    config.cluster.listen, config.cluster.token_file = "10.0.0.1:5", "mine/token"
    config.matches.opponents = ("random", "/home/mine/runs/old")
    text = configs.to_json(sharing._public(config))
    assert "10.0.0.1" not in text
    assert "mine" not in text
    assert config.matches.opponents[1] == "/home/mine/runs/old", "the run's own settings stay"


def test_a_policy_of_several_is_shared_with_its_own_curve(tmp_path):
    run = trained("gym/CartPole-v1", tmp_path / "run", **{"population.size": 2, "sampling.num_workers": 2})
    folder = sharing.share(run, "me/second", tmp_path / "shared", policy=1, episodes=2, video=False)
    assert headrace.load_policy(folder).config.population.size == 1
    second = Path(run) / "policy-1"
    expected = list(second.glob("curve.jsonl"))
    assert (folder / "curve.png").exists() == bool(expected and expected[0].read_text())


def test_addresses_of_a_strangers_run_are_not_dialled(shared, tmp_path):
    copy = shutil.copytree(shared, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config["envs"] |= {"remote": "stranger.example:1", "remote_token_file": "/etc/hostname"}
    (copy / "config.json").write_text(json.dumps(config))
    envs = headrace.load_policy(copy).config.envs
    assert (envs.remote, envs.remote_token_file) == (None, None)


def test_a_name_that_the_hub_refuses_is_said_before_the_work(run, tmp_path):
    with pytest.raises(ConfigError, match="Repo id must be"):
        sharing.share(run, "no name/../x", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_code_of_a_strangers_run_does_not_run(shared, tmp_path, monkeypatch):
    copy = shutil.copytree(shared, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"imports": ["theirs.py"]}))
    (copy / "theirs.py").write_text("raise SystemExit('it ran')")
    monkeypatch.chdir(copy)
    with pytest.raises(ImportsNotGiven, match=r"theirs\.py"):
        headrace.load_policy(copy)
    assert headrace.load_policy(copy, imports=[WORLDS]).config.env == "gym/CartPole-v1"


def test_what_cannot_be_shared_leaves_no_folder(run, tmp_path):
    with pytest.raises(ConfigError, match="is no run folder"):
        sharing.share(tmp_path / "none", "me/cartpole")
    with pytest.raises(ConfigError, match="is no name of a repository"):
        sharing.share(run, "../../elsewhere", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_is_no_shared_policy_is_not_replaced(run, tmp_path):
    """A run's settings, the page of a project."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("mine")
    for name, folder in (("config.json", Path(run)), ("README.md", tmp_path / "project")):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(ConfigError, match=f"{name}, .* is no file of a shared policy: choose another folder with --to"):
            sharing.share(run, "me/cartpole", folder, video=False)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_what_an_earlier_policy_left_is_not_shared(run, tmp_path):
    """Its demo has its weights, its video shows it."""
    (folder := tmp_path / "shared").mkdir()
    for name in ("model.safetensors", "demo.html", "replay.mp4", "curve.png", "notes.txt"):
        (folder / name).write_text("earlier")
    sharing.share(run, "me/cartpole", folder, episodes=0, video=False)
    assert not (folder / "demo.html").exists()
    assert not (folder / "replay.mp4").exists()
    assert not (folder / "curve.png").exists() or (folder / "curve.png").read_bytes() != b"earlier"
    assert (folder / "notes.txt").read_text() == "earlier", "somebody else's"
    assert "demo.html" not in (folder / "README.md").read_text()


@pytest.mark.process
def test_push_and_fetch(run, tmp_path):
    hub = Hub()
    environment = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
    }

    def headrace_(*arguments):
        command = [sys.executable, "-m", "headrace.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=280)

    done = headrace_("share", run, "--repo", "me/cartpole", "--to", "out", "--episodes", "2", "--no-video", "--push")
    assert done.returncode == 0, done.stderr
    assert {"README.md", "config.json", "model.safetensors", "policy.onnx"} <= hub.repos["me/cartpole"].keys()
    assert f"Bearer {TOKEN}" in hub.tokens
    played = headrace_("eval", "hf://me/cartpole", "--episodes", "2", "--json")
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout)["returns"] == headrace.evaluate(run, 2).returns
    assert not any("policy.onnx" in request for request in hub.requests if "/resolve/" in request)
    missing = headrace_("eval", "hf://me/nothing")
    assert missing.returncode == 2
    assert "hf://me/nothing cannot be fetched" in missing.stderr
    hub.repos["me/other"] = {"config.json": b"{}", "evil.py": b"raise SystemExit('it ran')"}
    other = headrace_("eval", "hf://me/other")
    assert other.returncode == 2
    assert "was not written by headrace share: it has no model.safetensors" in other.stderr
    everything = "".join(each.stdout + each.stderr for each in (done, played, missing))
    files = [path for folder in (tmp_path / "out", run) for path in Path(folder).rglob("*") if path.is_file()]
    assert TOKEN not in everything
    assert not any(TOKEN.encode() in path.read_bytes() for path in files)


def test_without_the_extra(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r'pip install "headrace\[hub\]"'):
        headrace.load_policy("hf://me/cartpole")
