"""`headrace tune`: a real, short search on CartPole, and what `headrace train` makes of its result."""

import json
import os
import random
import re
import shlex

import pytest

from headrace import cli, tune
from headrace.cli.flags import parse_config
from headrace.config import ConfigError
from headrace.make_config import check_config, make_config

ENV = "gym/CartPole-v1"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Results go to a folder of the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "headrace" / "tuned"


@pytest.mark.process
def test_a_short_search_writes_what_train_starts_from(home, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    # Little is left to choose, so that the test is short, and nothing is left out on a busy machine.
    fixed = ["--num-workers", "1", "--sampling.min-request-groups=1", "--num-policy-workers", "1", "--num-threads", "1"]
    monkeypatch.setattr(tune.Search, "left", property(lambda search: search.seconds))
    monkeypatch.setattr(tune, "FINAL", -1000.0)
    measure = tune.Search.measure
    monkeypatch.setattr(tune.Search, "measure", lambda search, trial, share: measure(search, trial, 1.0))
    monkeypatch.setattr(tune.Search, "compare", lambda search, default, best: (True, "+10%"))
    monkeypatch.setattr(tune, "HELPS", 0.0)
    assert cli.main(["tune", ENV, "--minutes", "0.02", "--envs-per-worker", "16", *fixed]) == 0
    said = capsys.readouterr().out
    assert "placement inline" in said
    assert "steps/s" in said
    assert " left  the defaults:" in said
    assert "num_workers" not in said, "the user's own flags stay as they are"
    (file,) = home.iterdir()
    assert str(file) in said
    found = json.loads(file.read_text())
    measured = {json.dumps(t["settings"]): t for t in found["trials"]}
    assert all(rate > 0 for rate in measured["{}"]["steps_per_second"])
    assert found["settings"] in [t["settings"] for t in found["trials"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config", "temporary"], "no run folder is left"
    assert not [name for name in os.listdir(tmp_path / "temporary") if name.startswith("headrace")]


@pytest.mark.process
@pytest.mark.parametrize(("env", "flags"), [
    (ENV, ["--learning.algorithm", "impala", "--policy.core", "lstm"]),
    ("pettingzoo/connect_four_v3", []),
])  # fmt: skip
def test_policies_that_observe_their_last_action_and_several_agents_can_be_tuned(env, flags, home, capsys):
    few = ["--num-workers", "1", "--envs-per-worker", "8", "--minutes", "0.01"]
    found = write(home, {"sampling.min_request_groups": 1}, env)
    assert cli.main(["tune", env, *few, *flags]) == 0, capsys.readouterr()
    assert "steps/s" in (said := capsys.readouterr().out)
    assert "Nothing is written, and what was found before stays" in said, "there was no time to compare anything"
    assert json.loads(found.read_text())["settings"] == {"sampling.min_request_groups": 1}


def write(home, settings, env=ENV):
    config = make_config(env, **{"learning.device": "cpu"})
    path = tune.path(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"settings": settings}))
    return path


def test_train_starts_from_the_result_and_flags_win(home):
    write(home, {"sampling.num_workers": 3, "sampling.placement": "inline"})
    config = parse_config(["--env", ENV])
    assert (config.sampling.num_workers, config.sampling.placement) == (3, "inline")
    assert tune.in_use(config) == {"sampling.num_workers": 3, "sampling.placement": "inline"}
    config = parse_config(["--env", ENV, "--num-workers", "2"])
    assert (config.sampling.num_workers, config.sampling.placement) == (2, "inline")
    assert tune.in_use(config) == {"sampling.placement": "inline"}
    assert parse_config(["--env", ENV, "--algorithm", "apex-dqn"]).sampling.placement == "served", "another algorithm"
    assert make_config(ENV).sampling.placement == "served", "programs say what they want"


def test_a_papers_numbers_are_not_replaced_by_what_was_found_for_small_ones(home):
    write(home, {"sampling.num_workers": 4, "sampling.envs_per_worker": 8, "sampling.num_groups": 1, "learning.batch_size": 512})
    paper = ["--env", ENV, "--algorithm", "ppo", "--learning.preset", "paper"]
    config = parse_config(paper)
    assert (config.num_envs, config.learning.batch_size) == (1, 2048), "Schulman et al. 2017, Table 3"
    tune.path(config).write_text('{"settings": {"sampling.placement": "inline"}}')
    assert parse_config(paper).sampling.placement == "inline"
    assert parse_config(paper[:-2]).sampling.placement == "served"


def test_a_result_of_another_machine_is_not_used(home, monkeypatch):
    path = write(home, {"sampling.num_workers": 3})
    path.rename(path.with_name(path.name.replace("-cores-cpu", "0-cores-cpu").replace("-cores-cuda", "0-cores-cuda")))
    assert tune.load(make_config(ENV)) == {}


@pytest.mark.parametrize("text", ["{", "{}", '{"settings": {"learning.gamma": 0.5}}'])
def test_a_file_that_is_no_result_is_refused(home, text):
    path = write(home, {})
    path.write_text(text)
    with pytest.raises(ConfigError, match="remove it"):
        tune.load(make_config(ENV))


def test_what_is_tried_is_possible_and_changes_something():
    config = make_config("gym/CartPole-v1")
    singles = tune.single_changes(config, ())
    assert {"sampling.placement": "inline"} in singles
    assert all(singles.count(s) == 1 for s in singles)
    for settings in singles:
        assert any(tune._effective(config)[name] != value for name, value in settings.items())
        assert "learning.batch_size" not in settings, "the algorithm stays what it is"
    assert {"learning.batch_size": 1024} in tune.single_changes(config, (), [1024])
    assert not any("sampling.placement" in s for s in tune.single_changes(config, {"sampling.placement"}))


def test_what_helped_is_combined():
    config = make_config("gym/CartPole-v1")
    default = tune.Trial({}, [100.0])
    singles = [
        tune.Trial({"sampling.placement": "inline"}, [120.0]),
        tune.Trial({"sampling.num_workers": 2}, [110.0]),
        tune.Trial({"sampling.num_workers": 4}, [105.0]),
        tune.Trial({"learning.num_threads": 2}, [101.0]),
    ]
    assert tune.combined(config, default, singles) == {"sampling.placement": "inline", "sampling.num_workers": 2}


@pytest.mark.parametrize(
    ("gain", "spread", "pairs", "kept"),
    [
        (1.2, 0.01, 3, True),
        (1.2, 0.15, 6, True),  # it takes more trials
        (1.1, 0.5, 6, False),  # one trial of each, on a busy machine, has either sign
        (1.0, 0.01, 3, False),
        (1.02, 0.001, 3, False),  # faster, and not worth it
    ],
)
def test_a_candidate_is_kept_when_its_gain_is_above_the_spread(monkeypatch, gain, spread, pairs, kept):
    clock, chance = [0.0], random.Random(3)

    def measure(config, spec, seconds):
        clock[0] += seconds
        return 1000.0 * (gain if config.sampling.num_workers == 3 else 1.0) * chance.uniform(1 - spread, 1 + spread)

    monkeypatch.setattr(tune, "monotonic", lambda: clock[0])
    monkeypatch.setattr(tune, "measure", measure)
    search = tune.Search(make_config(ENV), None, 80, lambda line: None)
    default, best = tune.Trial({}), tune.Trial({"sampling.num_workers": 3})
    faster, found = search.compare(default, best)
    assert faster == kept, found
    assert 3 <= len(best.rates) == len(default.rates) <= pairs


def test_what_was_found_is_forgotten(home, capsys):
    path = write(home, {"sampling.num_workers": 3})
    assert cli.main(["tune", ENV, "--forget"]) == 0
    assert f"Deleted: {path}" in capsys.readouterr().out
    assert list(home.iterdir()) == []
    assert cli.main(["tune", ENV, "--forget"]) == 0
    assert "nothing to forget" in capsys.readouterr().out


def test_the_command_that_forgets_what_train_uses_names_its_algorithm(home, tmp_path, capsys):
    other = write(home, {"sampling.num_workers": 3})
    flags = ["--env", ENV, "--learning.algorithm", "a2c", "--learning.preset", "paper", "--learning.device", "cpu"]
    found = tune.path(parse_config(flags))
    found.write_text('{"settings": {"sampling.min_request_groups": 1}}')
    quiet = ["--total-steps", "80", "--run.folder", str(tmp_path / "run"), "--run.no-dashboard", "--run.no-video"]
    assert cli.main(["train", *flags, *quiet]) == 0
    said = re.search(r"\(headrace (tune .+) removes (\S+)\)", capsys.readouterr().out)
    assert said is not None
    assert said[2] == str(found)
    assert cli.main(shlex.split(said[1])) == 0
    assert list(home.iterdir()) == [other]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--algorithm", "apex-dqn"], "with replay, learning is not tied to steps"),
        (["--placement", "serial"], "nothing to choose"),
        (["--batch-size", "1000"], "Nearest"),
    ],
)
def test_what_cannot_be_tuned_is_said(flags, words, capsys):
    assert cli.main(["tune", ENV, *flags]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.process
def test_an_environment_that_fails_ends_with_its_error(tmp_path, capsys):
    worlds = os.path.join(os.path.dirname(__file__), "faults", "worlds.py")
    kwargs = '{"fault": "raise", "at": 1}'
    assert cli.main(["tune", "faulty", "--import", worlds, "--envs.kwargs", kwargs, "--minutes", "0.1"]) == 1
    assert "the world is broken" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_noticed_before_the_search(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tune.Search, "run", lambda *_: pytest.fail("it has searched"))
    assert cli.main(["tune", ENV]) == 2
    assert "cannot be written: Not a directory" in capsys.readouterr().err


def test_a_user_without_a_home_directory_has_found_nothing(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(tune.Path, "home", no_home)
    config = make_config(ENV)
    assert tune.load(config) == {}
    with pytest.raises(ConfigError, match="no home directory"):
        tune.path(config)


def test_a_candidate_whose_error_says_nothing_is_one_that_failed(monkeypatch):
    def measure(config, spec, seconds):
        raise MemoryError

    monkeypatch.setattr(tune, "measure", measure)
    shown = []
    trial = tune.Trial({"sampling.num_workers": 64})
    tune.Search(make_config(ENV), None, 60, shown.append).measure(trial, 5.0)
    assert trial.error == "MemoryError"
    assert shown[0].endswith("num_workers 64: MemoryError")


def test_sizes_that_follow_from_others_fit_the_result(home):
    write(home, {"sampling.envs_per_worker": 32})
    for flags in (["--rollout", "64"], ["--num-groups", "1"]):
        config = parse_config(["--env", ENV, *flags])
        assert config.sampling.envs_per_worker == 32
        check_config(config)
        assert "learning.batch_size" in config.defaults
