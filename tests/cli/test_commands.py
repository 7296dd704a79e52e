"""The command line as a person uses it: real processes, real runs."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from headrace import cli
from headrace.cli.flags import given_settings, parse_config
from headrace.cli.options import PolicyOptions, parse
from headrace.config import ConfigError
from headrace.runs.metrics import KEYS, read_jsonl

SMALL = [
    "--env", "gym/CartPole-v1", "--placement", "serial", "--batch-size", "512", "--no-video", "--log-interval", "0.2",
    "--num-threads", "1", "--no-dashboard",
]  # fmt: skip


@pytest.fixture
def headrace(capsys):
    """Call the command line in this process (a new one needs seconds for its imports alone)."""

    def call(*arguments, code=0):
        assert cli.main([str(argument) for argument in arguments]) == code
        return capsys.readouterr()

    return call


# -- one run, from the first step to the video -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    command = [sys.executable, "-m", "headrace.cli", "train", *SMALL, "--total-steps", "4000", "--run.folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_a_run_leaves_what_it_promises(run):
    folder, output = run
    assert "learning.total_steps reached at step" in output
    assert f"headrace eval {folder}" in output
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.json", "system.json", "log.txt", "metrics.jsonl", "tensorboard", "checkpoints"}
    lines = read_jsonl(folder / "metrics.jsonl")
    assert lines[-1]["global_step"] >= 4000
    assert {key for line in lines for key in line if not key.startswith("env/")} - {"time"} <= KEYS.keys()


def test_a_result_that_cannot_be_written_is_an_error(run, capsys):
    with open("/dev/full", "w") as full, mock.patch.object(sys, "stdout", full):
        assert cli.main(["eval", str(run[0]), "--episodes", "1", "--json"]) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_the_same_command_goes_on_and_says_what_changed(run, headrace):
    folder, _ = run
    again = headrace("train", *SMALL, "--run.folder", folder, "--learning.total_steps", 6000)
    assert "learning.total_steps: 4000 -> 6000" in again.out
    assert "Going on from" in again.out
    steps = [line["global_step"] for line in read_jsonl(folder / "metrics.jsonl")]
    assert steps == sorted(set(steps))
    assert 6000 <= steps[-1] < 7000
    assert json.loads((folder / "config.json").read_text())["learning"]["total_steps"] == 6000
    refused = headrace("train", *SMALL, "--run.folder", folder, "--core", "gru", code=2)
    assert "policy.core: none -> gru" in refused.err
    refused = headrace("train", *SMALL, "--run.folder", folder, "--must-be-new", code=2)
    assert "already holds a run" in refused.err


def test_eval_prints_one_line_or_json(run, headrace):
    folder, _ = run
    line = headrace("eval", folder, "--episodes", 3).out
    assert line.startswith("gym/CartPole-v1: mean return ")
    assert "over 3 episodes" in line
    data = json.loads(headrace("eval", folder, "--episodes", 5, "--num-envs", 2, "--json", "--deterministic").out)
    assert len(data["returns"]) == 5
    assert data["returns"] == data["lengths"], "CartPole pays 1 per step"
    assert data["mean"] == pytest.approx(np.mean(data["returns"]))
    assert data["ci95"][0] <= data["mean"] <= data["ci95"][1]


def test_a_warning_is_a_line_without_source(run, headrace, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(run[0], folder)
    headrace("train", *SMALL, "--run.folder", folder, "--learning.total_steps", 7000)
    older, newest = sorted((folder / "checkpoints").iterdir())[-2:]
    tensors = newest / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    shown = headrace("eval", folder, "--episodes", 1)
    assert shown.err.startswith(f"warning: {tensors} is damaged")
    assert shown.err.endswith(f"using {older.name}\n")
    assert len(shown.err.splitlines()) == 1


def test_any_checkpoint_of_a_run_can_be_evaluated(run, headrace, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(run[0], folder)
    headrace("train", *SMALL, "--run.folder", folder, "--learning.total_steps", 7000)
    for saved in (folder / "checkpoints").iterdir():
        played = json.loads(headrace("eval", folder, "--episodes", 1, "--json", "--checkpoint", saved).out)
        assert played["step"] == int(saved.name.rpartition("-")[2])
    said = headrace("eval", folder, "--checkpoint", "7000", code=2).err
    assert said.startswith("headrace: there is no checkpoint 7000: give newest, best, or a folder such as ")
    assert f"{folder}/checkpoints/0" in said


def test_watch_writes_a_video_that_plays(run, headrace, tmp_path):
    imageio = pytest.importorskip("imageio.v2")
    folder, _ = run
    shown = headrace("watch", folder, "--video", tmp_path / "out.mp4", "--max-steps", 20).out
    assert "out.mp4: step" in shown
    frames = [frame for frame in imageio.get_reader(tmp_path / "out.mp4")]  # noqa: C416 - its length is infinite
    assert len(frames) in range(10, 22)
    assert frames[0].shape == (400, 600, 3)


# -- interruption ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_the_null_device(tmp_path, closed):
    code = "import os, sys; from headrace import cli; code = cli.main(['envs']); print(file=sys.stderr)"
    code += "; open('out', 'w').write(f'{code} ' + ' '.join(os.readlink(f'/proc/self/fd/{n}') for n in (1, 2)))"
    command, environ = f'{sys.executable} -c "$CODE" {closed}', {**os.environ, "CODE": code}
    subprocess.run(command, shell=True, check=True, env=environ, cwd=tmp_path, timeout=100)
    code, *files = (tmp_path / "out").read_text().split()
    assert code == "0"
    assert "/dev/null" in files


def test_a_program_without_standard_streams_trains(tmp_path):
    code = "import headrace; headrace.train(headrace.make_config('gym/CartPole-v1', **{'run.folder': 'run', 'run.video': False, "
    code += "'learning.total_steps': 300, 'sampling.placement': 'serial'}))"
    command, environ = f'{sys.executable} -c "$CODE" <&- >&- 2>&-', {**os.environ, "CODE": code}
    subprocess.run(command, shell=True, check=True, env=environ, cwd=tmp_path, timeout=100)
    assert (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize("imported", ["numpy", "headrace.cli.flags"])
@pytest.mark.parametrize("command", [["-m", "headrace.cli"], ["headrace"]])
def test_ctrl_c_while_the_command_imports_is_quiet(tmp_path, command, imported):
    (tmp_path / "headrace").write_text("from headrace.cli import main\nmain()")
    command = [sys.executable, "-X", "importtime", *command, "envs"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not process.stderr.readline().endswith(f" {imported}\n"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert all(line.startswith("import time:") for line in errors.splitlines())


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_and_no_process(tmp_path):
    command = [sys.executable, "-m", "headrace.cli", "train", *SMALL[:2], "--run.folder", str(tmp_path), "--no-video",
               "--batch-size", "512", "--num-workers", "1", "--log-interval", "0.2"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while "step " not in process.stdout.readline():
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    deadline = time.monotonic() + 60
    while _session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _session(process.pid) == []


LEAVING = """
    import os, subprocess, sys, threading, time
    import gymnasium
    from headrace.envs import register

    class Leaving(gymnasium.Wrapper):
        steps = 0

        def step(self, action):
            Leaving.steps += 1
            if Leaving.steps == 100:
                threading.Thread(target=time.sleep, args=(3600,), name="leftover").start()
                subprocess.Popen(["sleep", "3600"])
                if os.fork() == 0:
                    time.sleep(3600)
            return super().step(action)

    @register("leaving/pole")
    def make(options, *, render_mode=None):
        return Leaving(gymnasium.make("CartPole-v1", render_mode=render_mode))
