"""`headrace search`: what it may try, the file of its best trial, and a real search that is killed and goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from headrace import cli
from headrace.cli.compare import check_combinations, flags_for_all
from headrace.cli.flags import learning_flags, parse_config
from headrace.cli.search import default_over
from headrace.config import NAMES, ConfigError
from headrace.experiments import search as searching
from headrace.experiments.places import Cores
from headrace.experiments.plan import Plan
from headrace.experiments.search import Search, Searcher, searched_before
from headrace.experiments.space import Dimension, default_ranges, parse_over
from headrace.experiments.trials import searched
from headrace.learning.algorithm import algorithm_names, declaration
from headrace.make_config import make_config
from headrace.runs.plots import RETURNS

CARTPOLE = "gym/CartPole-v1"


class Chosen:
    """An Optuna trial that writes down what it was asked, and answers with the lower end or the first choice."""

    def suggest_float(self, name, low, high, log):
        return low + 1e-9

    def suggest_int(self, name, low, high, log):
        assert isinstance(low, int)
        return low

    def suggest_categorical(self, name, choices):
        return choices[0]


@pytest.mark.parametrize(
    ("text", "default", "expected", "suggested", "held"),
    [
        ("1e-5:1e-2:log", 1e-3, Dimension("a", 1e-5, 1e-2, log=True), "1e-05", 1e-3),
        ("1:8", 4, Dimension("a", 1, 8, whole=True), "1", 4),
        ("0:1", 0.5, Dimension("a", 0, 1), "1e-09", 0.5),
        ("0.9,0.99", 0.99, Dimension("a", choices=("0.9", "0.99")), "0.9", "0.99"),
        ("64 64,256", (256,), Dimension("a", choices=("64 64", "256")), "64 64", "256"),
        ("None,0.2", None, Dimension("a", choices=("None", "0.2")), "None", "None"),
        ("1:2", 5.0, Dimension("a", 1, 2), "1", None),
        ("true,false", False, Dimension("a", choices=("true", "false")), "true", "false"),
    ],
)
def test_dimensions(text, default, expected, suggested, held):
    found = Dimension.parse("a", text, default)
    assert found == expected
    assert found.suggest(Chosen()) == suggested
    assert found.holds(default) == held


@pytest.mark.parametrize("text", ["1", "2:1", "0:1:log", "a:b", "1:2:lin", "1,", "nan:1", "1:inf", ":"])
def test_what_is_no_range(text):
    with pytest.raises(ConfigError, match="--over a="):
        Dimension.parse("a", text, 0.5)


def test_whole_numbers_and_doubles_are_checked():
    with pytest.raises(ConfigError, match="whole number"):
        Dimension.parse("a", "0.5:3", 1)
    for name, whole in (("envs.frame_stack", True), ("learning.num_threads", True), ("envs.reward_clip", False)):
        assert Dimension.parse(name, "1:4", None).whole is whole, "the setting may be none"
    for texts in (["a"], ["=1:2"], ["a="], ["a=1:2", "a=1:3"]):
        with pytest.raises(ConfigError, match="--over"):
            parse_over(texts)


@pytest.mark.parametrize("algorithm", [name for name in algorithm_names() if declaration(name).built_in])
def test_every_algorithm_has_default_ranges_of_its_settings(algorithm):
    ranges = default_ranges(algorithm, continuous=True)
    assert ranges.keys() - default_ranges(algorithm, continuous=False).keys() <= {"policy.initial_std"}
    env = "dm_control/cartpole-swingup" if algorithm == "apex-dpg" else CARTPOLE
    config = make_config(env, algorithm)
    for name, text in ranges.items():
        assert name in NAMES
        group, _, plain = name.partition(".")
        Dimension.parse(name, text, getattr(getattr(config, group), plain))


@pytest.mark.parametrize(("env", "continuous"), [(CARTPOLE, False), ("gym/Pendulum-v1", True)])
def test_the_first_standard_deviation_is_searched_where_actions_are_continuous(env, continuous):
    assert ("policy.initial_std" in default_over(make_config(env))) == continuous


def test_a_search_goes_on_with_what_it_varies(tmp_path):
    assert searched_before(tmp_path) is None
    (tmp_path / "search.json").write_text("{")
    assert searched_before(tmp_path) is None, "that it is damaged is said later"
    (tmp_path / "search.json").write_text(json.dumps({"over": {"learning.gamma": "0.9,0.99"}}))
    assert searched_before(tmp_path) == {"learning.gamma": "0.9,0.99"}


def test_a_preset_file_stands_below_the_flags(tmp_path):
    file = tmp_path / "best.json"
    file.write_text(json.dumps({"about": {}, "flags": ["--learning.learning-rate", "0.005", "--learning.gamma", "0.9"]}))
    base = [CARTPOLE, "--run.folder", str(tmp_path / "run")]
    for flags in (["--preset", str(file), "--gamma", "0.95"], ["--gamma", "0.95", f"--learning.preset={file}"]):
        config = parse_config([*base, *flags])
        assert (config.learning.learning_rate, config.learning.gamma, config.learning.preset) == (0.005, 0.95, "small")
    assert parse_config([*base, "--preset", "paper"]).learning.preset == "paper"


def test_the_runs_of_an_experiment_may_have_a_preset_file(tmp_path):
    (file := tmp_path / "best.json").write_text(
        json.dumps({"flags": ["--learning.learning-rate", "0.005", "--learning.gamma", "0.9"]})
    )
    flags = flags_for_all(["--preset", str(file)], {"learning.gamma"})
    plan = Plan(CARTPOLE, tuple(flags), {"learning.gamma": ("0.95", "0.99")}, (0,), "1k")
    check_combinations(plan)
    configs = [parse_config([*plan.command(one), "--run.folder", str(tmp_path / "run")]).learning for one in plan.runs()]
    assert [(config.learning_rate, config.gamma) for config in configs] == [(0.005, 0.95), (0.005, 0.99)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"), ("[]", "needs a list named flags"), ('{"flags": ["--import", "x.py"]}', "sets imports"),
        ('{"flags": ["--run.folder", "x"]}', "sets run.folder"), ('{"flags": "--gamma 0.9"}', "needs a list named flags"),
        ('{"flags": ["--learning.gamma", "7"]}', "preset.json: learning.gamma is 7"),
        ('{"flags": ["--gama", "0.9"]}', "preset.json: there is no flag --gama"),
    ],
)  # fmt: skip
def test_a_preset_file_is_checked(tmp_path, capsys, content, said):
    file = tmp_path / "preset.json"
    file.write_text(content)
    assert cli.main(["train", CARTPOLE, "--preset", str(file), "--run.folder", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_far_behind_the_others_at_the_same_point_is_ended():
    pytest.importorskip("optuna", reason="the extra lab is not installed")
    key = "1000 at 0.25"
    earlier = [SimpleNamespace(user_attrs={key: value}) for value in (10.0, 20.0, 30.0, 40.0, 50.0)]
    study = SimpleNamespace(get_trials=lambda deepcopy: earlier)
    search = Search(CARTPOLE, (), {}, "1000", 2, "tpe")
    searcher = SimpleNamespace(search=search)

    def look(value, step, trials=study, seed=1000):
        trial = SimpleNamespace(user_attrs={})
        trial.set_user_attr = trial.user_attrs.__setitem__
        one = SimpleNamespace(metrics={"charts/episodic_return_100": value, "global_step": step}, seconds=1.0)
        return Searcher._behind(searcher, trials, trial, seed, one), trial.user_attrs

    assert look(12.0, 200) == (None, {}), "not there yet"
    assert look(21.0, 300) == (None, {key: 21.0})
    assert look(19.0, 300) == (0.25, {key: 19.0})
    few = SimpleNamespace(get_trials=lambda deepcopy: earlier[:4])
    assert look(19.0, 300, few) == (None, {key: 19.0}), "too few to compare with"
    assert look(19.0, 300, seed=1001) == (None, {"1001 at 0.25": 19.0})


def test_a_preset_holds_all_that_the_search_learned_with(tmp_path):
    optuna = pytest.importorskip("optuna", reason="the extra lab is not installed")
    flags = ["--algorithm", "impala", "--import", "worlds.py", "--no-dashboard", "--placement=serial", "--mlp", "8", "9"]
    fixed = learning_flags(flags)
    assert fixed == ["--learning.algorithm", "impala", "--sampling.placement=serial", "--policy.mlp", "8", "9"]
    search = Search(CARTPOLE, tuple(flags), {"learning.gamma": "0.9,0.99"}, "2k", 1, "tpe")
    over = [(Dimension.parse("learning.gamma", "0.9,0.99", 0.98), 0.98)]
    (tmp_path / searching.FILE).write_text(json.dumps(vars(search)))
    train = f"headrace train {CARTPOLE} --import worlds.py"
    searcher = Searcher(search, over, tmp_path, Cores(1), print, fixed, train)
    study = searcher._study()
    kind = {"learning.gamma": optuna.distributions.CategoricalDistribution(("0.9", "0.99"))}
    study.add_trial(optuna.trial.create_trial(values=[1.0], params={"learning.gamma": "0.9"}, distributions=kind))
    searcher._write(study)
    config = parse_config([CARTPOLE, "--preset", str(tmp_path / "best.json"), "--mlp", "7"])
    assert (config.learning.algorithm, config.learning.gamma, config.sampling.placement) == ("impala", 0.9, "serial")
    assert f"`{train} --preset {tmp_path}/best.json` trains with it" in searched(tmp_path).items[0]
    assert config.policy.mlp == (7,), "flags of the command line override the file"
    (tmp_path / "other.json").write_text((tmp_path / "best.json").read_text())
    again = learning_flags(["--preset", str(tmp_path / "other.json"), "--gamma", "0.5"])
    assert again == [*fixed, "--learning.gamma", "0.9", "--learning.gamma", "0.5"], "a search may begin with a preset"


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        ("learning.gamma=0.9:1.5", "learning.gamma is 1.5; it must be at most 1"),
        ("learning.rollout-or-so=1:2", "there is no setting"),
        ("sampling.rollout=0:8", "sampling.rollout is 0; it must be at least 1"),
        ("learning.optimizer=adam,rmspropp", "--learning.optimizer takes adam, rmsprop or rmsprop-tf"),
    ],
)
def test_values_that_the_setting_does_not_take_are_refused_before_the_first_trial(tmp_path, capsys, over, reason):
    flags = ["--over", over, "--over", "learning.normalize-advantages=true,false", "--budget", "1k", "--trials", "1"]
    assert cli.main(["search", CARTPOLE, *flags, "--folder", str(tmp_path / "s")]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_only_how_to_learn_can_be_searched(tmp_path, capsys):
    flags = ["--over", "envs.reward-scale=0.1,0.5", "--budget", "1k", "--folder", str(tmp_path / "s")]
    assert cli.main(["search", CARTPOLE, *flags]) == 2
    assert "--over envs.reward_scale: a search is about how to learn" in capsys.readouterr().err


def test_another_search_in_the_folder_is_refused(tmp_path):
    search = Search(CARTPOLE, (), {"learning.gamma": "0.9,0.99"}, "2k", 2, "tpe")
    search.check_same(tmp_path)
    (tmp_path / searching.FILE).write_text(json.dumps({**vars(search), "budget": "3k"}))
    with pytest.raises(ConfigError, match=r"another search \(differing: budget\)"):
        search.check_same(tmp_path)


def test_with_minutes_as_an_objective_the_report_shows_the_front_and_every_trial_is_a_preset(tmp_path):
    optuna = pytest.importorskip("optuna", reason="the extra lab is not installed")
    search = Search(CARTPOLE, (), {"learning.gamma": "0.9,0.99"}, "2k", 2, "tpe", "score-and-minutes")
    over = [(Dimension.parse("learning.gamma", "0.9,0.99", 0.99), 0.99)]
    searcher = Searcher(search, over, tmp_path, Cores(1), print)
    (tmp_path / searching.FILE).write_text(json.dumps(vars(search)))
    study = searcher._study()
    kind = {"learning.gamma": optuna.distributions.CategoricalDistribution(("0.9", "0.99"))}
    ended = [(20.0, 1.0), (30.0, 2.0), (25.0, 3.0), (30.0, 2.5)]
    for values in ended:
        made = optuna.trial.create_trial(values=values, params={"learning.gamma": "0.9"}, distributions=kind)
        study.add_trial(made)
    searcher._write(study)
    trials = json.loads((tmp_path / "trials.json").read_text())
    beaten = [any(s >= score and m <= minutes and (s, m) != (score, minutes) for s, m in ended) for score, minutes in ended]
    shown = {trial["value"]: trial for trial in trials if trial["value"] is not None}
    assert [trial["best"] for trial in trials if trial["state"] == "complete"] == [not one for one in beaten]
    assert json.loads((tmp_path / "best.json").read_text())["about"]["score"] == 30.0
    assert shown[20.0]["minutes"] == 1.0
    section = searched(tmp_path)
    (front,) = (item.spec for item in section.items if getattr(item, "spec", {}).get("description") == "Score and minutes")
    (rows,) = front["datasets"].values()
    assert {(row["x"], row["y"]) for row in rows if row["g"] == "Pareto front"} == {(1, 20), (2, 30)}
    with pytest.raises(ConfigError, match=r"another search \(differing: objectives\)"):
        Search(CARTPOLE, (), {"learning.gamma": "0.9,0.99"}, "2k", 2, "tpe").check_same(tmp_path)


def test_files_that_a_killed_search_had_not_written_are_written_by_the_same_command(tmp_path):
    optuna = pytest.importorskip("optuna", reason="the extra lab is not installed")
    search = Search(CARTPOLE, (), {"learning.gamma": "0.9,0.99"}, "2k", 1, "tpe")
    searcher = Searcher(search, [(Dimension.parse("learning.gamma", "0.9,0.99", 0.99), 0.99)], tmp_path, Cores(1), print)
    kind = {"learning.gamma": optuna.distributions.CategoricalDistribution(("0.9", "0.99"))}
    made = optuna.trial.create_trial(values=[30.0], params={"learning.gamma": "0.9"}, distributions=kind)
    searcher._study().add_trial(made)
    (tmp_path / "trials.json").write_text("[")
    searcher.run(1)
    assert json.loads((tmp_path / "best.json").read_text())["about"]["score"] == 30.0
    assert [trial["value"] for trial in json.loads((tmp_path / "trials.json").read_text()) if trial["value"]] == [30.0]


def test_a_journal_that_was_cut_short_goes_on_and_a_damaged_one_is_a_short_error(tmp_path):
    optuna = pytest.importorskip("optuna", reason="the extra lab is not installed")
    search = Search(CARTPOLE, (), {"learning.gamma": "0.9,0.99"}, "2k", 1, "tpe")
    searcher = Searcher(search, [(Dimension.parse("learning.gamma", "0.9,0.99", 0.99), 0.99)], tmp_path, Cores(1), print)
    kind = {"learning.gamma": optuna.distributions.CategoricalDistribution(("0.9", "0.99"))}
    for score in (30.0, 40.0):
        made = optuna.trial.create_trial(values=[score], params={"learning.gamma": "0.9"}, distributions=kind)
        searcher._study().add_trial(made)
        with (tmp_path / "journal.log").open("a") as journal:
            journal.write('{"op_code": 6, "work')
    assert [trial.value for trial in searcher._study().trials if trial.value] == [30.0, 40.0]
    text = (tmp_path / "journal.log").read_text()
    for damage in ("no JSON", "{}", "7"):
        (tmp_path / "journal.log").write_text("\n".join([damage, *text.splitlines()[1:], ""]))
        with pytest.raises(ConfigError, match=r"journal\.log is damaged .*move it away"):
            searcher._study()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_comparison_of_which_one_side_failed_goes_on_to_its_end_unless_somebody_stops_it(tmp_path, monkeypatch, stopped):
    class Ends:
        """A runner whose runs fail with the defaults, and end with the trial's settings."""

        def __init__(self, plan, folder, places):
            self.failed, self.stopped = folder.name == "defaults", stopped
            self.runs = [SimpleNamespace(metrics={RETURNS: score}) for score in (10.0, 20.0)]

        def run(self, show):
            return not self.failed

        def failures(self):
            return ["seed-0 failed"] if self.failed else []

    monkeypatch.setattr(searching, "Runner", Ends)
    said = []
    search = SimpleNamespace(env=CARTPOLE, flags=(), budget="1k")
    study = SimpleNamespace(best_trials=[SimpleNamespace(number=3, values=[1.0])])
    searcher = SimpleNamespace(
        folder=tmp_path, search=search, _places=None, _show=said.append, _study=lambda: study,
        _flags=lambda trial: ["--learning.gamma", "0.9"],
    )  # fmt: skip
    if stopped:
        with pytest.raises(KeyboardInterrupt):
            Searcher.test(searcher, 1, lambda plan: nullcontext())
        assert said == ["On unseen seeds: defaults", "seed-0 failed"]
        return
    assert Searcher.test(searcher, 1, lambda plan: nullcontext()) is False, "nobody has stopped it"
    assert said == [
        "On unseen seeds: defaults",
        "seed-0 failed",
        "On unseen seeds: trial-3",
        "On unseen seeds, trial-3 has 15 (10, 20)",
    ]


