"""A run folder is data: the Python files that it names run only where the user has named them too."""

import importlib
import json
import os
import pathlib
import shlex
import sys
import textwrap
from pathlib import Path

import gymnasium
import pytest
from tiny_runs import trained

import headrace
from headrace import cli
from headrace import config as configs
from headrace.config import Config, ConfigError
from headrace.envs.core import imports, registry
from headrace.envs.core.imports import ImportsNotGiven, absolute, check_given, needed_code
from headrace.evaluation.policy import load_policy

FILE = """
    import gymnasium, headrace, pathlib
    pathlib.Path(r"{marker}").touch()
    @headrace.envs.register("{env}")
    def pole(options, *, render_mode=None):
        return gymnasium.make("CartPole-v1", render_mode=render_mode)
"""
TINY = [
    "--placement", "serial", "--batch-size", "512", "--num-minibatches", "1",
    "--no-video", "--num-threads", "1", "--no-dashboard",
]  # fmt: skip


@pytest.fixture
def forget():
    """Afterwards and when called, this process is like a new one, which has imported no file of the user's."""
    registered = dict(registry._registered)

    def do():
        import sys

        for name in [name for name, module in sys.modules.items() if getattr(module, "__file__", None) in imports._imported]:
            del sys.modules[name]
        imports._imported.clear()
        registry._registered.clear()
        registry._registered.update(registered)

    yield do
    do()


@pytest.fixture
def run(tmp_path, forget):
    """The folder of a run with a file of the user's, the file, and the file that it touches when it is imported."""
    marker, file = tmp_path / "marker", tmp_path / "mine.py"
    file.write_text(textwrap.dedent(FILE.format(marker=marker, env="my/pole")))
    command = ["train", "--import", str(file), "--env", "my/pole", *TINY, "--run.folder", str(tmp_path / "run")]
    assert cli.main([*command, "--total-steps", "512"]) == 0
    forget()
    marker.unlink()
    return tmp_path / "run", file, marker


HIGHER_WINS = Path(__file__).with_name("higher_wins.py")
UNLIKE = """
    import runpy
    from gymnasium import spaces
    from headrace.envs.core.registry import register_parallel

    class Unlike(runpy.run_path(r"{file}")["HigherWins"]):
        def action_space(self, agent):
            return spaces.Discrete(3 if agent == "one" else 4)

    register_parallel("unlike", agents=2, defaults={{"sampling.rollout": 4, "sampling.num_workers": 1, "population.size": 2}})(
        lambda options, render_mode=None: Unlike()
    )
"""


@pytest.mark.parametrize(("env", "commands"), [("higher-wins", ["eval", "watch", "play"]), ("unlike", ["eval", "watch"])])
def test_the_commands_that_a_run_ends_with_work(forget, tmp_path, capsys, env, commands):
    """In a new process. Agents that observe or do different things cannot take each other's place in `headrace play`."""
    pytest.importorskip("imageio_ffmpeg")
    folder, file = tmp_path / "a run", HIGHER_WINS if env == "higher-wins" else tmp_path / "unlike.py"
    if file != HIGHER_WINS:
        file.write_text(textwrap.dedent(UNLIKE.format(file=HIGHER_WINS)))
    train = ["train", "--import", str(file), "--env", env, *TINY, "--run.folder", str(folder), "--total-steps", "128"]
    assert cli.main([*train, "--batch-size", "128"]) == 0
    *_, ended, hints = capsys.readouterr().out.partition("mean return of the last 100 episodes")
    assert ended
    hints = hints.splitlines()[1:]
    assert [shlex.split(hint)[:3] for hint in hints] == [["headrace", command, str(folder)] for command in commands]
    for hint in hints:
        forget()
        assert cli.main(shlex.split(hint)[1:]) == 0, hint
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [["eval", "--episodes", "2"], ["watch", "--max-steps", "3"]])
def test_files_that_are_not_given_do_not_run(run, capsys, command):
    folder, file, marker = run
    arguments = [command[0], str(folder), *command[1:]]
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert not marker.exists()
    assert str(file) in said
    assert "Traceback" not in said
    told = shlex.split(said.strip().splitlines()[-1])
    assert told == ["headrace", *arguments, "--import", str(file)]
    assert cli.main(told[1:]) == 0
    assert marker.exists()


def resumed(folder, *flags):
    return ["train", *TINY, "--run.folder", str(folder), *flags, "--total-steps", "600"]


@pytest.mark.parametrize("env", ["my/pole", "gym/CartPole-v1"])  # known with the file, and without it
def test_resuming_wants_them_too(run, capsys, env):
    folder, file, marker = run
    config = json.loads((folder / "config.json").read_text())
    config["env"] = env
    (folder / "config.json").write_text(json.dumps(config))
    arguments = resumed(folder, "--env", env)
    assert cli.main(arguments) == 2
    assert not marker.exists()
    told = shlex.split(capsys.readouterr().err.strip().splitlines()[-1])
    assert told == ["headrace", *arguments, "--import", str(file)]
    assert cli.main(told[1:]) == 0


def test_an_algorithm_of_such_a_file_is_asked_for_by_its_file(run, capsys):
    folder, file, _ = run
    arguments = resumed(folder, "--env", "gym/CartPole-v1", "--algorithm", "mine")
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.endswith(shlex.join(["headrace", *arguments, "--import", str(file)]) + "\n")
    assert cli.main([*arguments, "--import", str(file)]) == 2
    assert "learning.algorithm 'mine' is unknown" in capsys.readouterr().err


