"""Environments by id, and the families that have no file of tests of their own."""

from __future__ import annotations

import ctypes.util
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from worlds import CountingEnv, random_actions, reset_group, rows_for, step_group

from headrace.cli.flags import parse_config
from headrace.config import Config, ConfigError, EnvConfig, override
from headrace.envs.core import registry
from headrace.envs.core.contract import Categorical, Continuous, EnvGroup
from headrace.envs.core.errors import EnvironmentFault, UnknownEnvironment
from headrace.envs.core.imports import import_files
from headrace.envs.core.settings import defaults
from headrace.envs.families.torch_cartpole import CartPole
from headrace.envs.make import describe, make_env, make_group, make_vec

mujoco = pytest.importorskip("mujoco")
RUNS_DM_CONTROL = int(mujoco.__version__.split(".")[0]) < 4


@pytest.fixture
def registered() -> list[str]:
    """Ids registered by the test; forgotten afterwards."""
    before = set(registry._registered)
    yield []
    for name in set(registry._registered) - before:
        del registry._registered[name]


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("atari/pnog", "atari/pong"),
        ("atari/Pong", "atari/pong"),
        ("pong", "atari/pong"),
        ("gym/CartPole", "gym/CartPole-v1"),
        ("vizdoom/basik", "vizdoom/basic"),
        ("cartpole-v1", "nearest: gym/CartPole-v1"),
        ("nonsense-entirely-9000", "families gym, atari, vizdoom, dm_control, torch, pettingzoo.*; your own: .*--import"),
        ("python/rover", "'python/rover'; a class or a function of a module is python/MODULE:NAME"),
        ("rover:Rover", "'rover:Rover'; .*python/MODULE:NAME"),
    ],
)
def test_unknown_ids_name_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(UnknownEnvironment, match=nearest):
        describe(wrong, EnvConfig())


