"""Environments that the user's code defines or registers: how other processes come to know them."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from headrace.config import Config, ConfigError, EnvConfig
from headrace.envs.core import imports
from headrace.envs.core.construct import complete, construct
from headrace.envs.core.errors import EnvironmentFault, cause
from headrace.envs.core.imports import check_given, import_files
from headrace.envs.core.registry import register
from headrace.envs.families.python import id_of
from headrace.envs.make import describe, make_env
from headrace.make_config import make_config

GRID = """
import gymnasium
import numpy as np
import headrace.envs

class Grid(gymnasium.Env):
    def __init__(self, size=3):
        self.observation_space = gymnasium.spaces.Box(0.0, 9.0, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(self.observation_space.shape, self.steps, np.float32), float(action), self.steps == 9, False, {}
"""
MY_GRID = GRID + 'headrace.envs.register("my/grid")(lambda options, *, render_mode=None: Grid(**options.kwargs))\n'
DESCRIBE = """
from headrace.make_config import make_config
from headrace.envs.make import describe
config = make_config({env})
print(config.env, *describe(config.env, config.envs, elsewhere=True).observation["obs"].shape)
"""
GUARDED = "if __name__ == '__main__':\n    " + DESCRIBE.strip().replace("\n", "\n    ") + "\n"
TRAIN = """
import headrace
tiny = {{"learning.total_steps": 256, "learning.batch_size": 64, "sampling.num_workers": 1, "sampling.envs_per_worker": 2,
         "run.folder": {folder!r}, "run.dashboard": False, "run.video": False, "learning.device": "cpu", "policy.mlp": [8],
         "policy.encoder": "auto", "learning.num_epochs": 1, "learning.num_minibatches": 1, "sampling.placement": {placement!r}}}
"""

FRAMES = """
from headrace.config import EnvConfig
from headrace.envs.core.errors import EnvironmentFault
from headrace.envs.make import describe
try:
    describe("{env}", EnvConfig())
except EnvironmentFault as fault:
    print(fault.frames, end="")
"""


def ran(folder: Path, script: str, name: str = "script.py") -> subprocess.CompletedProcess[str]:
    (folder / name).write_text(script)
    return subprocess.run([sys.executable, name], cwd=folder, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize(
    ("grid", "script"),
    [
        (MY_GRID, "import grid\n" + DESCRIBE.format(env='"my/grid"')),
        (GRID, "import grid\n" + DESCRIBE.format(env="grid.Grid")),
        (GRID + 'gymnasium.register("Grid-v0", Grid)\n', "import grid\n" + DESCRIBE.format(env='"gym/Grid-v0"')),
        (GRID + 'gymnasium.register("Grid-v0", "grid:Grid")\n', DESCRIBE.format(env='"gym/grid:Grid-v0"')),
        ("", MY_GRID + GUARDED.format(env='"my/grid"')),
        ("", GRID + GUARDED.format(env="Grid")),
        (GRID, 'import gymnasium, grid\ngymnasium.register("Grid-v0", grid.Grid)\n' + GUARDED.format(env='"gym/Grid-v0"')),
        (GRID, "import gymnasium, grid\n" + DESCRIBE.format(env='gymnasium.envs.registration.EnvSpec("Any-v0", grid.Grid)')),
    ],
    ids=[
        "registered",
        "class",
        "gymnasium",
        "gymnasium, not imported",
        "in the script",
        "class of the script",
        "by the script",
        "spec",
    ],
)
def test_other_processes_make_what_a_script_has(grid: str, script: str, tmp_path: Path) -> None:
    (tmp_path / "grid.py").write_text(grid)
    done = ran(tmp_path, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "3"


def test_the_arguments_of_a_class_and_of_a_spec(tmp_path: Path) -> None:
    (tmp_path / "grid.py").write_text(GRID)
    spec = 'gymnasium.envs.registration.EnvSpec("Any-v0", "grid:Grid", kwargs={"size": 7}, max_episode_steps=4)'
    done = ran(tmp_path, "import gymnasium, grid\n" + DESCRIBE.format(env=spec) + "print(config.envs.max_episode_steps)")
    assert done.stdout.split() == ["python/grid:Grid", "7", "4"], done.stderr
    done = ran(tmp_path, "import grid\n" + DESCRIBE.format(env='grid.Grid, **{"envs.kwargs": {"size": 5}}'))
    assert done.stdout.split() == ["python/grid:Grid", "5"], done.stderr


def test_a_spec_of_gymnasiums_own_must_be_the_registered_one() -> None:
    made = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    assert id_of(made.spec) == id_of(gymnasium.spec("CartPole-v1")) == "gym/CartPole-v1"
    assert id_of(gymnasium.make("FrozenLake-v1").spec) == "gym/FrozenLake-v1"
    with pytest.raises(ConfigError, match=r"give make_config 'gym/FrozenLake-v1', \*\*{'envs.kwargs': {'is_slippery': False}}"):
        id_of(gymnasium.make("FrozenLake-v1", is_slippery=False).spec)
    with pytest.raises(ConfigError, match=r"'gym/CartPole-v1', \*\*{'envs.max_episode_steps': 50}"):
        id_of(gymnasium.make("CartPole-v1", max_episode_steps=50).spec)
    with pytest.raises(ConfigError, match="may have no additional_wrappers"):
        id_of(gymnasium.wrappers.FlattenObservation(made).spec)


@pytest.mark.parametrize(
    ("script", "advice"),
    [
        (MY_GRID + DESCRIBE.format(env='"my/grid"'), 'if __name__ == "__main__":\n        headrace.train'),
        (GRID + DESCRIBE.format(env="Grid"), 'if __name__ == "__main__":\n        headrace.train'),
        (GRID + "def inner():\n    class Inner(Grid):\n        pass\n    return Inner\n" + GUARDED.format(env="inner()"),
         "top level"),
        (GRID + 'def late():\n    headrace.envs.register("my/grid")(Grid)\n'
         "if __name__ == '__main__':\n    late()\n" + GUARDED.format(env='"my/grid"'), "top level"),
    ],
    ids=["no guard", "class, no guard", "inside a function", "registered in a function"],
)  # fmt: skip
def test_what_cannot_be_carried_is_refused_with_what_to_do(script: str, advice: str, tmp_path: Path) -> None:
    done = ran(tmp_path, script)
    assert advice in done.stderr
    assert "NotCarried: the other processes of the run cannot make" in done.stderr


def test_a_notebook_is_told_to_write_a_file(tmp_path: Path) -> None:
    script = MY_GRID + DESCRIBE.format(env='"my/grid"')
    done = subprocess.run([sys.executable, "-"], input=script, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "%%writefile my_env.py" in done.stderr
    assert "import my_env " in done.stderr


def test_what_a_notebook_defined_can_be_used_there_alone(tmp_path: Path) -> None:
    script = GRID + (
        "import headrace\n"
        'settings = {"sampling.placement": "serial", "learning.total_steps": 64, "run.folder": "run", "run.video": False}\n'
        "headrace.train(headrace.make_config(Grid, **settings))\n"
        "print(len(headrace.evaluate('run', 1).returns), 'game')\n"
    )
    done = subprocess.run([sys.executable, "-"], input=script, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout.endswith("1 game\n"), done.stderr
    command = [sys.executable, "-m", "headrace.cli", "eval", "run"]
    elsewhere = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "was defined in a notebook or interactive Python, and only there it can be made" in elsewhere.stderr


def test_a_file_imports_its_siblings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(imports, "_imported", {})
    (tmp_path / "sibling_of_mine.py").write_text("NUMBER = 5")
    file = tmp_path / "with_sibling.py"
    file.write_text("from sibling_of_mine import NUMBER")
    import_files([file])
    assert sys.modules["with_sibling"].NUMBER == 5
    assert imports.imported()[-1] == str(file)


def test_a_file_that_is_named_like_another_module_replaces_none(tmp_path: Path) -> None:
    file = tmp_path / "json.py"
    file.write_text("HERE = True")
    import_files([file])
    import json

    assert not hasattr(json, "HERE")
    assert str(file) in imports.imported()


def test_a_file_that_is_named_like_another_module_is_found_by_an_id(tmp_path: Path) -> None:
    """Scripts are called test.py."""
    (tmp_path / "test.py").write_text(GRID)
    import_files([tmp_path / "test.py"])
    assert describe("python/test:Grid", EnvConfig()).observation["obs"].shape == (3,)


def test_functions_of_one_name_are_not_taken_for_each_other() -> None:
    class Level(gymnasium.Wrapper):
        def __init__(self, size: Any) -> None:
            super().__init__(gymnasium.make("CartPole-v1"))
            self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (int(np.sum(size)),), np.float32)

    def of(size: Any) -> Any:
        return lambda: Level(size)

    configs = [make_config(of(size), **{"sampling.placement": "serial"}) for size in (1, 2, np.ones(3), np.ones(4), 1)]
    assert [describe(c.env, c.envs).observation["obs"].shape for c in configs] == [(1,), (2,), (3,), (4,), (1,)]
    assert configs[0].env == configs[4].env, "a cell of a notebook that runs again resumes its run"
    five, six = (lambda size=5: Level(size)), (lambda size=6: Level(size))
    assert make_config(five, **{"sampling.placement": "serial"}).env != make_config(six, **{"sampling.placement": "serial"}).env


@pytest.mark.parametrize("imports", ["my_env.py", Path("my_env.py")])
def test_one_import_is_a_list_of_one(imports: Any) -> None:
    with pytest.raises(ConfigError, match=r"imports is .*my_env\.py.*; it must be a list of files and modules: \['my_env\.py'\]"):
        make_config("my/env", imports=imports)
    with pytest.raises(ConfigError, match=r"it must be a list of files and modules"):
        check_given(Config(), imports, "run")


def test_a_file_of_a_package_is_imported_by_its_name_there(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "myenv.py").write_text("from . import sizes\n")
    with pytest.raises(ConfigError, match=r"--import pkg\.myenv, from the folder that holds the package"):
        import_files([tmp_path / "pkg" / "myenv.py"])


def test_modules_are_imported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(imports, "_imported", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "module_of_mine.py").write_text("X = 1")
    import_files(["module_of_mine"])
    assert sys.modules["module_of_mine"].X == 1
    with pytest.raises(ConfigError, match="there is no module 'none_of_mine'"):
        import_files(["none_of_mine"])


# -- constructors and what they leave out -----------------------------------------------------------------------------------


class Plain:
    """No `gymnasium.Env`: no metadata, no spec, no close, no render_mode."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.ones(2, np.float32), 1.0, True, False, {}


def test_a_module_may_look_at_what_it_registers(tmp_path: Path) -> None:
    """The process that looks at the environment imports the module, which must not start a further one, and so on."""
    (tmp_path / "grid.py").write_text(MY_GRID + "CONFIG = headrace.make_config('my/grid')\n")
    done = ran(tmp_path, "import grid\n" + DESCRIBE.format(env='"my/grid"'))
    assert done.stdout == "my/grid 3\n", done.stderr


def test_what_an_environment_leaves_out_is_completed() -> None:
    register("my/plain")(Plain)
    env = make_env("my/plain", EnvConfig())
    assert env.reset(seed=3)[1] == {}
    assert env.step(0)[1:4] == (1.0, True, False)
    assert env.unwrapped.metadata == {}
    env.close()
    assert describe("my/plain", EnvConfig()).observation["obs"].shape == (2,)
    with pytest.raises(ConfigError, match="has no render mode 'rgb_array'"):
        make_env("my/plain", EnvConfig(), render_mode="rgb_array")


def test_a_reset_needs_no_options() -> None:
    class Seeded(Plain):
        def reset(self, seed: Any = None) -> Any:  # type: ignore[override]
            return super().reset(seed=seed)

    assert complete(Seeded()).reset(seed=3)[1] == {}


def test_one_of_several_agents_is_refused_with_what_to_do() -> None:
    class Match(Plain):
        possible_agents = ("first", "second")

    with pytest.raises(ConfigError, match=r"Match is an environment of several agents: register .*register_parallel"):
        complete(Match())


def test_what_is_no_environment_is_refused_with_what_it_lacks() -> None:
    class Spaceless(gymnasium.Env):
        def reset(self, **_: Any) -> Any:
            return 0, {}

    register("my/nothing")(lambda: None)
    register("my/spaceless")(Spaceless)
    with pytest.raises(EnvironmentFault, match=r"my/nothing cannot be made: TypeError: None has no .*, reset, step; a"):
        make_env("my/nothing", EnvConfig())
    with pytest.raises(EnvironmentFault, match=r"has no observation_space, action_space; a gymnasium\.Env has"):
        make_env("my/spaceless", EnvConfig())


def test_a_module_that_fails_is_shown_from_its_own_line_on(tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text("import fastphysics\n")
    (tmp_path / "bad.py").write_text("def make(:\n")
    done = ran(tmp_path, DESCRIBE.format(env='"python/world:make"'))
    assert "python/world:make cannot be made: ModuleNotFoundError: No module named 'fastphysics'" in done.stderr
    done = ran(tmp_path, FRAMES.format(env="python/world:make"))
    own = r'Traceback .*\n  File ".*/world\.py", line 1, in <module>\n    import fastphysics\n'
    assert re.fullmatch(own, done.stdout), done.stdout
    assert ran(tmp_path, FRAMES.format(env="python/bad:make")).stdout == ""  # the message of a SyntaxError has the line


def test_an_environment_in_place_of_its_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "grid.py").write_text(GRID + "grid = Grid()\n")
    done = ran(tmp_path, DESCRIBE.format(env='"python/grid:grid"'))
    assert re.search(r"python/grid:grid is <.*>; name a class or a function that makes an environment", done.stderr), done.stderr


def test_gymnasiums_constructors_need_no_render_mode() -> None:
    class Bare(Plain, gymnasium.Env):
        pass

    gymnasium.register("Bare-v0", Bare)
    try:
        make_env("gym/Bare-v0", EnvConfig()).close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ConfigError, match="has no render mode 'rgb_array'"):
                make_env("gym/Bare-v0", EnvConfig(), render_mode="rgb_array")
    finally:
        del gymnasium.registry["Bare-v0"]


