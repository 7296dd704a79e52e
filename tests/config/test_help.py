"""Every setting has a help text that stands alone."""

import ast
import inspect
import itertools
import re

import pytest

from headrace import cli
from headrace.config import groups, learning, settings


def help_texts():
    """Dotted name and text of every field that is no group of settings."""
    for module in (groups, learning, settings, cli):
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


def test_help_shows_types_and_texts(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--env", "gym/CartPole-v1", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in (
        "--sampling.num-workers INT Number of rollout workers", "--sampling.num-slots {None}|INT",
        "--envs.resize {None}|{INT INT}",
        "--policy.mlp [INT [INT ...]]", "--learning.ppo-clip {None}|FLOAT", "--policy.core {none,gru,lstm}", "--envs.kwargs JSON",
        "--learning.experience {trajectories,replay}", "--run.must-be-new, --run.no-must-be-new",
    ):  # fmt: skip
        assert words in shown, words
    assert "Range(" not in shown