"""


@pytest.mark.process
def test_a_run_in_one_process_ends_whatever_its_environments_have_left_running(tmp_path):
    """A thread that Python would wait for, a program and a forked process."""
    (tmp_path / "leaving.py").write_text(textwrap.dedent(LEAVING))
    command = [sys.executable, "-m", "headrace.cli", "train", "--import", str(tmp_path / "leaving.py"), *SMALL[2:],
               "--env", "leaving/pole", "--run.folder", str(tmp_path / "run"), "--total-steps", "1000"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        assert "learning.total_steps reached at step" in output
        assert "threads that an environment has left running are not waited for: leftover" in errors
        deadline = time.monotonic() + 60
        while _session(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _session(process.pid) == []
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _session(leader):
    """Processes of the session that `leader` began."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(pid)) == leader:
                found.append(int(pid))
        except ProcessLookupError:
            continue
    return found


def test_a_folder_may_have_a_name_that_is_no_text(headrace, tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    headrace("train", *SMALL, "--total-steps", "600", "--run.folder", folder, "--run.video")
    log = Path(folder, "log.txt").read_bytes().decode(errors="surrogateescape")
    assert f"Learning curve: {folder}/curve.png" in log
    headrace("eval", folder, "--episodes", "1")


def test_an_environment_that_its_id_imports_has_its_video(headrace, tmp_path, monkeypatch):
    """Where other processes make the environments, this one has not imported the module at the end."""
    code = "import gymnasium\ndef Pole(**kwargs):\n    return gymnasium.make('CartPole-v1', **kwargs)\n"
    (tmp_path / "poles.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    served = ["--env", "python/poles:Pole", "--placement", "served", "--num-workers", "1", "--video"]
    shown = headrace("train", *SMALL, *served, "--total-steps", "600", "--run.folder", "run")
    assert (tmp_path / "run" / "video.mp4").exists(), shown.out


def test_a_run_in_which_no_episode_ended_says_so(headrace, tmp_path):
    shown = headrace("train", *SMALL, "--env", "gym/Pendulum-v1", "--total-steps", "512", "--run.folder", tmp_path)
    assert "learning.total_steps reached at step 512; no episode has ended" in shown.out
    assert "nan" not in shown.out


def test_settings_without_effect_are_named(headrace, tmp_path):
    flags = ["--sampling.placement", "serial", "--no-video", "--learning.total-steps", 32, "--learning.ppo-clip", 0.2]
    idle = ["--num-policy-workers", 2, "--batch-timeout", 0.01]
    shown = headrace("train", "--env", "gym/CartPole-v1", "--learning.algorithm", "pqn", *flags, *idle, "--run.folder", tmp_path)
    assert "No effect on pqn: learning.ppo_clip\n" in shown.out
    assert "No effect in the placement serial: sampling.num_policy_workers, sampling.batch_timeout\n" in shown.out
    again = [*flags[:-3], 64, "--run.folder", tmp_path]
    assert "No effect" not in headrace("train", "--env", "gym/CartPole-v1", "--learning.algorithm", "pqn", *again).out


def test_a_run_that_ends_before_its_first_checkpoint_suggests_nothing(tmp_path):
    from headrace.cli.train import _next_commands

    config, result = parse_config(["--env", "gym/CartPole-v1", "--run.folder", str(tmp_path)]), mock.MagicMock()
    assert _next_commands(result, config) == []
    (tmp_path / "checkpoints" / "000000001-step-64").mkdir(parents=True)
    assert _next_commands(result, config) == [f"headrace eval {tmp_path}"]  # a video was to be recorded, and is not there
    config.run.video = False
    assert _next_commands(result, config) == [f"headrace eval {tmp_path}", f"headrace watch {tmp_path}"]


def test_the_last_line_says_of_which_policies_its_numbers_are():
    from headrace.cli.train import _end

    result = SimpleNamespace(reason="max_minutes", global_step=12_000, mean_return=9.5)
    alone, several = (parse_config(["--env", "gym/CartPole-v1", "--population.size", size]) for size in "12")
    assert _end(result, alone) == "run.max_minutes over at step 12,000; mean return of the last 100 episodes 9.50"
    assert _end(result, several) == (
        "run.max_minutes over after 12,000 steps of all policies; policy 0: mean return of the last 100 episodes 9.50"
    )
    result.mean_return = math.nan
    assert _end(result, several) == "run.max_minutes over after 12,000 steps of all policies; policy 0: no episode has ended"


def test_a_checkpoints_folder_is_of_the_first_player(monkeypatch):
    from headrace.evaluation import policy
    from headrace.population import matchmaking

    asked = []

    def second(against, spec, which, *others):
        asked.append(which)
        raise ConfigError("enough is known")

    monkeypatch.setattr(policy, "load_policy", lambda run, which, **others: asked.append(which) or mock.MagicMock())
    monkeypatch.setattr(matchmaking, "load_player", second)
    for which in ("best", "one/checkpoints/000003-step-64"):
        assert cli.main(["play", "one", "--against", "two", "--checkpoint", which]) == 2
    assert asked == ["best", "best", Path("one/checkpoints/000003-step-64"), "newest"]


@pytest.mark.parametrize("can_be_drawn", [True, False])
def test_watch_is_suggested_where_training_could_record_a_video(headrace, tmp_path, monkeypatch, can_be_drawn):
    monkeypatch.chdir(tmp_path)
    lines = ["from gymnasium.envs.classic_control import CartPoleEnv", "class Drawn(CartPoleEnv):"]
    lines.append("    pass" if can_be_drawn else "    metadata = {'render_modes': []}")
    Path(f"drawn_{can_be_drawn}.py").write_text("\n".join(lines))
    own = ["--env", f"python/drawn_{can_be_drawn}:Drawn", "--max-episode-steps", "20", "--video"]
    shown = headrace("train", *SMALL, *own, "--total-steps", "512", "--run.folder", "a")
    assert "\nheadrace eval a" in shown.out
    assert ("\nheadrace watch a" in shown.out) == Path("a/video.mp4").exists() == can_be_drawn


# -- what people get wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--env", "gym/CartPol-v1"], "nearest: gym/CartPole-v1"),
        (["train", *SMALL, "--batch-size", "1000"], "Nearest: 768 or 1024"),
        (["train", *SMALL, "--run.folder", ""], "run.folder is empty"),
        (["train", *SMALL, "--run.folder", "a/" * 2000], "run.folder is 2000 folders deep"),
        (["train", *SMALL, "--num-threads", "2147483648"], "learning.num_threads is 2147483648; it must be at most 4096"),
        (["train", *SMALL, "--import", "nowhere.py"], "nowhere.py: there is no such file"),
        (["train", *SMALL, "--run.folder", "/proc/nope"], "the run folder /proc/nope cannot be used: No such file"),
        (["train", *SMALL, "--learning.gama", "1"], "--learning.gamma"),
        (["train", *SMALL, "--resize=64x48"], "2 numbers, with spaces between them: --envs.resize 64 48\n"),
        (["train", *SMALL, "--resize", "a", "b"], "2 numbers, with spaces between them: --envs.resize A B\n"),
        (["eval", "nowhere"], "nowhere is no run folder"),
        (["eval", "nowhere", "--episodes", "0"], "at least 1"),
        (["eval", "nowhere", "--num-envs", "-1"], "num_envs is -1; it must be at least 1"),
        (["eval", "nowhere", "--seed", "-1"], "seed is -1; it must be at least 0"),
        (["play", "nowhere", "--num-envs", "-3"], "num_envs is -3; it must be at least 1"),
        (["watch", "nowhere", "--episodes", "0"], "episodes is 0; it must be at least 1"),
        (["watch", "nowhere", "--max-steps", "0"], "max_steps is 0; it must be at least 1"),
        (["eval", "nowhere", "--num-envs", "1000000000"], "num_envs is 1000000000; it must be at most 65536"),
        (["tune", "gym/CartPole-v1", "--minutes", "nan"], "minutes is nan; it must be a finite number"),
        (["tune", "gym/CartPole-v1", "--minutes", "-1"], "minutes is -1.0; it must be above 0"),
        (["tune", "gym/CartPole-v1", "--batch-sizes", "0"], "batch_sizes is (0,); each must be at least 1"),
        (["train", *SMALL, "--envs.kwargs", '{"a": ' + "[" * 2000 + "]" * 2000 + "}"], "--envs.kwargs"),
        (["walk"], "unknown command 'walk'"),
        ([], ""),
    ],
)
def test_one_message_and_exit_code_2(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = cli.main(arguments)
    errors = capsys.readouterr().err
    assert code == 2
    assert words in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused(headrace, tmp_path):
    from headrace.runs.folder import RunFolder

    with RunFolder(tmp_path):
        shown = headrace("train", *SMALL, "--run.folder", tmp_path, code=2).err
    assert f"in use by process {os.getpid()}" in shown
    assert "Traceback" not in shown


# -- flags -------------------------------------------------------------------------------------------------------------


def test_settings_come_from_defaults_then_environment_then_flags():
    config = parse_config(["--env", "gym/CartPole-v1"])
    assert config.learning.learning_rate == 1e-3
    config = parse_config(["--env=gym/CartPole-v1", "--learning.learning_rate", "0.5", "--policy.mlp", "8", "9"])
    assert (config.learning.learning_rate, config.policy.mlp) == (0.5, (8, 9))
    impala = ["--env", "gym/CartPole-v1", "--learning.algorithm", "impala"]
    small, paper = parse_config(impala).learning, parse_config([*impala, "--learning.preset", "paper"]).learning
    assert (small.batch_size, small.reduction, small.optimizer, small.learning_rate) == (160, "mean", "adam", 2e-3)
    assert (paper.batch_size, paper.reduction, paper.optimizer, paper.learning_rate) == (640, "sum", "rmsprop-tf", 6e-4)


def test_dashes_underscores_and_short_names():
    for flag in ("--sampling.num-workers", "--sampling.num_workers", "--num-workers", "--num_workers"):
        assert parse_config(["--env", "gym/CartPole-v1", flag, "7"]).sampling.num_workers == 7
        assert parse_config(["--env", "gym/CartPole-v1", f"{flag}=7"]).sampling.num_workers == 7
    assert parse_config(["--env", "gym/CartPole-v1", "--no-video"]).run.video is False
    for off in (["--run.video", "false"], ["--run.video=False"], ["--video", "false"], ["--run.video", "true", "--run.no-video"]):
        config = parse_config(["--env", "gym/CartPole-v1", *off, "--seed", "3"])
        assert (config.run.video, config.seed) == (False, 3)
    assert parse_config(["--env", "gym/CartPole-v1", "--run.must-be-new", "True"]).run.must_be_new
    for on in (["--grayscale"], ["--envs.grayscale"], ["--envs.grayscale", "true"], ["--grayscale=true"]):
        assert given_settings([*on, "--seed", "3"]) == {"envs.grayscale": True, "seed": 3}
    for off in (["--no-grayscale"], ["--envs.no-grayscale"], ["--envs.grayscale", "False"], ["--grayscale=false"]):
        assert given_settings(off) == {"envs.grayscale": False}
    kwargs = parse_config(["--env", "gym/CartPole-v1", "--envs.kwargs", '{"a": [1, null]}']).envs.kwargs
    assert kwargs == {"a": [1, None]}


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--mlp", "8", "1_6"], "policy.mlp", (8, 16)),
        (["--mlp"], "policy.mlp", ()),
        (["--q.support", "-1e1", "+.5"], "q.support", (-10.0, 0.5)),
        (["--resize", "None"], "envs.resize", None),
        (["--resize", "8", "9"], "envs.resize", (8, 9)),
    ],
)
def test_numbers_of_a_list(flags, name, value):
    assert given_settings(flags) == {name: value}


