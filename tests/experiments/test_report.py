"""Reports of run folders of every kind, and what a browser draws of them."""

import csv
import json
import math
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from run_folders import START, write_run

import headrace
from headrace import cli
from headrace.config import override
from headrace.experiments import charts, records, report, run_facts
from headrace.experiments.laboratory import predicted_lag
from headrace.make_config import make_config

pytest.importorskip("vl_convert", reason="the extra lab is not installed")

LAB = {
    "lag/mean": 1.5, "lag/max": 4.0, "lag/p50": 1.0, "lag/p95": 3.0, "lag/when_chosen": 0.5, "lag/since_chosen": 1.0,
    "lag/share/1": 0.75, "lag/share/2": 0.25, "off_policy/effective_sample_size": 0.98,
}  # fmt: skip


def table_of(page, heading):
    """The rows of the first table behind a heading, as text."""
    rest = page[page.index(f'id="{heading}"') :]
    rows = re.findall(r"<tr>(.*?)</tr>", rest[: rest.index("</table>")])
    return [[re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)] for row in rows]


@pytest.mark.parametrize("names", [("one",), ("one", "two")])
def test_settings_of_this_module_are_no_part_of_a_chart(names):
    layers = [{"data": {"values": [{"g": "one", "x": 1}]}, "mark": "point"}]
    drawn = charts.chart("title", layers, names, legend=False, height=40)
    assert "legend" not in drawn
    assert drawn["encoding"]["color"]["legend"] is None
    assert drawn["height"] == 40


