"""Words of other libraries, and misspelt ones, lead to the settings that are meant."""

from __future__ import annotations

import pytest

from headrace import make_config
from headrace.cli import main
from headrace.cli.flags import parse_config
from headrace.config import Config, ConfigError, flattened, to_dict
from headrace.config.suggestions import WORDS, suggestions
from headrace.envs.core.errors import UnknownEnvironment

SETTINGS = flattened(to_dict(Config()))


def test_the_table_leads_to_settings_and_hides_none() -> None:
    assert not WORDS.keys() - SETTINGS.keys()
    plain = {name.rpartition(".")[2] for name in SETTINGS}
    assert not plain & {word for words in WORDS.values() for word in words.split()}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--lr=1", "--learning.learning-rate"),
        ("--bacth-size=1", "--learning.batch-size"),
        ("--total-timesteps=1", "--learning.total-steps"),
        ("--num-envs=1", "--sampling.num-workers or --sampling.envs-per-worker"),
        ("--sed=1", "--seed"),
        ("--no-capture-video", "--run.no-video"),
        ("--no-run.track", "--run.no-track"),
        ("--train.gamma=1", "--learning.gamma"),
        ("--exploration_loss_coeff=1", "--learning.entropy-coef"),
    ],
)
def test_flags(given: str, meant: str) -> None:
    flag = given.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"^there is no flag {flag}; did you mean {meant}\?$"):
        parse_config([given, "--env", "gym/CartPole-v1"])


def test_a_flag_that_is_like_nothing() -> None:
    with pytest.raises(ConfigError, match="there is no flag --frobnicate; headrace train --help-all shows every flag"):
        parse_config(["--frobnicate", "3"])


def test_settings_in_python() -> None:
    assert suggestions("learning.gama", SETTINGS) == ["learning.gamma"]
    for name, meant in [("learning.lr", "learning.learning_rate"), ("num_workers", "sampling.num_workers")]:
        with pytest.raises(ConfigError, match=rf"there is no setting '{name}'; did you mean {meant}\?"):
            make_config("gym/CartPole-v1", **{name: 1})


@pytest.mark.parametrize(
    "name", ["ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4", "ale_py:ALE/MsPacman-v5", "atari_mspacman", "MsPacman"]
)
def test_atari_ids_of_other_libraries(name: str) -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(UnknownEnvironment, match=f"there is no environment '{name}'; it is atari/ms_pacman here"):
        make_config(name)


def test_the_environment_needs_no_flag() -> None:
    assert parse_config(["gym/CartPole-v1", "--seed", "3"]).env == "gym/CartPole-v1"
    with pytest.raises(ConfigError, match="'gym/CartPole-v1' and --env both name an environment"):
        parse_config(["gym/CartPole-v1", "--env=atari/pong"])


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headrace 0.")


def test_families_without_packages_are_named_only_if_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for pattern, asked in (("CartPole", False), ("gym/*", False), ("dmlab", True), ("dmlab/rooms*", True), ("", True)):
        main(["envs", pattern] if pattern else ["envs"])
        assert ("dmlab environments need packages" in capsys.readouterr().err) == asked, pattern