def test_how_functions_and_classes_are_called() -> None:
    class Sized:
        def __init__(self, size: int = 1, render_mode: str | None = None) -> None:
            self.got = (size, render_mode)

    options = EnvConfig(kwargs={"size": 3})
    assert construct(Sized, options, None).got == (3, None)
    assert construct(Sized, options, "rgb_array").got == (3, "rgb_array")
    assert construct(lambda options, *, render_mode=None: (options, render_mode), options, "human") == (options, "human")
    assert construct(lambda o: o, options, "human") is options
    assert construct(lambda size=1: size, options, "human") == 3
    assert construct(lambda size: size, options, "human") == 3
    shown = EnvConfig(kwargs={"render_mode": "rgb_array"})  # as with gymnasium.make, what is asked for goes before it
    assert [construct(Sized, shown, mode).got for mode in (None, "human")] == [(1, "rgb_array"), (1, "human")]


def test_the_cause_of_a_group_of_exceptions() -> None:
    group = ExceptionGroup("unhandled errors", [ValueError("one"), ExceptionGroup("inner", [KeyError("two")])])
    assert cause(group) == "unhandled errors: ValueError: one; inner: KeyError: 'two'"


# -- trainings ------------------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("placement", ["served", "inline", "serial", "device"])
def test_it_trains_in_every_placement(placement: str, tmp_path: Path) -> None:
    (tmp_path / "grid.py").write_text(MY_GRID)
    script = TRAIN.format(folder="run", placement=placement) + (
        "import grid\n"
        'result = headrace.train(headrace.make_config("my/grid", **tiny))\n'
        "print(headrace.evaluate(result.folder, episodes=2))\n"
        "headrace.load_policy(result.folder)\n"
    )
    done = ran(tmp_path, script)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "grid.py") in (tmp_path / "run" / "config.json").read_text()