@pytest.fixture(scope="module")
def two_algorithms(tmp_path_factory):
    """Ten runs of two algorithms, with what the laboratory measures, and their report."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(5):
        write_run(folder / f"ppo-{seed}", seed=seed, score=100 + seed, metrics=LAB)
        write_run(folder / f"a2c-{seed}", algorithm="a2c", seed=seed, score=50 + seed, metrics=LAB)
    return report.make([folder], folder / "report")


def test_ten_runs_of_two_algorithms(two_algorithms):
    made = two_algorithms
    assert made.runs == 10
    assert not made.left_out
    page = made.page.read_text()
    assert table_of(page, "overview")[1:] == [
        ["a2c", "gym/CartPole-v1", "5", "3,000", "0.5", "52 (50.8 to 53.2)"],
        ["ppo", "gym/CartPole-v1", "5", "3,000", "0.5", "102 (100.8 to 103.2)"],
    ]
    aggregates = table_of(page, "over-all-runs-and-environments")
    assert aggregates[0] == ["configuration", "IQM", "median", "mean"], "without references there is no optimality gap"
    assert [row[1].split()[0] for row in aggregates[1:]] == ["52", "102"]
    assert "a2c" in page[page.index("Probability of improvement") :]
    assert [file.suffix for file in made.files].count(".png") >= 10
    rows = list(csv.DictReader(made.files[1].open()))
    assert {(row["configuration"], row["seed"], row["score"]) for row in rows} >= {("ppo", "4", "104.0"), ("a2c", "0", "50.0")}
    lag = table_of(page, "laboratory-lag-off-policyness-and-what-they-cost")
    assert lag[1][:6] == ["a2c", "1.5", "1", "3", "0.5", "1"]


def test_the_page_needs_nothing_else(two_algorithms):
    page = two_algorithms.page.read_text()
    assert len(page) < 5e6
    assert "a processor &lt;with signs&gt;" in page
    written = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"<(?:script|link|img|iframe|video)[^>]*(?:src|href)=.(?!data:)", written)
    assert not re.findall(r"<script[^>]*src", page)


def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    return playwright, found


@pytest.mark.process
@pytest.mark.parametrize("width", [1200, 360])
def test_a_browser_draws_every_chart(two_algorithms, width):
    playwright, program = chromium()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800})
        said = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else said.append(request.url))
        page.goto(two_algorithms.page.as_uri())
        charts = page.locator(".chart")
        assert charts.count() >= 10
        drawn = "[...document.querySelectorAll('.chart')].every(chart => chart.querySelector('svg.marks'))"
        page.wait_for_function(drawn, timeout=60_000)
        assert said == []
        paths = "[...document.querySelectorAll('.chart svg.marks')].map(svg => svg.querySelectorAll('path[d]').length)"
        assert min(page.evaluate(paths)) > 3, "axes and marks"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is wider than the screen"
        reached = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.tagName + '.' + document.activeElement.className"))
        assert {"A.", "DIV.wide"} <= reached, "links and wide tables are reached by the keyboard"
        browser.close()


def test_few_seeds_and_short_runs_are_said_to_be_so(tmp_path):
    for seed in range(5):
        write_run(tmp_path / f"few/{seed}" if seed < 3 else tmp_path / f"more/{seed}", seed=seed, points=5 + seed // 2)
    page = report.make([tmp_path / "few"], tmp_path / "report", pictures=False).page.read_text()
    assert table_of(page, "overview")[1][4] == "0.083 to 0.1"
    assert "fewer than 5 seeds are too narrow" in page
    page = report.make([tmp_path / "few", tmp_path / "more"], tmp_path / "all", pictures=False).page.read_text()
    assert "fewer than 5 seeds" not in page


def test_damaged_and_empty_runs_are_named_and_left_out(tmp_path, capsys):
    write_run(tmp_path / "good")
    for name, file, content in (
        ("no settings", "config.json", "{"), ("no metrics", "metrics.jsonl", None), ("nothing learned", "metrics.jsonl", ""),
        ("other things", "config.json", "[]"), ("no number", "config.json", '{"env": "x", "population": {"size": "2"}}'),
    ):  # fmt: skip
        path = write_run(tmp_path / name) / file
        path.unlink() if content is None else path.write_text(content)
        if file == "metrics.jsonl":
            (tmp_path / name / "curve.jsonl").unlink()
    (tmp_path / "garbled").mkdir()
    (write_run(tmp_path / "torn") / "metrics.jsonl").open("ab").write(b'{"global_step": 12')
    (tmp_path / "torn" / "system.json").write_text("\0")
    assert cli.main(["report", str(tmp_path), str(tmp_path / "not there"), "--no-pictures"]) == 0
    said = capsys.readouterr().out
    assert "2 runs" in said
    for name in ("no settings", "no metrics", "nothing learned", "other things", "no number", "not there"):
        assert f"Left out: {tmp_path / name}: " in said
    assert "garbled" not in said, "a folder without any file of a run is none"


def test_runs_of_an_experiment_with_a_damaged_plan_are_reported(tmp_path):
    write_run(tmp_path / "runs" / "good")
    (tmp_path / "plan.json").write_text("{")
    made = report.make([tmp_path], tmp_path / "report", pictures=False)
    assert made.runs == 1
    assert f"{tmp_path / 'plan.json'}" in made.page.read_text()


def test_a_folder_without_runs_is_refused(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 1
    assert f"{tmp_path}: it holds no run" in capsys.readouterr().err


@pytest.mark.process
def test_two_hundred_runs_make_a_small_page_in_time(tmp_path):
    for number in range(200):
        gamma = 0.9 + number // 20 / 200
        write_run(tmp_path / str(number), seed=number % 20, score=number, points=400, **{"learning.gamma": gamma})
    began = time.perf_counter()
    made = report.make([tmp_path], tmp_path / "report", pictures=False)
    assert made.runs == 200
    assert time.perf_counter() - began < 60
    assert made.page.stat().st_size < 5e6


def test_normalised_scores_have_their_published_references(tmp_path):
    for seed in range(2):
        write_run(tmp_path / f"pong-{seed}", env="atari/pong", seed=seed, score=14.6, **{"sampling.placement": "served"})
        write_run(tmp_path / f"cart-{seed}", seed=seed, score=260.0)
    made = report.make([tmp_path], tmp_path / "report", {"gym/CartPole-v1": (20.0, 500.0)}, pictures=False)
    page = made.page.read_text()
    rows = {row[1]: row[-1] for row in table_of(page, "final-scores")[1:]}
    assert rows == {"atari/pong": "1 (1 to 1)", "gym/CartPole-v1": "0.5 (0.5 to 0.5)"}
    aggregates = table_of(page, "over-all-runs-and-environments")
    assert aggregates[0][-1] == "optimality gap"
    assert [cell.split()[0] for cell in aggregates[1]] == ["ppo", "0.75", "0.75", "0.75", "0.25"]
    assert "Wang et al. 2016" in page


def test_runs_on_atari_5_estimate_the_median_of_57_games(tmp_path):
    human = {"battle_zone": 37187.5, "double_dunk": -16.4, "name_this_game": 8049.0, "phoenix": 7242.6, "qbert": 13455.0}
    for name, score in human.items():
        write_run(tmp_path / name, env=f"atari/{name}", score=score)
    page = report.make([tmp_path], tmp_path / "report", pictures=False).page.read_text()
    heads, row = table_of(page, "over-all-runs-and-environments")
    assert (heads[-1], row[-1]) == ("median of 57 games (Atari-5)", "0.8505")
    write_run(tmp_path / "pong", env="atari/pong", score=14.6)
    page = report.make([tmp_path], tmp_path / "report", pictures=False).page.read_text()
    assert "Atari-5" not in page, "the regression is of these five games only"


def test_a_population_is_one_configuration_per_policy(tmp_path):
    run = write_run(tmp_path / "run", **{"population.size": 2, "sampling.num_workers": 2})
    for policy in range(2):
        (run / f"policy-{policy}").mkdir()
        for name in ("metrics.jsonl", "curve.jsonl"):
            shutil.copy(run / name, run / f"policy-{policy}" / name)
    made = report.make([tmp_path], tmp_path / "report", pictures=False)
    assert [row[0] for row in table_of(made.page.read_text(), "overview")[1:]] == ["ppo, policy 0", "ppo, policy 1"]


def test_matches_have_their_ratings(tmp_path):
    for seed, elo in ((0, 1210.0), (1, 1300.0)):
        write_run(tmp_path / str(seed), seed=seed, metrics={"matches/elo": elo, "matches/games": 50, "matches/win_rate": 0.6})
    page = report.make([tmp_path], tmp_path / "report", pictures=False).page.read_text()
    assert table_of(page, "matches")[1:] == [
        ["ppo", "gym/CartPole-v1", "1", "1,300", "50", "0.60"], ["ppo", "gym/CartPole-v1", "0", "1,210", "50", "0.60"],
    ]  # fmt: skip


def test_configurations_have_the_settings_that_tell_them_apart(tmp_path):
    for algorithm in ("ppo", "a2c"):
        for rate in (0.001, 0.002):
            for seed in (0, 1):
                settings = {"seed": seed, "learning.learning_rate": rate, "run.name": f"{algorithm}{rate}"}
                write_run(tmp_path / f"{algorithm}-{rate}-{seed}", algorithm=algorithm, **settings)
    runs, _ = records.find([tmp_path])
    groups = records.grouped(runs)
    assert [(g.label, len(g.runs)) for g in groups] == [
        (f"{algorithm}, learning rate {rate}", 2) for algorithm in ("a2c", "ppo") for rate in (0.001, 0.002)
    ]


def test_settings_of_the_environment_tell_configurations_apart(tmp_path):
    for stack in (1, 4):
        for seed in (0, 1):
            write_run(tmp_path / f"{stack}-{seed}", seed=seed, score=100.0 * stack, **{"envs.frame_stack": stack})
    remote = write_run(tmp_path / "remote", **{"envs.frame_stack": 1}) / "config.json"
    elsewhere = json.loads(remote.read_text())
    elsewhere["envs"] |= {"remote": "127.0.0.1:5000", "remote_token_file": "token"}
    remote.write_text(json.dumps(elsewhere))
    runs, _ = records.find([tmp_path])
    groups = records.grouped(runs)
    assert [(g.label, len(g.runs), float(g.scores("gym/CartPole-v1").mean())) for g in groups] == [
        ("frame stack 1, remote 127.0.0.1:5000", 1, 100),
        ("frame stack 1, remote none", 2, 100),
        ("frame stack 4, remote none", 2, 400),
    ]
    assert set(records.differing(runs)) == {"envs.frame_stack", "envs.remote"}
    far, one, four = (group.runs[0] for group in groups)
    assert records.same_learner(one, far)
    assert not records.same_learner(one, four)


def test_a_setting_that_is_a_json_object_is_one_setting(tmp_path):
    for name, kwargs in (("plain", {}), ("heavy", {"gravity": 20.0, "wind": False})):
        write_run(tmp_path / name, **{"envs.kwargs": kwargs})
    runs, _ = records.find([tmp_path])
    assert set(records.differing(runs)) == {"envs.kwargs"}
    assert [group.label for group in records.grouped(runs)] == ['kwargs {"gravity": 20.0, "wind": false}', "kwargs {}"]


def test_one_moment_of_training_is_no_time(tmp_path):
    """A run that has just begun, or one whose system.json is gone or has the time of another clock."""
    run = write_run(tmp_path / "run", metrics=LAB)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[0])
    (run / "system.json").unlink()
    page = report.make([tmp_path], tmp_path / "report", pictures=False).page.read_text()
    assert "What a score cost" in page


def test_lag_of_another_environment_only(tmp_path):
    """And a run that has measured no histogram, of which no empty chart is drawn."""
    for lag in (0, 8):
        settings = {"sampling.placement": "serial", "sampling.policy_lag": lag}
        write_run(tmp_path / f"cart-{lag}", metrics={"lag/when_chosen": 1.0, "lag/mean": 1.0 + lag}, **settings)
        write_run(tmp_path / f"acrobot-{lag}", env="gym/Acrobot-v1", **settings)
    page = report.make([tmp_path], tmp_path / "report").page.read_text()
    assert "gym/CartPole-v1: final score against policy lag" in page
    assert "gym/Acrobot-v1: final score against policy lag" not in page
    assert "Policy lag of the samples" not in page


def test_the_policies_of_a_run_have_one_film_and_one_machine(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "video.mp4").write_bytes(b"a film")
    both = [records.Run(run, policy, {}, records.read(run)[0].system, [], np.zeros((1, 2))) for policy in (0, 1)]
    (films,) = run_facts.videos(both)
    assert len(films.items) == 1
    again = records.Run(tmp_path / "other", None, {}, [{"cores": 3}], [], np.zeros((1, 2)))
    assert ("cores", "2 (1 runs), 3 (1 runs)") in run_facts.machines([*both, again]).items[0].rows


def test_commands_of_runs_that_no_command_line_started(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "system.json").write_text(json.dumps([{"command": ["my_study.py", "--fast"]}]))
    ((_, _, command),) = run_facts.commands(records.read(run)).items[0].rows
    assert eval(command.strip("`").removeprefix("headrace.train"), {"headrace": headrace}).env == "gym/CartPole-v1"


def test_a_search_without_a_best_trial_yet(tmp_path):
    search = {"env": "gym/CartPole-v1", "over": {}, "budget": "1m", "seeds": 3, "objectives": "score"}
    (tmp_path / "search.json").write_text(json.dumps(search))
    write_run(tmp_path / "trials" / "0" / "runs" / "seed-1000")
    page = report.make([tmp_path], tmp_path / "report", pictures=False).page.read_text()
    assert "0 trials of 3 seeds" in page
    assert "None has ended by itself yet" in page
    trial = {"number": 0, "state": "complete", "value": 1.0, "minutes": None, "best": True, "params": {}, "scores": [1.0]}
    (tmp_path / "trials.json").write_text(json.dumps([trial]))
    (tmp_path / "best.json").write_text(json.dumps({"about": {"trial": 0, "score": 1.0}, "flags": []}))
    (tmp_path / "test" / "defaults" / "runs" / "seed-0").mkdir(parents=True)
    page = report.make([tmp_path], tmp_path / "report", pictures=False).page.read_text()
    assert "Trial 0 has the highest score" in page
    assert "of all trials, on the seeds of the search" in page, "the comparison has just begun"


def test_a_folder_that_holds_a_search_is_reported_as_the_search_is(tmp_path):
    search = tmp_path / "experiments" / "s"
    for name, score in (("trials/0/runs/seed-1000", 500), ("test/defaults/runs/seed-0", 100)):
        write_run(search / name, score=score)
    about = {"over": {}, "seeds": 1, "budget": "1k", "objectives": "score", "env": "gym/CartPole-v1"}
    (search / "search.json").write_text(json.dumps(about))
    for folder in (search, tmp_path / "experiments"):
        made = report.make([folder], tmp_path / "report", pictures=False)
        page = made.page.read_text()
        assert made.runs == 1, "not those of the trials"
        assert "Search: s" in page


def test_every_chart_has_a_picture_of_its_own(tmp_path):
    """The ids of several tasks are longer than the name of a file."""
    tasks = ",".join(f"gym/{name}" for name in ("CartPole-v1", "CartPole-v0", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3"))
    folder = tmp_path / "runs" / "x"
    write_run(folder)
    settings = json.loads((folder / "config.json").read_text()) | {"env": tasks}
    (folder / "config.json").write_text(json.dumps(settings))
    made = report.make([folder], tmp_path / "report")
    charts_of_page = json.loads(re.search(r'id="charts">(.*?)</script>', made.page.read_text())[1].replace("<\\/", "</"))
    pictures = [file for file in made.files if file.suffix == ".png"]
    assert len({file.name for file in pictures}) == len(pictures) == len(charts_of_page)
    assert all(file.stat().st_size for file in pictures)


def test_late_evaluations_are_no_time_of_training(tmp_path):
    run = write_run(tmp_path / "run")
    (plain,) = records.read(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"global_step": 500, "time": START + 600, "eval/episodic_return": 7.0}) + "\n")
    (found,) = records.read(run)
    assert (found.minutes, found.steps) == (plain.minutes, plain.steps) == (0.5, 3000)
    (run / "checkpoints" / "000001-step-3000").mkdir(parents=True)
    assert records.minutes_of(run) == 0.5
    assert found.minutes_at(np.array([500.0, 2000.0])) == pytest.approx([5 / 60, 20 / 60])
    assert found.last("eval/episodic_return") == 7.0


def test_minutes_are_those_of_training_without_pauses():
    lines = [{"time": START + t, "global_step": t} for t in (10, 60, 1010, 1060, 5060)]
    # Three processes: for 60 s, for 60 s after a pause, and for 60 s after a longer one.
    found = records.minutes(lines, [START, START + 1000, START + 5000])
    assert np.array(found) * 60 == pytest.approx([10, 60, 70, 120, 180])
    assert records.minutes(lines[:2], []) == pytest.approx([0, 50 / 60])


def test_the_predicted_lag_is_that_of_the_serial_placement():
    base = {"sampling.placement": "serial", "sampling.num_workers": 1, "sampling.rollout": 8, "learning.num_minibatches": 1}
    one = {"sampling.num_groups": 1, "sampling.envs_per_worker": 2, "learning.batch_size": 16}
    two = {"sampling.num_groups": 2, "sampling.envs_per_worker": 4, "learning.batch_size": 16}
    for settings, lag in ((one, 0), (two, 0.5), ({**one, "sampling.policy_lag": 3}, 3)):
        assert predicted_lag(make_config("gym/CartPole-v1", "impala", **base, **settings)) == (lag, lag)
    served = override(make_config("gym/CartPole-v1", "ppo"), **{"sampling.placement": "served"})
    low, high = predicted_lag(served)
    assert 0 <= low < high


def test_the_dose_response_curve_shows_strategies_at_their_lag(tmp_path):
    for lag in (0, 4):
        for seed in (0, 1):
            settings = {"sampling.placement": "serial", "sampling.policy_lag": lag, "seed": seed}
            write_run(tmp_path / f"{lag}-{seed}", score=100.0 - 10 * lag + seed, metrics={**LAB, "lag/mean": lag}, **settings)
    for seed in (0, 1):
        write_run(tmp_path / f"served-{seed}", seed=seed, score=80.0 + seed, metrics={**LAB, "lag/mean": 2.0})
    page = report.make([tmp_path], tmp_path / "report", pictures=False).page.read_text()
    at = page.index("Is lag all there is?")
    assert "ppo, served" in page[at:] or "served" in page[at : at + 2000]
    specs = json.loads(re.search(r'id="charts">(.*?)</script>', page)[1].replace("<\\/", "</"))
    (dose,) = [spec for spec in specs.values() if "against policy lag" in spec["title"]["text"]]
    lines, diamonds = (dose["datasets"][layer["data"]["name"]] for layer in dose["layer"][:2])
    assert [(row["x"], row["y"]) for row in lines] == [(0, 100.5), (4, 60.5)]
    assert [(row["x"], row["y"]) for row in diamonds] == [(2, 80.5)]
    assert re.search(r"<td[^>]*>80.5</td><td[^>]*>yes</td>", page), "the curve at a lag of 2 is 80.5 too"


def test_a_reference_is_checked(tmp_path, capsys):
    write_run(tmp_path / "run")
    for text in ("gym/CartPole-v1", "gym/CartPole-v1=5", "gym/CartPole-v1=5:1", "=1:2"):
        assert cli.main(["report", str(tmp_path), "--reference", text]) == 2
        assert "ENV=LOW:HIGH" in capsys.readouterr().err
    assert math.isnan(records.find([tmp_path])[0][0].mean("no/metric"))


def test_find_looks_into_links_no_further(tmp_path):
    write_run(tmp_path / "a" / "run")
    Path(tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    assert len(records.find([tmp_path])[0]) == 1


def test_a_single_number_has_an_axis_with_ticks() -> None:
    row = {"g": "appo", "x": 0.41, "low": None, "high": None}
    for rows, zero in (([row], True), ([row, {**row, "g": "ppo", "x": 0.5}], False), ([{**row, "low": 0.3, "high": 0.5}], False)):
        spec = charts.points("Median", "score", [each["g"] for each in rows], rows)
        scales = [layer["encoding"]["x"]["scale"] for layer in spec["layer"]]
        assert scales
        assert all(scale == {"zero": zero} for scale in scales)
