"""Curves and videos, and the error where their packages are missing."""

import os
import stat
import sys
from contextlib import closing

import numpy as np
import pytest

from headrace.config import Config, ConfigError
from headrace.runs.metrics import MetricsWriter
from headrace.runs.plots import band, curve, learning_curve, task_curves
from headrace.runs.video import VideoFailed, VideoWriter


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "a-run"
    folder.mkdir()
    with closing(MetricsWriter(folder, Config())) as writer:
        writer.write({"global_step": 0, "charts/SPS": 1.0})
        for step in range(100, 600, 100):
            writer.write({"global_step": step, "charts/episodic_return_100": step / 50})
    return folder


def test_a_curve_has_the_steps_where_the_key_was_logged(run):
    assert curve(run, "charts/episodic_return_100") == ([100, 200, 300, 400, 500], [2.0, 4.0, 6.0, 8.0, 10.0])
    assert curve(run, "charts/SPS") == ([0], [1.0])


def test_learning_curve_draws_a_line_where_the_values_are(run, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    learning_curve([run], tmp_path / "curve.png", title="test", goal=8.0)
    picture = image.imread(tmp_path / "curve.png")[..., :3]
    assert picture.shape == (480, 840, 3)
    below_legend = picture[150:]
    rows, columns = np.nonzero(np.abs(below_legend - [0.122, 0.467, 0.706]).max(-1) < 0.02)  # the first line's blue
    assert len(rows) > 50
    assert np.corrcoef(columns, rows)[0, 1] < -0.99, "a rising line: higher columns, smaller row numbers"


def test_the_curve_of_returns_has_a_band_and_more_points_than_the_metrics(run, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    with closing(MetricsWriter(run, Config())) as writer:
        writer.write_curve([(step, step / 50, step / 50 - 4, step / 50 + 2) for step in range(100, 510, 10)])
    assert [len(column) for column in band(run)] == [41] * 4
    learning_curve([run], tmp_path / "curve.png")
    picture = image.imread(tmp_path / "curve.png")[..., :3]
    blue = np.array([0.122, 0.467, 0.706])
    shade = np.abs(picture - (0.2 * blue + 0.8)).max(-1) < 0.02
    line = np.abs(picture - blue).max(-1) < 0.02
    assert shade.sum() > 20_000
    column = 420
    rows, middle = np.nonzero(shade[:, column])[0], np.nonzero(line[:, column])[0].mean()
    below, above = rows.max() - middle, middle - rows.min()
    assert 1.7 < below / above < 2.3, "4 below the mean, 2 above it"


def test_every_task_has_a_panel_of_its_own(run, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    with closing(MetricsWriter(run, Config())) as writer:
        for step in range(100, 600, 100):
            writer.write({"global_step": step, "tasks/a/one/episodic_return": step / 50, "tasks/a/two/episodic_return": -step})
    task_curves(run, tmp_path / "tasks.png", ("a/one", "a/two", "a/three"))
    picture = image.imread(tmp_path / "tasks.png")[..., :3]
    assert picture.shape == (648, 840, 3)
    blue = np.abs(picture - [0.122, 0.467, 0.706]).max(-1) < 0.02
    rises = [np.corrcoef(*np.nonzero(blue[rows]))[0, 1] < 0 for rows in (slice(0, 216), slice(216, 432))]
    assert rises == [True, False]
    assert not blue[432:].any(), "none of its episodes has ended"


def test_a_resumed_run_removes_the_points_that_it_repeats(run):
    with closing(MetricsWriter(run, Config())) as writer:
        writer.write_curve([(step, 1.0, 0.0, 2.0) for step in (100, 200, 300)])
        writer.rewind(200)
        writer.write_curve([(250, 1.0, 0.0, 2.0)])
    assert band(run)[0] == [100, 200, 250]


def test_nothing_to_draw_is_an_error(tmp_path):
    with closing(MetricsWriter(tmp_path, Config())) as writer:
        writer.write({"global_step": 1, "charts/SPS": 1.0})
    with pytest.raises(ConfigError, match="logged no charts/episodic_return_100"):
        learning_curve([tmp_path], tmp_path / "curve.png")


def test_a_video_holds_its_frames_also_of_odd_size(tmp_path):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    with VideoWriter(tmp_path / "deep" / "v.mp4", fps=10) as video:
        for i in range(12):
            video.add(np.full((33, 47, 3), 20 * i, np.uint8))
    frames = imageio_ffmpeg.read_frames(str(tmp_path / "deep" / "v.mp4"))
    facts = next(frames)
    assert (facts["fps"], facts["source_size"], facts["codec"]) == (10, (48, 34), "h264")
    means = [np.frombuffer(frame, np.uint8).reshape(34, 48, 3)[:32, :46].mean() for frame in frames]
    assert np.allclose(means, np.arange(12) * 20, atol=4)


def test_a_video_that_fails_leaves_no_file(tmp_path):
    pytest.importorskip("imageio_ffmpeg")

    def fail():
        with VideoWriter(tmp_path / "v.mp4") as video:
            video.add(np.zeros((16, 16, 3), np.uint8))
            video.add(np.zeros((16, 18, 3), np.uint8))

    with pytest.raises(ValueError, match=r"must be uint8 \(16, 16, 3\), not uint8 \(16, 18, 3\)"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_nothing_but_a_file_is_replaced_by_a_video(tmp_path):
    """A device node that became a file would be one for every program of the machine."""
    pytest.importorskip("imageio_ffmpeg")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.mp4").symlink_to(tmp_path / "real.mp4")
    for path in ("/dev/full", "/dev/null", tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigError, match="cannot be written: it is no regular file"):
            VideoWriter(path)
    with pytest.raises(ConfigError, match=r"its name must end with \.mp4"):
        VideoWriter(tmp_path / "v.gif")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    with VideoWriter(tmp_path / "link.mp4") as video:
        video.add(np.zeros((16, 16, 3), np.uint8))
    assert (tmp_path / "link.mp4").is_symlink()
    assert (tmp_path / "real.mp4").stat().st_size > 100


@pytest.mark.parametrize("frames", [1, 500])
def test_a_program_that_cannot_write_the_video_is_heard(tmp_path, frames):
    """However little it was sent: nothing else would tell that there is no file."""
    pytest.importorskip("imageio_ffmpeg")
    (tmp_path / ".tmp-v.mp4").symlink_to("nowhere/at-all")

    def fail():
        with VideoWriter(tmp_path / "v.mp4") as video:
            for _ in range(frames):
                video.add(np.zeros((16, 16, 3), np.uint8))

    with pytest.raises(VideoFailed, match=r"v\.mp4 cannot be written: ffmpeg ended with exit code \d+: .*No such file"):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("imageio_ffmpeg", "video", lambda run: VideoWriter(run / "v.mp4")),
        ("matplotlib.figure", "plots", lambda run: learning_curve([run], run / "c.png")),
    ],
)
def test_a_missing_extra_is_named_with_the_command(run, monkeypatch, package, extra, use):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf'pip install "headrace\[{extra}\]"'):
        use(run)
