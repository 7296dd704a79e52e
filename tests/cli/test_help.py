"""Every setting has a help text that stands alone."""

import ast
import dataclasses
import inspect
import itertools
import os
import re
import subprocess
import sys

import pytest

from headrace import cli
from headrace.cli import help
from headrace.config import envs, learning, policy, run, sampling, settings


def help_texts():
    """Dotted name and text of every field that is no group of settings."""
    commands = (cli.options, cli.eval, cli.watch, cli.play, cli.envs, cli.serve_envs, cli.tune, cli.status, cli.stop)
    for module in (envs, learning, policy, run, sampling, settings, *commands):
        for cls in ast.parse(inspect.getsource(module)).body:
            if isinstance(cls, ast.ClassDef):
                for field, text in itertools.pairwise([*cls.body, None]):
                    if not isinstance(field, ast.AnnAssign) or ast.unparse(field.annotation).endswith(("Config", "Settings")):
                        continue
                    value = getattr(getattr(text, "value", None), "value", None)
                    yield f"{cls.name}.{ast.unparse(field.target)}", " ".join(value.split()) if isinstance(value, str) else ""


TEXTS = dict(help_texts())


def test_every_setting_is_found():
    assert len(TEXTS) > 110


@pytest.mark.parametrize("name", TEXTS)
def test_a_help_text_stands_alone(name):
    text = TEXTS[name]
    assert text, "no help text"
    assert "..." not in text, "a text does not go on in the next one"
    assert re.match(r"[A-Z`(]|torch", text), "it begins a sentence"
    assert text.endswith("."), "it ends a sentence"
    assert not re.search(r"\bsee `|\bas above\b|\bditto\b", text, re.IGNORECASE), "it needs another one"


@pytest.mark.parametrize("name", [name for name in TEXTS if re.search(r"(timeout|interval|window|minutes)$", name)])
def test_times_have_their_unit(name):
    assert re.search(r"\((seconds|minutes)\)", TEXTS[name])


def test_the_whole_help_shows_types_and_texts(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--env", "gym/CartPole-v1", "--help-all"])
    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "The defaults are those for gym/CartPole-v1 with ppo." in shown
    for setting in help.settings(settings.Config()):
        assert f"{setting.flag} ({setting.type}; default " in shown, setting.name
        assert setting.text in shown, setting.name
    for words in (
        "--seed (int (at least 0); default 0) Seed of", "--learning.batch-size (int (at least 1); default 512)",
        "--policy.core (`none` | `gru` | `lstm`; default none)", "The values of a list are separated by spaces",
    ):  # fmt: skip
        assert words in shown, words


@pytest.mark.parametrize(("algorithm", "has_it"), [("ppo", True), ("dqn", False)])
def test_the_short_help_leaves_out_what_the_algorithm_ignores(algorithm, has_it, capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--env", "gym/CartPole-v1", "--learning.algorithm", algorithm, "--help"])
    shown = capsys.readouterr().out
    assert "--learning.batch-size" in shown
    assert ("--learning.entropy-coef" in shown) == has_it


@pytest.mark.parametrize("command", ["train --help-all", "eval --help"])
def test_help_may_have_a_reader_that_goes_away(command):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "headrace.cli", *command.split()], stdout=gone, stderr=subprocess.PIPE, text=True, timeout=200
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_help_shows_what_people_change_and_fits_on_a_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    names = [name for part in help.COMMON.values() for name in part]
    assert len(names) == len(set(names)) == 20
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--env", "gym/CartPole-v1", "--help"])
    assert end.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 130
    shown = " ".join(" ".join(lines).split())
    for words in (
        "--env gym/CartPole-v1", "--learning.algorithm ppo Learning algorithm. One of appo, ppo, impala, a2c, pqn,",
        "--learning.batch-size 512 Steps per batch.", "--policy.core none", "One of none, gru, lstm.", "--import ",
        "--run.folder None Run folder; training resumes the run that is found there. None: runs/<env>__<name>__<seed>.",
        "train --help-all",
        "Python files or modules to import first.", "None: no limit.",
        "or a name that an imported file registers. auto: nature-cnn for images, or impala-resnet if a side has fewer than",
        "such as cuda:1. auto: cuda if there is one, else cpu.",
    ):  # fmt: skip
        assert words in shown, words
    assert "One of auto." not in shown


def test_help_of_a_group_shows_all_of_its_settings(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--env", "gym/CartPole-v1", "--help", "policy", "run"])
    shown = " ".join(capsys.readouterr().out.split())
    for group, there in (("policy", True), ("run", True), ("learning", False)):
        kind = {"policy": policy.PolicyConfig, "run": run.RunConfig, "learning": learning.LearningConfig}[group]
        for field in dataclasses.fields(kind):
            assert (f"--{group}.{field.name.replace('_', '-')} (" in shown) == there, field.name
    assert "--policy.core (`none` | `gru` | `lstm`; default none) Recurrent core between the encoder and the heads." in shown
    with pytest.raises(SystemExit):
        cli.main(["train", "--help", "gym/CartPole-v1", "policy"])
    assert "--policy.mlp (list of int (1 to 65536); default 64 64)" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["train", "--help", "polcy"]) == 2
    assert "--help polcy: the groups of settings are envs, policy," in capsys.readouterr().err


def test_words_of_the_settings_are_those_of_the_configuration():
    found = {setting.name: setting for setting in help.settings(settings.Config())}
    assert len(found) > 110
    assert found["policy.mlp"] == help.Setting(
        "policy.mlp", "list of int (1 to 65536)", "64 64", "Widths of the layers that encode vector observations."
    )
    assert found["imports"].flag == "--import"


@pytest.mark.parametrize("command", ["eval", "serve-envs"])
def test_a_help_text_has_no_breaks_of_its_own(command):
    """Lines end where the terminal does, not where those of the source do."""
    shown = subprocess.run(
        [sys.executable, "-m", "headrace.cli", command, "--help"],
        env={**os.environ, "COLUMNS": "1000"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    texts = [line.strip("│ ") for line in shown.splitlines() if line.startswith("│")]
    assert sum(text.startswith("-") for text in texts) >= 10
    assert [text for text in texts if re.match("[a-z`(]", text)] == ["show this help message and exit"] * (command != "eval")
