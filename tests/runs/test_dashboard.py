"""The dashboard, drawn to text; and what becomes of it where there is no terminal."""

import io
import math
import os
import pty
import re
import subprocess
import sys
import textwrap
from contextlib import closing

import pytest
from rich.console import Console

from headrace.config import Config, override
from headrace.runs.dashboard import Dashboard, duration, number, sparkline

METRICS = {
    "global_step": 2_500_000, "charts/SPS": 900.0, "charts/SPS_interval": 1000.0, "charts/FPS": 4000.0,
    "charts/episodic_return_100": 12.345, "charts/episodic_length": 1800.0, "charts/episodes": 321.0,
    "losses/policy_loss": -0.0123, "losses/value_loss": 0.5, "lag/min": 0.0, "lag/mean": 2.5, "lag/max": 7.0, "lag/masked": 0.0,
    "time/rollout/step": 0.9, "time/rollout/wait_actions": 0.1, "time/policy/forward": 0.3, "time/policy/wait": 0.7,
    "time/learner/train": 0.4, "time/learner/wait": 0.6, "sampling/faults": 2.0,
}  # fmt: skip


def draw(metrics_list, width=130, height=50, **settings):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None, _environ={})
    with closing(Dashboard(override(Config(), **{"learning.device": "cpu", **settings}), console)) as dashboard:
        for metrics in metrics_list:
            dashboard.curve([metrics.get("charts/episodic_return_100", 0.0)])
            dashboard.update(metrics)
        console.file.seek(0)
        console.file.truncate()
        dashboard.message("a worker died")
        dashboard.update(metrics_list[-1])
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


def test_the_screen_shows_what_a_run_is_about():
    screen = draw([{**METRICS, "charts/episodic_return_100": value} for value in (1.0, 20.0)] + [METRICS])
    screen = re.sub(" +", " ", screen)
    for words in (
        "atari/pong", "appo", "25.0%", "2,500,000 of 10,000,000 steps", "left 2:05:00", "steps/s", "1,000", "frames/s", "4,000",
        "12.3", "best 100 20", "length", "1,800", "policy loss -0.0123", "mean 2.5", "max 7", "faults 2",
        "rollout workers", "stepping 90%", "waiting for actions 10%", "learner", "waiting for data 60%",
        "The environments are the bottleneck", "a worker died", "▁█",
    ):  # fmt: skip
        assert words in screen, words


def test_a_dumb_terminal_gets_lines():
    """As that of Emacs: rich would draw nothing before the end."""
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    with closing(Dashboard(override(Config(), **{"learning.device": "cpu"}), console)) as dashboard:
        dashboard.update(METRICS)
        assert "step 2.50M/10.00M | 1,000 steps/s" in console.file.getvalue()


def test_a_long_curve_keeps_its_beginning_and_its_best_point():
    with closing(Dashboard(override(Config(), **{"run.dashboard": False}), Console(file=io.StringIO()))) as dashboard:
        dashboard.curve([100.0, *range(50_000)][::-1])
        dashboard.curve([100_000.0, 7.0])
        dashboard.update(METRICS)
        assert dashboard.metrics["best return"] == 100_000.0
        assert 2048 <= len(dashboard._returns) <= 4096
        assert dashboard._returns[0] > 49_900
        dashboard.curve([1.0, 2.0], anew=True)
        assert dashboard._returns == [1.0, 2.0]


def test_several_tasks_are_shown_each():
    returns = {"tasks/atari/pong/episodic_return": -20.5, "tasks/atari/boxing/episodic_return": 3.25}
    screen = re.sub(
        " +", " ", draw([{**METRICS, **returns, "tasks/capped_mean_score": 0.25}], env="atari/pong,atari/boxing,atari/breakout")
    )
    assert "headrace 3 tasks" in screen
    assert "tasks pong -20.5 boxing 3.25 capped mean score 0.25" in screen, "none of breakout has ended"


@pytest.mark.parametrize("terminal", [True, False])
def test_each_of_several_policies_is_shown(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=130, height=50, color_system=None, _environ={})
    with closing(Dashboard(override(Config(), **{"learning.device": "cpu", "population.size": 3}), console)) as dashboard:
        dashboard.policy(1, {"charts/episodic_return_100": -2.5, "matches/elo": 1316.0})
        dashboard.policy(0, METRICS)
        dashboard.update(METRICS)
    screen = re.sub(" +", " ", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue()))
    assert "policies 0: 12.3 1: -2.5 (Elo 1,316)" in screen.replace(",  ", " ").replace(", 1:", " 1:"), "2 has not reported"
    assert ("policy 0 of 3" in screen) == terminal


