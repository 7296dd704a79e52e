"""config.json: what is saved is loaded, and everything else is refused in one line that names the file and the setting."""

import json
import os

import pytest

from headrace import cli
from headrace import config as configs
from headrace.config import Config, ConfigError, from_dict, override, to_dict
from headrace.config.io import FORMAT


def test_what_is_saved_is_loaded(tmp_path):
    config = override(Config(), **{"envs.resize": (42, 64), "policy.mlp": (), "envs.kwargs": {"a": [1, {"b": None}]}})
    (tmp_path / "config.json").write_text(configs.to_json(config))
    assert configs.load(tmp_path / "config.json") == config
    data = json.loads((tmp_path / "config.json").read_text())
    assert data["format"] == FORMAT
    assert data["seed"] == 0


def test_missing_settings_have_their_defaults_in_programs():
    assert from_dict({"learning": {"gamma": 0.5}}) == override(Config(), **{"learning.gamma": 0.5})


@pytest.mark.parametrize("name", ["gama", "learning.gama", "learning.gamma.x", "nowhere.gamma", "envs.kwargs.a"])
def test_override_knows_its_settings(name):
    with pytest.raises(ConfigError, match=f"there is no setting '{name}'"):
        override(Config(), **{name: 1})


@pytest.mark.parametrize("value", [{"gamma": 0.5}, {}, 0.5])
def test_a_group_is_not_replaced_by_a_part_of_it(value):
    """The other settings of the group would get the defaults of the code."""
    with pytest.raises(ConfigError, match=r"learning is a group of settings: .* such as 'learning\.(gamma|algorithm)'"):
        override(Config(), learning=value)
    learning = override(Config(), **{"learning.gamma": 0.5}).learning
    assert override(Config(), learning=learning).learning == learning


def saved(tmp_path, change):
    path = tmp_path / "config.json"
    path.write_text(configs.to_json(Config()))
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.pop("format"), "it has format 1, not 2. The run was made by an older version of headrace: "),
        (lambda data: data.update(format=99), "it has format 99, not 2. The run was made by a newer version"),
        (lambda data: data.update(format="x"), "made by an older version"),
        (lambda data: data.update(gama=1), r"its settings do not fit \(unknown: gama\). The run was made by another version"),
        (lambda data: data["run"].update(fresh=True), r"\(unknown: run.fresh\)"),
        (lambda data: data["learning"].pop("gamma"), r"\(missing: learning.gamma\)"),
        (lambda data: data.pop("q"), r"\(missing: q, q\.actor_layers, .* and \d+ more\)"),
        (lambda data: data.update(run=[]), r"missing: run\.checkpoint_interval, .* and \d+ more"),
        (lambda data: data["learning"].update(gamma="high"), "learning.gamma is 'high'; it must be a number"),
        (lambda data: data["learning"].update(gamma=7), "learning.gamma is 7; it must be at most 1"),
        (lambda data: data["sampling"].update(num_workers=2.5), "sampling.num_workers is 2.5; it must be a whole number"),
        (lambda data: data["sampling"].update(pin_workers=1), "sampling.pin_workers is 1; it must be true or false"),
        (lambda data: data["policy"].update(mlp=[64, [64]]), r"policy.mlp is \(64, \[64\]\); each must be a whole number"),
        (lambda data: data["policy"].update(core="rnn"), "policy.core is 'rnn'; it must be one of none, gru, lstm"),
        (lambda data: data["run"].update(folder=["a"]), r"run.folder is \('a',\); it must be text"),
    ],
)
def test_a_run_folder_that_does_not_fit_is_refused_in_one_line(tmp_path, change, words, capsys):
    path = saved(tmp_path, change)
    with pytest.raises(ConfigError, match=words) as refused:
        configs.load(path)
    assert str(refused.value).startswith(f"{path} is no configuration of this version: ")
    assert "\n" not in str(refused.value)
    assert cli.main(["eval", str(tmp_path)]) == 2
    assert cli.main(["train", "--env", "gym/CartPole-v1", "--run.folder", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count(f"headrace: {path} is no configuration of this version: ") == 2


def test_a_file_from_before_some_settings_came_is_read_with_their_defaults(tmp_path):
    def older(data):
        del data["cluster"], data["sampling"]["policy_lag"], data["policy"]["previous_action"], data["policy"]["previous_reward"]
        del data["replay"]["packed_share"]
        data["learning"]["gamma"] = 0.5

    config = configs.load(saved(tmp_path, older))
    assert config.learning.gamma == 0.5
    assert (config.cluster, config.sampling.policy_lag) == (configs.Config().cluster, 0)


def test_a_setting_that_went_is_left_out_where_it_asked_for_nothing(tmp_path):
    assert configs.load(saved(tmp_path, lambda data: data["cluster"].update(min_nodes=None))) == Config()
    with pytest.raises(ConfigError, match=r"\(unknown: cluster.min_nodes\)"):
        configs.load(saved(tmp_path, lambda data: data["cluster"].update(min_nodes=2)))


@pytest.mark.parametrize("text", ["[]", "{", '"x"', "null", "\udcff", "[" * 100_000, '{"format": 2, "run": 3}'])
def test_a_file_that_holds_no_configuration(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"config\.json is no configuration"):
        configs.load(tmp_path / "config.json")


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    reasons = {"pipe": "no regular file", "loop": "Too many levels", "nothing": "No such file", ".": "no regular file"}
    for name, reason in reasons.items():
        with pytest.raises(ConfigError, match=f"{name} is no configuration: .*{reason}.* Put back a copy of the file"):
            configs.load(tmp_path / name)


def test_every_setting_is_in_the_file():
    data = to_dict(Config())
    assert from_dict(data) == Config()
    groups = {"envs", "policy", "sampling", "learning", "replay", "q", "population", "pbt", "matches", "cluster", "run"}
    assert set(data) == groups | {"env", "seed", "imports"}
