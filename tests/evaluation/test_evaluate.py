"""Evaluation: whole games, evenly shared, reproducible; a policy for programs."""

import contextlib
import itertools
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from tiny_runs import trained
from worlds import DelayedGroup

import headrace
from headrace import cli
from headrace.config import ConfigError
from headrace.envs.core.errors import EnvironmentFault
from headrace.evaluation import background, video
from headrace.evaluation import evaluate as evaluate_module
from headrace.evaluation.evaluate import evaluate
from headrace.evaluation.policy import load_policy
from headrace.evaluation.video import record
from headrace.learning.algorithm import make_agent
from headrace.make_config import make_config
from headrace.policies import register_network


class DummyPipe:
    """Where a report goes that nobody reads."""

    def send(self, report):
        assert report[0] == "eval", report


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
    make = evaluate_module.make_group
    monkeypatch.setattr(evaluate_module, "make_group", lambda *arguments, **more: DelayedGroup(make(*arguments, **more)))
    assert evaluate(run, 4, num_envs=2).lengths == here.lengths


@pytest.mark.filterwarnings("error")
def test_metrics_of_one_task_have_no_scores_of_several(run):
    """The mean over no task at all was a warning at every evaluation during training."""
    assert evaluate(run, 2).metrics == {"eval/episodic_return": 1.0, "eval/episodic_length": 1.0}


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