def test_missing_extras_say_how_to_install_them(tmp_path: Path) -> None:
    """In a process in which the packages cannot be imported."""
    code = (
        "import sys\n"
        "for name in ('vizdoom', 'ale_py', 'dm_control'): sys.modules[name] = None\n"
        "from headrace.envs.core import registry\n"
        "from headrace.config.errors import MissingExtra\n"
        "for env in ('vizdoom/basic', 'atari/pong', 'gym/ALE/Pong-v5', 'dm_control/cartpole-swingup'):\n"
        "    try: registry.check_id(env)\n"
        "    except MissingExtra as error: print(error)\n"
        "print(len(registry.list_ids()) > 20)\n"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    for extra in ("vizdoom", "atari", "dm-control"):
        assert output.count(f'pip install "headrace[{extra}]"') == (2 if extra == "atari" else 1)
    assert output.endswith("True\n")


def test_nothing_imports_torch(tmp_path: Path) -> None:
    """Processes that step environments stay small and start fast."""
    code = (
        "import sys\n"
        "import headrace.config, headrace.envs\n"
        "from headrace.envs.make import describe_here\n"
        "from headrace.config import EnvConfig\n"
        "for env in ('gym/CartPole-v1', 'atari/pong', 'vizdoom/basic'):\n"
        "    describe_here(env, EnvConfig(atari_backend='ale', protocol='ale-v5'))\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 30, "seconds of the processor"


def test_every_listed_environment_is_known_and_its_defaults_are_settings() -> None:
    ids = registry.list_ids()
    assert {"gym/CartPole-v1", "atari/pong", "vizdoom/basic", "gym/HalfCheetah-v5"} <= set(ids)
    assert len(ids) == len(set(ids))
    for env_id in ids:
        registry.check_id(env_id)
        override(Config(env=env_id), **defaults(env_id))


def test_a_users_environment(registered: list[str], tmp_path: Path) -> None:
    made = []

    @registry.register("my/counting", defaults={"learning.gamma": 0.5})
    def make(options: EnvConfig, *, render_mode: str | None = None) -> CountingEnv:
        made.append((options, render_mode))
        return CountingEnv(**options.kwargs)

    assert describe("my/counting", EnvConfig(frame_stack=3)).frame_stack == 3
    options = EnvConfig(kwargs={"actions": 9}, max_episode_steps=1, frameskip=2)
    spec = describe("my/counting", options)
    assert spec.action.parts == (Categorical(9),)
    assert (spec.frameskip, spec.name) == (2, "my/counting")
    assert "my/counting" in registry.list_ids()
    assert defaults("my/counting") == {"learning.gamma": 0.5}
    env = make_env("my/counting", options, render_mode="rgb_array")
    assert made[-1] == (options, "rgb_array")
    env.reset(seed=2)
    assert env.step(0)[0][2] == 2  # two frames a step
    with pytest.raises(ConfigError, match="built-in family"):
        registry.register("atari/mine")


def test_a_users_vector_environment(registered: list[str]) -> None:
    @registry.register_vector("my/vector")
    def make(options: EnvConfig, num_envs: int) -> SyncVectorEnv:
        return SyncVectorEnv([CountingEnv] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    group = make_group("my/vector", EnvConfig(), 3)
    assert (group.num_envs, group.spec.autoreset) == (3, "same-step")
    with pytest.raises(ConfigError, match="vector environment"):
        make_env("my/vector", EnvConfig())


def test_a_preset_that_limits_episodes_says_how_vector_environments_take_it(registered: list[str]) -> None:
    class Images(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 3), np.uint8)

    registry.register_vector("my/vector")(lambda options, n: SyncVectorEnv([Images] * n, autoreset_mode=AutoresetMode.SAME_STEP))
    flags = ["--env", "my/vector", "--learning.algorithm", "apex-dqn", "--learning.preset", "paper"]
    with pytest.raises(ConfigError, match=r"envs\.max_episode_steps: not applied") as error:
        make_group("my/vector", parse_config(flags).envs, 2)
    (advice,) = re.findall(r"where a preset has set it, give (--\S+ \w+);", str(error.value))
    make_group("my/vector", parse_config([*flags, *advice.split()]).envs, 2).close()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (EnvConfig(frameskip=4), "frameskip"),
        (EnvConfig(frame_stack=3), "frame_stack"),
        (EnvConfig(info_action_mask=True), "info_action_mask"),
        (EnvConfig(max_episode_steps=5), "max_episode_steps"),
        (EnvConfig(reward_weights={"part": 1.0}), "reward_weights"),
    ],
)
def test_settings_that_nothing_applies_are_refused(registered: list[str], options: EnvConfig, name: str) -> None:
    def make(options: EnvConfig, num_envs: int) -> SyncVectorEnv:
        return SyncVectorEnv([CountingEnv] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    registry.register_vector("my/vector")(make)
    registry.register_tensor("my/tensor")(lambda options, num_envs, device: None)
    registry.register_vector("my/own", applies=[name])(make)
    for env in ("my/vector", "my/tensor"):
        with pytest.raises(ConfigError, match=f"{env}: envs.{name}: not applied"):
            make_group(env, options, 2)
    make_group("my/own", options, 2).close()
    make_group("my/vector", EnvConfig(frameskip=1, frame_stack=1, grayscale=False), 2).close()
    if name == "max_episode_steps":
        make_group("torch/CartPole-v1", options, 2).close()
    else:
        with pytest.raises(ConfigError, match=f"torch/CartPole-v1: envs.{name}: not applied"):
            make_group("torch/CartPole-v1", options, 2)


def test_imports(registered: list[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import headrace.envs\nheadrace.envs.register('my/imported')(lambda options, *, render_mode=None: None)\n")
    import_files([file, file])
    assert "my/imported" in registry.list_ids()
    with pytest.raises(ConfigError, match="there is no such file"):
        import_files([tmp_path / "none.py"])
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    for _ in range(2):  # a failed import is not remembered as done
        with pytest.raises(ZeroDivisionError):
            import_files([broken])


def test_constructors_that_fail_are_named(registered: list[str]) -> None:
    @registry.register("my/broken")
    def make(options: EnvConfig, *, render_mode: str | None = None) -> CountingEnv:
        raise OSError("no display")

    with pytest.raises(EnvironmentFault, match="my/broken cannot be made: OSError: no display"):
        describe("my/broken", EnvConfig())
    with pytest.raises(EnvironmentFault, match=r"atari/pong cannot be made: TypeError: .*no_such_option.*envs.kwargs, which"):
        describe("atari/pong", EnvConfig(kwargs={"no_such_option": 1}))


def test_environments_of_a_group_must_be_alike(registered: list[str]) -> None:
    counter = iter(range(9))
    registry.register("my/different")(lambda options, *, render_mode=None: CountingEnv(2 + next(counter)))
    with pytest.raises(EnvironmentFault, match="environment 1 has other spaces than environment 0"):
        make_group("my/different", EnvConfig(), 3)


def test_environments_must_be_those_with_which_the_run_began(registered: list[str]) -> None:
    """A file may have changed since, or another machine may have another version."""
    registry.register("my/sized")(lambda options, *, render_mode=None: CountingEnv(**options.kwargs))
    spec = describe("my/sized", EnvConfig(kwargs={"actions": 5}))
    make_group("my/sized", EnvConfig(kwargs={"actions": 5}), 2, spec=spec).close()
    with pytest.raises(EnvironmentFault, match="than when the run began, with other actions: 6 choices instead of 5 choices"):
        make_group("my/sized", EnvConfig(kwargs={"actions": 6}), 2, spec=spec)


def test_a_fault_shows_the_frames_of_the_environment_only() -> None:
    class Broken(CountingEnv):
        def step(self, action):
            return self.divide(0)

        def divide(self, x):
            return 1 / x

    registry.register("my/broken")(lambda options, *, render_mode=None: Broken())
    group = make_group("my/broken", EnvConfig(max_episode_steps=9), 1)
    now, after = rows_for(group.spec, 1)
    reset_group(group, 0, after)
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError") as fault:
        step_group(group, np.zeros((1, 1), np.int32), now, after)
    frames = fault.value.frames
    assert [line.rpartition(", in ")[2] for line in frames.splitlines() if line.startswith("  File")] == ["step", "divide"]
    assert EnvironmentFault("nothing raised").frames == ""


@pytest.mark.parametrize("env_id", ["atari/pong", "vizdoom/basic", "dm_control/cartpole-swingup"])
def test_a_render_mode_that_an_environment_does_not_have_is_refused(env_id: str) -> None:
    with pytest.raises(ConfigError, match=f"{env_id} has no render mode 'human'; it has 'rgb_array'"):
        make_env(env_id, EnvConfig(), render_mode="human")


@pytest.mark.parametrize(
    ("env_id", "observation", "parts"),
    [
        ("gym/CartPole-v1", {"obs": (4,)}, (Categorical(2),)),
        ("gym/Pendulum-v1", {"obs": (3,)}, (Continuous((-2.0,), (2.0,)),)),
        ("gym/FrozenLake-v1", {"obs": (16,)}, (Categorical(4),)),
        ("gym/Blackjack-v1", {"0": (32,), "1": (11,), "2": (2,)}, (Categorical(2),)),
        ("gym/HalfCheetah-v5", {"obs": (17,)}, (Continuous((-1.0,) * 6, (1.0,) * 6),)),
    ],
)
def test_gymnasium_runs(env_id: str, observation: dict[str, tuple[int, ...]], parts: tuple) -> None:
    group = make_group(env_id, EnvConfig(), 3)
    assert {name: spec.shape for name, spec in group.spec.observation.items()} == observation
    assert group.spec.action.parts == parts
    _run(group, 150)


@pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="no EGL library on this machine")
def test_mujoco_renders_without_a_screen() -> None:
    env = make_env("gym/HalfCheetah-v5", EnvConfig(), render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert picture.std() > 1
    env.close()


def test_gymnasium_step_limit_and_arguments() -> None:
    group = make_group("gym/CartPole-v1", EnvConfig(max_episode_steps=5, frameskip=2), 1)
    now, after = rows_for(group.spec, 1)
    reset_group(group, 0, after)
    for step in range(1, 6):
        step_group(group, np.array([[step % 2]], np.int32), now, after)
        assert now.truncated[0] == (step == 5)
    assert now.episode_return[0] == 10
    spec = describe("gym/FrozenLake-v1", EnvConfig(kwargs={"map_name": "8x8"}))
    assert spec.observation["obs"].shape == (64,)


@pytest.mark.skipif(not RUNS_DM_CONTROL, reason="dm_control 1.0.50 does not run on mujoco 4; constraints.txt has 3.17")
@pytest.mark.parametrize("task", ["cartpole-swingup", "ball_in_cup-catch", "walker-walk"])
def test_dm_control_runs(task: str) -> None:
    group = make_group(f"dm_control/{task}", EnvConfig(frameskip=10), 2)
    assert all(isinstance(part, Continuous) for part in group.spec.action.parts)
    returns = _run(group, 101)
    assert returns
    assert all(0 <= value <= 1000 for value in returns)


@pytest.mark.skipif(not RUNS_DM_CONTROL, reason="dm_control 1.0.50 does not run on mujoco 4; constraints.txt has 3.17")
def test_dm_control_seeds_limits_and_names() -> None:
    from headrace.envs.families.dm_control import SuiteEnv

    first, second = SuiteEnv("cartpole-swingup"), SuiteEnv("cartpole-swingup", flatten=False)
    a, _ = first.reset(seed=3)
    b, _ = second.reset(seed=3)
    assert np.array_equal(a, np.concatenate(list(b.values())))
    assert not np.array_equal(a, first.reset(seed=4)[0])
    assert list(b) == ["position", "velocity"]
    flags = [first.step(np.zeros(1))[2:4] for _ in range(1000)]
    assert flags[-1] == (False, True)
    assert set(flags[:-1]) == {(False, False)}


def _run(group: EnvGroup, steps: int) -> list[float]:
    """Step at random; rows have to be consistent. Returns the returns of finished games."""
    now, after = rows_for(group.spec, group.num_envs)
    reset_group(group, 1, after)
    rng = np.random.default_rng(0)
    returns: list[float] = []
    ended = np.zeros(group.num_envs, bool)
    for _ in range(steps):
        step_group(group, random_actions(group.spec, group.num_envs, rng), now, after)
        assert np.array_equal(after.first, ended)
        ended = now.terminated | now.truncated
        assert np.array_equal(after.valid, ~ended)
        assert np.array_equal(np.isnan(now.episode_return), ~ended)
        returns += now.episode_return[ended].tolist()
    group.close()
    return returns


def test_make_vec_gives_any_id_as_a_gymnasium_vector_environment(registered: list[str]) -> None:
    pytest.importorskip("ale_py")
    registered.append("my/counting-vec")
    registry.register("my/counting-vec")(lambda options, *, render_mode=None: CountingEnv())
    for env_id, shape in (("atari/pong", (3, 4, 84, 84)), ("gym/CartPole-v1", (3, 4)), ("my/counting-vec", None)):
        vector = make_vec(env_id, 3)
        observations, _ = vector.reset(seed=0)
        assert vector.num_envs == 3
        assert isinstance(vector.metadata["autoreset_mode"], AutoresetMode)
        if shape is not None:
            assert observations.shape == shape
        _, rewards, *_ = vector.step(vector.action_space.sample())
        assert rewards.shape == (3,)
        vector.close()
    with pytest.raises(UnknownEnvironment):
        make_vec("atari/pnog", 2)


def test_ids_without_a_version_are_listed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gymnasium.registry["CartPole-v1"]
    monkeypatch.setattr(gymnasium, "registry", {"Maze-v0": spec, "Maze-v2": spec, "Maze-viewer": spec, "Plain": spec})
    assert registry.list_ids("gym") == ["gym/Maze-v2", "gym/Maze-viewer", "gym/Plain"]


@pytest.mark.parametrize(
    ("register", "make"),
    [
        (registry.register_vector, lambda options, num_envs: SyncVectorEnv([CountingEnv] * 3)),
        (registry.register_tensor, lambda options, num_envs, device: CartPole(3, device)),
    ],
    ids=["vector", "tensor"],
)
def test_another_number_of_environments_than_asked_for_is_refused(registered: list[str], register: Any, make: Any) -> None:
    register("my/three")(make)
    with pytest.raises(ConfigError, match="my/three: the registered function made 3 environments, and 2 were asked for"):
        make_group("my/three", EnvConfig(), 2)
    make_group("my/three", EnvConfig(), 3).close()


def test_a_vector_environment_in_the_place_of_one_is_refused(registered: list[str]) -> None:
    registry.register("my/many")(lambda options, *, render_mode=None: SyncVectorEnv([CountingEnv] * 2))
    with pytest.raises(ConfigError, match=r"SyncVectorEnv is a vector environment: .*@headrace\.envs\.register_vector"):
        make_group("my/many", EnvConfig(), 2)


@pytest.mark.parametrize("number", [0, -1])
def test_no_environments_are_refused_by_their_number(number: int) -> None:
    with pytest.raises(ConfigError, match=f"num_envs is {number}, must be at least 1"):
        make_vec("gym/CartPole-v1", number)
