"""Evaluation: whole games, evenly shared, reproducible; a policy for programs."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from worlds import DelayedGroup

import headrace
from headrace.config import ConfigError
from headrace.envs.contract import EnvironmentFault
from headrace.evaluation import pictures, play
from headrace.evaluation.play import bootstrap_ci, evaluate
from headrace.evaluation.policy import load_policy
from headrace.evaluation.video import record
from headrace.make_config import make_config


class Countdown(gymnasium.Env):
    """Episode k of an environment lasts k steps; every step pays 1; ends by truncation."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.left = self.episode + 1, self.episode + 1
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, False, self.left == 0, {}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with a trained policy, made by the library call."""
    headrace.envs.register("test/countdown")(lambda options, render_mode=None: Countdown())
    folder = tmp_path_factory.mktemp("run") / "r"
    config = make_config(
        "test/countdown",
        **{"run.folder": str(folder), "sampling.placement": "serial", "learning.total_steps": 600, "learning.batch_size": 512,
           "policy.core": "gru", "policy.core_size": 8, "policy.mlp": [8], "run.dashboard": False, "run.video": False,
           "envs.reward_scale": 0.1, "envs.reward_clip": 0.05},
    )  # fmt: skip
    result = headrace.train(config)
    assert result.global_step >= 600
    return folder


def test_environments_that_answer_later_are_waited_for(run, monkeypatch):
    here = evaluate(run, 4, num_envs=2)
    make = play.make_group
    monkeypatch.setattr(play, "make_group", lambda *arguments, **more: DelayedGroup(make(*arguments, **more)))
    assert evaluate(run, 4, num_envs=2).lengths == here.lengths


def test_episodes_are_shared_out_beforehand_and_returns_are_raw(run):
    result = evaluate(run, 8, num_envs=3)
    # Environments 0 and 1 play three games, environment 2 two; the first to finish would have been others.
    assert result.lengths == [1, 2, 3, 1, 2, 3, 1, 2]
    assert result.returns == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0]
    assert result.mean == pytest.approx(15 / 8)
    assert result.std == pytest.approx(np.std(result.returns, ddof=1))
    assert evaluate(run, 1).to_dict()["ci95"] == [None, None]
    with pytest.raises(ValueError, match="at least 1"):
        evaluate(run, 0)


def test_the_same_seed_gives_the_same_games(run):
    policy = load_policy(run)
    obs = {"obs": np.zeros((64, 2), np.float32)}
    draws = []
    for seed in (1, 1, 2):
        policy.generator.manual_seed(seed)
        draws.append(policy.act_rows(obs, policy.initial_core(64), np.ones(64, bool), deterministic=False)[0])
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()


def test_a_policy_for_programs_carries_its_core_state(run):
    policy = headrace.load_policy(run)
    observation = np.array([0.3, -0.7], np.float32)
    rows = {"obs": observation[None]}
    core, first = policy.initial_core(1), np.ones(1, bool)
    for _ in range(3):
        assert policy.act(observation) in (0, 1)
        _, core = policy.act_rows(rows, core, first, deterministic=True)
        first = np.zeros(1, bool)
        assert torch.equal(policy._core, core)
    assert core.abs().sum() > 0
    policy.reset()
    assert not policy._core.any()


def test_newest_and_best(run):
    assert load_policy(run).step >= 600
    assert load_policy(run, which="best").config.env == "test/countdown"


def test_a_folder_without_a_checkpoint(run, tmp_path):
    (tmp_path / "config.json").write_text((run / "config.json").read_text())
    with pytest.raises(ConfigError, match="no checkpoint yet"):
        load_policy(tmp_path)


def test_what_cannot_be_drawn_cannot_be_recorded(run, tmp_path):
    with pytest.raises(ConfigError, match="test/countdown has no render mode 'rgb_array'; it has none"):
        record(run, tmp_path / "v.mp4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (gymnasium.error.DependencyNotInstalled("pygame"), ConfigError, r'pip install "headrace\[video\]" \(pygame\)'),
        (OSError("no screen"), EnvironmentFault, "test/drawn cannot be drawn: OSError: no screen"),
    ],
)
def test_what_fails_to_draw_says_why(run, tmp_path, error, kind, words):
    pytest.importorskip("imageio_ffmpeg")

    class Drawn(Countdown):
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

        def render(self):
            raise error

    headrace.envs.register("test/drawn")(lambda options, render_mode=None: Drawn())
    policy = load_policy(run)
    policy.config.env = "test/drawn"
    with pytest.raises(kind, match=words):
        record(policy, tmp_path / "v.mp4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails", ["learning_curve", "record"])
def test_a_finished_training_does_not_end_in_an_error_of_its_pictures(tmp_path, monkeypatch, fails):
    def broken(*_, **__):
        raise RuntimeError("no ink")

    monkeypatch.setattr(pictures, "learning_curve", lambda *_, **__: None)
    monkeypatch.setattr(pictures, fails, broken)
    messages = []
    config = make_config("test/countdown", **{"run.folder": str(tmp_path)})
    pictures.draw_curve_and_video(config, messages.append, [1.0], again=True)
    assert messages[-1] == "No curve or video: RuntimeError: no ink"


def test_a_resume_that_has_nothing_to_do_leaves_the_pictures_as_they_are(run, monkeypatch):
    drawn = []
    monkeypatch.setattr(pictures, "record", lambda *_, **__: drawn.append(1) or [0.0])
    config = load_policy(run).config
    config.run.video = True
    (run / "video.mp4").touch()
    assert headrace.train(config).reason == "total_steps"
    assert drawn == []
    (run / "video.mp4").unlink()
    headrace.train(config)
    assert drawn == [1]


def test_bootstrap_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    samples = rng.exponential(size=(200, 60))
    covered = [low <= 1.0 <= high for low, high in (bootstrap_ci(sample, resamples=1000) for sample in samples)]
    assert 0.88 <= np.mean(covered) <= 0.98
    low, high = bootstrap_ci(samples[0])
    normal = 1.96 * samples[0].std(ddof=1) / np.sqrt(60)
    assert high - low == pytest.approx(2 * normal, rel=0.15)


def test_importing_the_package_and_its_environments_does_not_import_torch():
    modules = "headrace, headrace.config, headrace.make_config, headrace.envs.gym, headrace.runs.folder"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_package_offers_its_functions_whatever_was_imported_first():
    import headrace.train  # binds the module's name in the package

    assert callable(headrace.train)
    assert set(headrace.__all__) <= set(dir(headrace))
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = headrace.nothing