@pytest.mark.process
def test_an_error_that_comes_again_ends_the_run_at_once(tmp_path: Path) -> None:
    """The module can be imported here and by the two processes that describe the environment, but by none after them."""
    (tmp_path / "grid.py").write_text(
        "import pathlib\n" + MY_GRID + "count = pathlib.Path('count')\nseen = len(count.read_text()) if count.exists() else 0\n"
        "count.write_text('x' * (seen + 1))\nif seen > 2:\n    import not_there_any_more\n"
    )
    script = TRAIN.format(folder="run", placement="served") + (
        'import grid\nheadrace.train(headrace.make_config("my/grid", **tiny))\n'
    )
    done = ran(tmp_path, script)
    assert "RunFailed" in done.stderr
    assert "not_there_any_more" in done.stderr
    assert "restart" not in done.stderr + done.stdout


def test_ctrl_c_waits_until_a_file_is_imported(tmp_path):
    """The file may be importing torch, whose C++ aborts the process when an exception meets it."""
    (tmp_path / "slow_file.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.1)\nprint('imported')\n"
    )
    command = [sys.executable, "-m", "headrace.cli", "train", "--env", "gym/CartPole-v1", "--import", "slow_file.py"]
    run = subprocess.run(
        [*command, "--run.folder", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (130, "imported\n", "")
    assert not (tmp_path / "run").exists()
