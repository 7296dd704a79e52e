"""Training with environments of a server, end to end."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from remote_servers import NAME, ServerProcess, free_port, offer, serving

from headrace import cli
from headrace import config as configs
from headrace.config import Config, ConfigError
from headrace.envs.remote.server import make_offer
from headrace.evaluation.evaluate import evaluate
from headrace.make_config import make_config
from headrace.runs.metrics import read_jsonl
from headrace.train import train

TESTS = Path(__file__).parents[2]
COUNTING = str(TESTS / "sampling" / "counting.py")
EXAMPLE = str(TESTS.parent / "examples" / "my_env.py")
pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


def counting_config(folder: Path, remote: str, **settings: object) -> Config:
    """A run of 6 environments that checks every number it learns from."""
    values = {
        "run.folder": str(folder),
        "run.dashboard": False,
        "run.video": False,
        "run.log_interval": 0.2,
        "sampling.num_workers": 2,
        "sampling.envs_per_worker": 6,
        "sampling.num_groups": 2,
        "sampling.rollout": 7,
        "learning.batch_size": 7 * 3 * 4,
        "learning.total_steps": 3000,
        "learning.algorithm": "counting",
        "learning.device": "cpu",
        "envs.remote": remote,
    }
    return configs.override(Config(env="counting", imports=(COUNTING,)), **{**values, **settings})


@pytest.mark.parametrize("placement", ["served", "inline", pytest.param("serial", marks=pytest.mark.slow)])
def test_every_row_is_where_it_belongs(tmp_path: Path, placement: str) -> None:
    server = ServerProcess("--import", COUNTING, "--num-envs", "12", env="counting")
    try:
        server.start(tmp_path / "server.log")
        entries = f"{server.address},local" if placement == "inline" else server.address
        result = train(counting_config(tmp_path / "run", entries, **{"sampling.placement": placement}))
        assert result.global_step >= 3000
        rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
        assert rows[-1]["losses/rows_checked"] > 0
        assert rows[-1].get("sampling/faults", 0) == 0
    finally:
        server.kill()


def test_the_trainer_need_not_know_the_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = ServerProcess("--import", EXAMPLE, "--num-envs", "32", "--envs.max-episode-steps", "5", env="my/catch")
    try:
        server.start(tmp_path / "server.log")
        flags = ["train", "--env", "my/catch", "--envs.remote", server.address, "--run.folder", str(tmp_path / "run")]
        flags += ["--learning.total-steps", "2000", "--run.no-video", "--run.no-dashboard", "--learning.device", "cpu"]
        flags += ["--policy.encoder", "impala-resnet"]
        flags += ["--sampling.rollout", "8", "--learning.batch-size", "256", "--envs-per-worker", "16", "--num-workers", "2"]
        assert cli.main(flags) == 0
        config = json.loads((tmp_path / "run" / "config.json").read_text())
        assert config["envs"]["max_episode_steps"] == 5, "the server's settings are those of the run"
        assert cli.main([*flags, "--run.folder", str(tmp_path / "other"), "--envs.max-episode-steps", "6"]) == 2
        assert "envs.max_episode_steps is 6 for the trainer and 5 at the server" in capsys.readouterr().err
        with pytest.warns(UserWarning, match=r"40 environments are asked for, and 32 of 32 are free.* are played in 32"):
            assert len(evaluate(tmp_path / "run", 40, num_envs=40).lengths) == 40
        assert cli.main(["eval", str(tmp_path / "run"), "--max-episode-steps", "6"]) == 2
        assert "envs.max_episode_steps is 6 for the trainer and 5 at the server" in capsys.readouterr().err
    finally:
        server.kill()


def test_the_servers_defaults_are_the_runs(tmp_path: Path) -> None:
    server = ServerProcess("--num-envs", "4")
    try:
        server.start(tmp_path / "server.log")
        local = make_config("gym/CartPole-v1")
        remote = make_config("gym/CartPole-v1", **{"envs.remote": server.address})
        assert configs.to_dict(remote) == configs.to_dict(configs.override(local, **{"envs.remote": server.address}))
        with pytest.raises(ConfigError, match=r"has gym/CartPole-v1, and gym/Acrobot-v1 is asked for"):
            make_config("gym/Acrobot-v1", **{"envs.remote": server.address})
    finally:
        server.kill()


def test_a_policy_is_loaded_without_a_server_where_its_environment_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, folder = "gym/CartPole-v1", tmp_path / "run"
    with serving(make_offer(env, 4)) as address:
        tiny = {"sampling.placement": "serial", "sampling.envs_per_worker": 4, "learning.total_steps": 64, "run.video": False}
        train(make_config(env, **{"envs.remote": address, "run.folder": str(folder), "run.dashboard": False, **tiny}))
    monkeypatch.setattr("headrace.envs.remote.connect.ask", lambda *_: pytest.fail("the server has gone"))
    assert len(evaluate(folder, 2).returns) == 2


@pytest.mark.parametrize(("env", "rewards"), [("atari/pong", {"reward_clip": 1.0}), ("vizdoom/basic", {"reward_scale": 0.01})])
def test_rewards_and_the_goal_are_those_of_a_run_without_a_server(env: str, rewards: dict[str, float]) -> None:
    if env.startswith("vizdoom/"):
        pytest.importorskip("vizdoom")
    local = make_config(env)
    assert all(getattr(local.envs, name) == value for name, value in rewards.items())
    with serving(make_offer(env, 2)) as address:
        remote = make_config(env, **{"envs.remote": address})
    assert dataclasses.replace(remote.envs, remote=None) == local.envs
    assert remote.run.goal == local.run.goal


def test_a_server_determines_only_what_to_learn_with() -> None:
    made = offer()
    made.defaults |= {"run.folder": "/elsewhere", "envs.remote_ca": "/file", "imports": ["/bad.py"], "learning.gamma": 0.5}
    with serving(made) as address:
        config = make_config(NAME, **{"envs.remote": address})
        assert (config.run.folder, config.envs.remote_ca, config.imports) == (None, None, ())
        assert (config.learning.gamma, config.policy.core) == (0.5, "gru")


def test_without_grpc_only_remote_environments_are_missing() -> None:
    code = "import sys; sys.modules['grpc'] = None\nfrom headrace import cli\n"
    code += "from headrace.make_config import make_config; make_config('gym/CartPole-v1')\n"
    code += "sys.exit(cli.main(['train', '--env', 'gym/CartPole-v1', '--envs.remote', '127.0.0.1:1']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, 'pip install "headrace[remote]"' in done.stderr) == (2, True), done.stderr


def test_the_page_has_the_example() -> None:
    page, example = (TESTS.parent / name for name in ("docs/remote.md", "examples/serve_my_env.py"))
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert code.split() == example.read_text().split('"""')[2].split()


def test_no_server_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.envs.remote import connect

    port = free_port()
    with pytest.raises(ConfigError, match=rf"127.0.0.1:{port}: no connection \(Connection refused\)"):
        connect.ask("my/env", configs.EnvConfig(remote=f"127.0.0.1:{port}"), patience=1.0)
    with pytest.raises(ConfigError, match="'nowhere' is no address"):
        connect.addresses("127.0.0.1:1,nowhere")


def test_groups_take_the_entries_in_turn() -> None:
    from headrace.envs.make import _address

    remote = "a:1, local,listen:127.0.0.1:5"
    assert [_address("my/env", remote, g) for g in range(5)] == ["a:1", None, "listen:127.0.0.1:5", "a:1", None]