def test_minutes_that_are_the_same_for_all_runs_are_no_objective(tmp_path, capsys):
    flags = ["--over", "gamma=0.9,0.99", "--budget", "1m", "--objectives", "score-and-minutes", "--folder", str(tmp_path / "s")]
    assert cli.main(["search", CARTPOLE, *flags]) == 2
    assert "needs a --budget of steps" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


@pytest.mark.process
def test_a_trial_without_a_whole_episode_fails_and_the_search_goes_on(tmp_path, capsys):
    flags = ["--over", "gamma=0.9,0.99", "--budget", "100", "--trials", "2", "--seeds", "1", "--placement", "serial"]
    assert cli.main(["search", "gym/Pendulum-v1", *flags, "--folder", str(tmp_path / "s")]) == 1
    said = capsys.readouterr().out
    assert said.count("no episode has ended in it. A larger --budget is needed") == 2
    assert "No trial has ended by itself" in said


@pytest.mark.process
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two trials at a time need two cores")
def test_a_search_that_is_killed_loses_no_finished_trial(tmp_path):
    pytest.importorskip("optuna", reason="the extra lab is not installed")
    folder = tmp_path / "s"
    command = [sys.executable, "-m", "headrace.cli", "search", CARTPOLE, "--over", "learning-rate=1e-4:1e-2:log", "--trials", "3",
               "--seeds", "2", "--test-seeds", "0", "--budget", "2k", "--folder", str(folder), "--placement", "serial",
               "--num-threads", "1", "--num-epochs", "1", "--parallel", "2"]  # fmt: skip
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(folder.glob("trials/2/runs/*1001/config.json")):  # its first seed has been reported
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started.send_signal(signal.SIGKILL)
    started.wait()
    before = json.loads((folder / "trials.json").read_text())
    ended = [trial for trial in before if trial["state"] == "complete"]
    assert ended
    default = {"learning.learning_rate": make_config(CARTPOLE).learning.learning_rate}
    assert before[0]["params"] == default, "the defaults come first"
    done = subprocess.run(command, timeout=200, capture_output=True, text=True, check=True)
    said = done.stdout
    assert "warning" not in done.stderr, "the first seed of the trial that was begun is not reported twice"
    trials = json.loads((folder / "trials.json").read_text())
    assert [trial["number"] for trial in trials] == [0, 1, 2], "the trials that were begun went on"
    for trial in trials:
        assert (f"trial {trial['number']}:" in said) == (trial["number"] not in [one["number"] for one in ended])
        assert trial["state"] == "complete"
        preset = json.loads((folder / "trials" / str(trial["number"]) / "preset.json").read_text())
        assert preset["about"]["score"] == trial["value"]
    assert all(trials[one["number"]] == one | {"best": trials[one["number"]]["best"]} for one in ended)
    best = max(trials, key=lambda trial: trial["value"])
    config = parse_config([CARTPOLE, "--preset", str(folder / "best.json"), "--run.folder", str(tmp_path / "run")])
    assert config.learning.learning_rate == pytest.approx(best["params"]["learning.learning_rate"], rel=1e-3)