def test_what_is_not_known_with_the_files_either_is_named(run, capsys):
    folder, file, _ = run
    assert cli.main([*resumed(folder, "--env", "my/pile"), "--import", str(file)]) == 2
    assert "there is no environment 'my/pile'" in capsys.readouterr().err


def test_in_python_they_are_given_or_imported_before(run):
    folder, file, marker = run
    with pytest.raises(ImportsNotGiven, match=r"mine\.py"):
        load_policy(folder)
    assert not marker.exists()
    assert load_policy(folder, imports=[file]).step >= 512
    assert marker.exists()
    assert load_policy(folder).step >= 512, "this process has imported it"


def test_a_file_that_has_moved_is_taken_from_where_it_is(run):
    folder, file, _ = run
    there = file.rename(file.with_name("elsewhere.py"))
    assert load_policy(folder, imports=[there]).config.imports == (str(there),)


def test_a_package_named_by_the_environments_id(tmp_path):
    config = configs.override(Config(), env="gym/some_package.of_somebody:Thing-v0")
    assert needed_code(config) == ("some_package.of_somebody",)
    with pytest.raises(ImportsNotGiven, match=r"some_package\.of_somebody"):
        check_given(config, [], tmp_path)
    assert check_given(config, ["some_package.of_somebody"], tmp_path) == ()
    (tmp_path / "config.json").write_text(configs.to_json(config))
    with pytest.raises(ImportsNotGiven):
        load_policy(tmp_path)
    assert cli.main(["train", *TINY, "--run.folder", str(tmp_path)]) == 2


@pytest.mark.parametrize("name", ["rover.py", "/somewhere/rover.py"])
def test_a_file_has_the_name_of_its_module(name: str, tmp_path: Path) -> None:
    """Also without its folder, as an exported policy names it."""
    config = configs.override(Config(), env="python/rover:Rover", imports=(name,))
    assert needed_code(config) == (name,)
    assert check_given(config, ["rover.py"], tmp_path) == (absolute("rover.py"),)


FUNCTION = """
    import gymnasium, pathlib
    def touch(path="marker"):
        pathlib.Path(path).touch()
    def pole():
        return gymnasium.make("CartPole-v1")
    class Pole(gymnasium.Wrapper):
        def __init__(self):
            super().__init__(gymnasium.make("CartPole-v1"))
"""


@pytest.fixture
def touching(tmp_path, monkeypatch):
    """A module that this process has imported, in a folder of its own."""
    (tmp_path / "touching.py").write_text(textwrap.dedent(FUNCTION))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(imports, "_named", set())
    yield tmp_path / "touching.py"
    sys.modules.pop("touching", None)


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        ("python/touching:touch", {"path": "{}"}),
        ("python/pathlib:Path.touch", {"self": "{}"}),
        ("python/os:system", {"command": "touch {}"}),
        ("python/os:system,python/touching:Pole", {"command": "touch {}"}),
    ],
)
def test_a_function_that_a_folder_names_is_not_called(touching, tmp_path, env, kwargs):
    """Nor where its module is imported already, as `os` is everywhere."""
    importlib.import_module("touching")
    marker, other = tmp_path / "marker", tmp_path / "other.py"
    other.touch()
    kwargs = {name: text.format(marker) for name, text in kwargs.items()}
    for named in ((), (str(touching), pathlib.__file__, os.__file__)):
        config = configs.override(Config(), env=env, imports=named, **{"envs.kwargs": kwargs})
        (tmp_path / "config.json").write_text(configs.to_json(config))
        for given in ([], [other]):
            with pytest.raises(ImportsNotGiven, match=r"os|touching|pathlib"):
                load_policy(tmp_path, imports=given)
    assert not marker.exists()


def test_nor_is_one_of_a_module_that_the_given_file_imports(touching, tmp_path):
    config = configs.override(Config(), env="python/touching:pathlib.Path", imports=(str(touching),))
    (tmp_path / "config.json").write_text(configs.to_json(config))
    with pytest.raises(ConfigError, match="pathlib is a module; name it before the colon: python/pathlib:NAME"):
        load_policy(tmp_path, imports=[touching])


def test_a_class_of_environments_of_an_imported_module_may_be_made(touching, tmp_path):
    config = configs.override(Config(), env="python/touching:Pole")
    with pytest.raises(ImportsNotGiven, match="touching"):
        check_given(config, [], tmp_path)
    importlib.import_module("touching")
    assert check_given(config, [], tmp_path) == ()


def test_what_the_user_has_named_in_this_process_may_be_made(touching, tmp_path):
    """A function that only this process knows, too."""
    local = lambda: gymnasium.make("CartPole-v1")  # noqa: E731 (no import gives it)
    for number, env in enumerate(["python/touching:pole", local]):
        assert headrace.evaluate(trained(env, tmp_path / str(number)), episodes=2).step >= 16
    imports._named.clear()
    with pytest.raises(ImportsNotGiven, match="test_trust"):
        headrace.evaluate(tmp_path / "1")
    assert headrace.evaluate(tmp_path / "1", episodes=2, env="python/touching:pole").env == "python/touching:pole"


def test_nothing_is_asked_where_nothing_is_needed(tmp_path):
    assert check_given(Config(), [], tmp_path) == ()


def test_a_folder_of_runs_names_those_that_can_be_evaluated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in "abcde":
        (tmp_path / "ex/runs" / name).mkdir(parents=True)
        (tmp_path / "ex/runs" / name / "config.json").touch()
    assert cli.main(["eval", "ex"]) == 2
    assert capsys.readouterr().err == "headrace: ex holds runs: choose one, such as ex/runs/a, ex/runs/b, ex/runs/c\n"