def test_whole_numbers_may_have_underscores_wherever_other_defaults_depend_on_them():
    config = parse_config(["--env", "atari/pong", "--placement", "device", "--envs-per-worker", "1_6", "--rollout", "3_2"])
    assert (config.num_envs, config.learning.batch_size) == (16 * config.sampling.num_workers, 32 * config.num_envs)


def test_explicit_flags_beat_the_saved_run_and_the_rest_is_kept(tmp_path):
    from headrace import config as configs

    saved = parse_config(["--env", "gym/CartPole-v1", "--gamma", "0.9", "--entropy-coef", "0.5", "--must-be-new"])
    (tmp_path / "config.json").write_text(configs.to_json(saved))
    config = parse_config(["--env", "gym/CartPole-v1", "--run.folder", str(tmp_path), "--gamma", "0.8"])
    assert (config.learning.gamma, config.learning.entropy_coef, config.run.must_be_new) == (0.8, 0.5, False)


USERS_FILE = """
    import gymnasium, headrace
    @headrace.envs.register("my/pole", defaults={"learning.gamma": 0.5})
    def pole(options, *, render_mode=None):
        return gymnasium.make("CartPole-v1", render_mode=render_mode)
"""


def test_another_algorithm_in_the_folder_of_a_run_is_refused_by_that_reason(tmp_path):
    from headrace import config as configs

    arguments = ["--env", "gym/CartPole-v1", "--run.folder", str(tmp_path)]
    (tmp_path / "config.json").write_text(configs.to_json(parse_config(arguments)))
    (tmp_path / "checkpoints" / "000001-step-1").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"cannot be resumed(.|\n)*learning.algorithm: ppo -> apex-dqn"):
        parse_config([*arguments, "--algorithm", "apex-dqn"])