def test_before_the_first_episode_and_the_first_timings():
    screen = draw([{"global_step": 0}])
    assert "0.0%" in screen
    assert "nan" not in screen


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    assert max(map(len, draw([METRICS], width).splitlines())) <= width


STARTING = {
    **METRICS, "losses/entropy": 0.6633, "losses/approx_kl": 0.01, "losses/clipfrac": 0.18, "losses/grad_norm": 4.0,
    "time/rollout/step": 0.12, "time/rollout/other": 0.75, "time/rollout/wait_actions": 0.06, "time/rollout/wait_slots": 0.07,
    "time/policy/gather": 0.02, "time/policy/forward": 0.06, "time/policy/scatter": 0.01, "time/policy/wait": 0.92,
    "time/learner/train": 0.97, "time/learner/publish": 0.02, "time/learner/wait": 0.01,
}  # fmt: skip
"""The first interval has more phases than others, since the processes are still starting: the highest screen."""


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 24), (60, 24), (80, 18), (200, 20), (80, 12), (80, 9)])
def test_the_screen_fits_into_the_terminal_to_its_last_word(width, height):
    screen = draw([STARTING], width, height).rpartition("╭")[2].splitlines()
    assert len(screen) <= height
    assert not any("..." in line for line in screen), "rich has cut off the end"
    text = " ".join(" ".join(line.strip("│ ") for line in screen if line.startswith("│")).split())
    assert "The learner is the bottleneck" in text
    assert text.endswith(("or an accelerator.", "policy 92%)."))
    assert screen[-1].startswith("╰"), "the frame's last line"
    if height >= 24 and width >= 80:
        assert text.endswith("a smaller network or an accelerator.")
        assert "learner ██" in text


def test_without_a_terminal_one_line_per_interval():
    console = Console(file=io.StringIO(), width=60)
    with closing(Dashboard(Config(), console)) as dashboard:
        dashboard.update(METRICS)
        dashboard.message("[note] a message of two\nlines")
        dashboard.update(METRICS)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 4
    assert "step 2.50M/10.00M | 1,000 steps/s | 4,000 frames/s | left 2:05:00 | return 12.3 | lag 2.5 | faults 2" in lines[0]
    assert lines[1] == "[note] a message of two"


def test_the_time_left_is_that_of_the_limit_that_comes_first():
    console = Console(file=io.StringIO(), width=60)
    for minutes, left in ((30.0, "left 30:00"), (1e4, "left 2:05:00"), (None, "left 2:05:00")):
        with closing(Dashboard(override(Config(), **{"run.max_minutes": minutes}), console)) as dashboard:
            dashboard.begun()
            dashboard.update(METRICS)
            assert left in console.file.getvalue().splitlines()[-1].replace("29:59", "30:00")
            dashboard.update({**METRICS, "charts/SPS_interval": math.nan})
            without_speed = console.file.getvalue().splitlines()[-1]
            assert ("left -" if minutes is None else "left ") in without_speed
            assert "left 0:00" not in without_speed


def test_the_last_batch_may_go_past_the_total():
    assert "left 0:00" in draw([{**METRICS, "global_step": 10_001_000.0}])


def test_serial_runs_have_no_bottleneck():
    assert "Serial placement: 40% of the time is spent learning" in draw([METRICS], **{"sampling.placement": "serial"})


FAILING = """
    from contextlib import closing
    from headrace.config import Config
    from headrace.runs.dashboard import Dashboard
    with closing(Dashboard(Config())) as dashboard:
        dashboard.update({"global_step": 1})
        raise RuntimeError("the run failed")
"""


def test_a_real_terminal_is_left_in_order_when_a_run_fails():
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(FAILING)], stdout=child, stderr=child, env=environment)
    os.close(child)
    output = b""
    while chunk := _read(parent):
        output += chunk
    assert process.wait() == 1
    text = output.decode()
    assert "headrace" in text
    assert "RuntimeError: the run failed" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor stays hidden"


def _read(fd):
    try:
        return os.read(fd, 65536)
    except OSError:  # EIO: the other side closed
        return b""


def test_numbers_for_people():
    assert [number(v) for v in (0, 0.01234, 12.345, 1234.5, 2.5e6, -3.0, math.nan)] == [
        "0",
        "0.0123",
        "12.3",
        "1,234",
        "2.50M",
        "-3",
        "-",
    ]
    assert [duration(v) for v in (5, 65.9, 3725, math.nan)] == ["0:05", "1:05", "1:02:05", "-"]
    assert sparkline([], 10) == ""
    assert sparkline([1, 1, 1], 10) == "▁▁▁"
    assert sparkline(range(8), 10) == "▁▂▃▄▅▆▇█"
    assert sparkline(range(800), 8) == "▁▂▃▄▅▆▇█"