class Noise(gymnasium.Env):
    """Four steps; observations are drawn, and the reward is drawn, too, plus the action."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 4
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.left -= 1
        observation = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return observation, float(action + self.np_random.random()), False, self.left == 0, {}


REPLAY = {"replay.minimum": 64, "replay.capacity": 1000}
ALGORITHMS = {
    "ppo": {},
    "ppo-gru": {"policy.core": "gru", "policy.core_size": 8},
    "apex-dqn": {"learning.algorithm": "apex-dqn", **REPLAY},
    "noisy": {"learning.algorithm": "apex-dqn", "q.noisy": True, **REPLAY},
}


def noise_policy(folder, settings, **more):
    headrace.envs.register("test/noise")(lambda options, render_mode=None: Noise())
    config = make_config(
        "test/noise",
        **{"run.folder": str(folder), "sampling.placement": "serial", "learning.total_steps": 100, "learning.batch_size": 64,
           "sampling.rollout": 8, "sampling.envs_per_worker": 8, "policy.mlp": [8], "run.dashboard": False, "run.video": False,
           "learning.device": "cpu", **settings, **more},
    )  # fmt: skip
    headrace.train(config)
    return config, load_policy(folder)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_seed_gives_the_same_games(tmp_path, name):
    """Of a policy that has played before, too, which goes on afterwards as if there had been no evaluation."""
    _, policy = noise_policy(tmp_path / "r", ALGORITHMS[name])
    for deterministic in (False, True):
        first = evaluate(policy, 8, num_envs=4, deterministic=deterministic)
        policy.act(np.zeros(2, np.float32), deterministic=False)
        before = policy.generator.get_state()
        again = evaluate(policy, 8, num_envs=4, deterministic=deterministic)
        assert torch.equal(policy.generator.get_state(), before)
        loaded = evaluate(tmp_path / "r", 8, num_envs=4, deterministic=deterministic)
        assert first.returns == again.returns == loaded.returns
        assert evaluate(policy, 8, num_envs=4, deterministic=deterministic, seed=1).returns != first.returns
        assert first.distinct == 8
    observation, noise = np.zeros(2, np.float32), policy.act
    assert len({noise(observation, deterministic=True) for _ in range(20)}) == 1, "nothing is drawn at random"


def seeds_of(monkeypatch):
    """The seeds that environments are reset with from now on."""
    seen, reset = [], Noise.reset

    def noting(self, *, seed=None, options=None):
        if seed is not None:
            seen.append(seed)
        return reset(self, seed=seed, options=options)

    monkeypatch.setattr(Noise, "reset", noting)
    return seen


@pytest.mark.parametrize("seed", [0, 1])
def test_no_game_of_training_is_evaluated(tmp_path, monkeypatch, seed):
    """The seeds that environments really get, in training, in evaluation, in the evaluation of the background, and in videos."""
    seen = seeds_of(monkeypatch)
    for name in ("os.nice", "torch.set_num_threads"):  # what a process of its own does to itself
        monkeypatch.setattr(name, lambda number: None)
    config, policy = noise_policy(tmp_path / "r", {}, seed=seed)
    uses = {"training": list(seen)}
    for name, use in (
        ("evaluation", lambda: evaluate(policy, 40, num_envs=20, seed=seed)),
        ("another seed", lambda: evaluate(policy, 40, num_envs=20, seed=seed + 1)),
        ("background", lambda: background._evaluate(DummyPipe(), str(config.run_folder), "newest", 16, seed, (), 0)),
        ("command", lambda: cli.main(["eval", str(config.run_folder), "--episodes", "3", "--seed", str(seed + 2)])),
    ):
        seen.clear()
        use()
        uses[name] = list(seen)
    seen.clear()
    monkeypatch.setattr(video, "picture", lambda env, name: np.zeros((16, 16, 3), np.uint8))
    record(policy, tmp_path / "v.mp4", episodes=3, seed=seed)
    uses["video"] = list(seen)
    # the environment that describes the spaces is seeded, too, and played by nobody
    assert [len(s) >= n for s, n in zip(uses.values(), (16, 20, 20, 16, 3, 3), strict=True)] == [True] * 6
    for (name, some), (other, more) in itertools.combinations(uses.items(), 2):
        assert not set(some) & set(more), (name, other)


def test_distinct_games_are_counted(run, tmp_path):
    """Countdown's games differ only in their length, which grows with an environment's games."""
    result = evaluate(run, 8, num_envs=2, deterministic=True)
    assert result.lengths == [1, 2, 3, 4, 1, 2, 3, 4]
    assert result.distinct == 4
    assert "over 8 episodes, 4 distinct, step" in str(result)
    assert result.to_dict()["distinct"] == 4
    with pytest.raises(ConfigError, match="the seed is -3"):
        evaluate(run, 1, seed=-3)


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


def test_a_policy_acts_for_the_environments_of_a_users_vector_environment(tmp_path):
    @headrace.envs.register_vector("test/many")
    def many(options, num_envs):
        return gymnasium.vector.SyncVectorEnv([Noise] * num_envs)

    tiny = {"sampling.placement": "serial", "learning.total_steps": 64, "run.folder": str(tmp_path / "r"), "run.video": False}
    result = headrace.train(make_config("test/many", **tiny, **{"run.dashboard": False}))
    policy, envs = load_policy(result.folder), headrace.make_vec("test/many", 3)
    observations, _ = envs.reset(seed=0)
    actions, _ = policy.predict(observations)
    assert envs.step(actions)[0].shape == (3, 2)
    assert policy.act(observations[1]) == actions[1]


def test_numbers_that_a_network_draws_and_does_not_learn_are_those_of_training(tmp_path):
    """Random features that are no parameters are in no checkpoint; they follow from the seed."""

    @register_network("random-features")
    def random_features(observation, config):
        class Net(torch.nn.Module):
            out_features = 4

            def __init__(self):
                super().__init__()
                self.projection = torch.randn(observation["obs"].shape[0], 4)

            def forward(self, obs):
                return (obs["obs"] @ self.projection).cos()

        return Net()

    folder = trained("gym/CartPole-v1", tmp_path, **{"policy.encoder": "random-features"})
    before = torch.get_rng_state()
    policy = load_policy(folder)
    assert torch.equal(torch.get_rng_state(), before), "the caller's own random numbers were changed"
    _, model = make_agent(policy.config, policy.spec)  # as every process of the run makes it
    assert torch.equal(policy.model.trunk.network.projection, model.trunk.network.projection)


def test_newest_and_best(run):
    assert load_policy(run).step >= 600
    assert load_policy(run, which="best").config.env == "test/countdown"
    with pytest.raises(ConfigError, match="which is 'latest'; it must be newest, best, or a checkpoint's folder"):
        load_policy(run, which="latest")


def test_an_environment_with_other_spaces_damages_no_checkpoint(run):
    with pytest.raises(ConfigError, match=r"^gym/Acrobot-v1 has other observations or actions than test/countdown has: "):
        evaluate(run, 1, env="gym/Acrobot-v1")


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
    with pytest.raises(kind, match=words) as caught:
        record(policy, tmp_path / "v.mp4")
    assert list(tmp_path.iterdir()) == []
    assert "evaluation/video.py" not in getattr(caught.value, "frames", ""), "only the user's frames"


def test_a_game_without_render_is_told_in_one_line(run, tmp_path):
    pytest.importorskip("imageio_ffmpeg")

    class Undrawn(Countdown):
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    headrace.envs.register("test/undrawn")(lambda options, render_mode=None: Undrawn())
    policy = load_policy(run)
    policy.config.env = "test/undrawn"
    with pytest.raises(EnvironmentFault, match=r"test/undrawn cannot be drawn: NotImplementedError$") as caught:
        record(policy, tmp_path / "v.mp4")
    assert caught.value.frames == ""


@pytest.mark.parametrize("fails", ["learning_curve", "record"])
@pytest.mark.usefixtures("run")
def test_a_finished_training_does_not_end_in_an_error_of_its_pictures(tmp_path, monkeypatch, fails):
    def broken(*_, **__):
        raise RuntimeError("no ink")

    monkeypatch.setattr(video, "learning_curve", lambda *_, **__: None)
    monkeypatch.setattr(video, "record", lambda *_, **__: [1.0])
    monkeypatch.setattr(video, fails, broken)
    messages = []
    config = make_config("test/countdown", **{"run.folder": str(tmp_path)})
    video.draw_curve_and_video(config, messages.append, [1.0], again=True)
    curve, film = messages  # one is made without the other, whose extra may be missing
    if fails == "record":
        assert (curve, film) == (f"Learning curve: {tmp_path / 'curve.png'}", "No video: RuntimeError: no ink")
    else:
        assert (curve, film) == ("No curve: RuntimeError: no ink", f"Video: {tmp_path / 'video.mp4'} (return 1.0)")


def test_a_resume_that_has_nothing_to_do_leaves_the_pictures_as_they_are(run, monkeypatch):
    drawn = []
    monkeypatch.setattr(video, "record", lambda *_, **__: drawn.append(1) or [0.0])
    config = load_policy(run).config
    config.run.video = True
    (run / "video.mp4").touch()
    assert headrace.train(config).reason == "total_steps"
    assert drawn == []
    (run / "video.mp4").unlink()
    headrace.train(config)
    assert drawn == [1]


def test_importing_the_package_and_its_environments_does_not_import_torch():
    modules = "headrace, headrace.config, headrace.make_config, headrace.envs.families.gym, headrace.runs.folder"
    modules += ", headrace.learning, headrace.policies, headrace.population"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_package_offers_its_functions_whatever_was_imported_first():
    import headrace.train  # binds the module's name in the package

    assert callable(headrace.train)
    assert set(headrace.__all__) <= set(dir(headrace))
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    for module in (headrace.envs, headrace.learning, headrace.policies, headrace.population):
        assert all(getattr(module, name) is not None for name in module.__all__)
    assert {"Algorithm", "PolicyGradient", "register_algorithm"} <= {*headrace.learning.__all__}
    assert {"Matchmaker", "NextMatch", "Population", "register_matchmaker"} <= {*headrace.population.__all__}
    with pytest.raises(AttributeError, match="nothing"):
        _ = headrace.nothing


class Nowhere(contextlib.nullcontext):
    """A video that nobody writes."""

    def add(self, frame):
        assert frame.shape == (2, 2, 3)

    def __enter__(self):
        return self


class Shown(Countdown):
    """Has pictures, and a weight of its reward."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    weight = 1.0

    def set_reward_weights(self, weights):
        self.weight = weights["steps"]

    def step(self, action):
        observation, reward, *ends = super().step(action)
        return observation, reward * self.weight, *ends

    def render(self):
        return np.zeros((2, 2, 3), np.uint8)