def test_a_users_file_registers_environments(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(textwrap.dedent(USERS_FILE))
    monkeypatch.chdir(tmp_path)
    config = parse_config(["--import", "mine.py", "--env", "my/pole"])
    assert config.learning.gamma == 0.5
    assert config.imports == (str(tmp_path / "mine.py"),), "absolute: the run may be evaluated from elsewhere"
    assert cli.main(["envs", "pole", "--import", "mine.py"]) == 0
    assert "my/pole\n" in capsys.readouterr().out


def test_every_import_flag_counts(tmp_path):
    files = [tmp_path / "first.py", tmp_path / "second.py"]
    for file in files:
        file.write_text("")
    config = parse_config(["--env", "gym/CartPole-v1", "--import", str(files[0]), "--seed", "3", "--import", str(files[1])])
    assert (config.imports, config.seed) == (tuple(map(str, files)), 3)
    asked = parse(PolicyOptions, "eval", ["run", "--import", "first.py", "--seed", "3", "--import=second.py"])
    assert (asked.run, asked.imports, asked.seed) == (Path("run"), ("first.py", "second.py"), 3)


def test_a_file_of_a_scenario_is_remembered_by_its_absolute_path(tmp_path, monkeypatch):
    pytest.importorskip("vizdoom")
    (tmp_path / "mine.cfg").touch()
    monkeypatch.chdir(tmp_path)
    for flags in (["--env", "vizdoom/mine.cfg"], ["--env=vizdoom/./mine.cfg"]):
        assert parse_config(flags).env == f"vizdoom/{tmp_path}/mine.cfg"
    assert parse_config(["--env", "vizdoom/basic"]).env == "vizdoom/basic"


def test_envs_lists_by_part_of_the_name_or_pattern(capsys):
    assert cli.main(["envs", "gym/cartpole-v1"]) == 0
    assert capsys.readouterr().out.split() == ["gym/CartPole-v1"]
    assert cli.main(["envs", "gym/*pole*"]) == 0
    assert "gym/CartPole-v1" in capsys.readouterr().out.split()
    assert cli.main(["envs", "no-such-thing"]) == 1
    assert "no id matches 'no-such-thing'" in capsys.readouterr().err


def test_fault_of_configuration_is_an_exception_for_programs():
    with pytest.raises(ConfigError):
        parse_config(["--env", "nothing/there"])