@pytest.fixture
def shown(run, monkeypatch):
    """A policy whose environment has pictures."""
    headrace.envs.register("test/shown")(lambda options, render_mode=None: Shown())
    monkeypatch.setattr(video, "video_of", lambda env, path: Nowhere())
    policy = load_policy(run)
    policy.config.env = "test/shown"
    return policy


def test_weights_of_the_reward_hold_wherever_a_policy_plays(shown, tmp_path):
    shown.config.envs.reward_weights = {"steps": 3.0}
    assert evaluate(shown, 2, num_envs=1).returns == record(shown, tmp_path / "v.mp4", episodes=2) == [3.0, 6.0]
    env = shown.make_env()
    env.reset()
    assert env.step(0)[1] == 3.0


def test_games_for_which_no_step_is_left_are_not_told(shown, tmp_path):
    policy = shown
    assert record(policy, tmp_path / "v.mp4", episodes=5, max_steps=4) == [1.0, 2.0, 1.0], "the third has three steps"
    assert record(policy, tmp_path / "v.mp4", episodes=2, max_steps=100) == [1.0, 2.0]


@pytest.mark.parametrize("count", [0, -1, 2.0, "2"])
def test_what_is_no_number_of_games_is_refused_before_anything_is_made(tmp_path, count):
    for number, play in (
        ("episodes", lambda: evaluate("nowhere", count)), ("num_envs", lambda: evaluate("nowhere", 2, num_envs=count)),
        ("episodes", lambda: record("nowhere", tmp_path / "v.mp4", episodes=count)),
        ("max_steps", lambda: record("nowhere", tmp_path / "v.mp4", max_steps=count)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{number} is {count!r}; it must be a whole number, at least 1"):
            play()
