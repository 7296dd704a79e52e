"""The documentation is current, and its examples run."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import cli
from headrace.flags import parse_config

ROOT = Path(__file__).parents[1]
QUICK_START = (ROOT / "docs" / "quick-start.md").read_text()
README = (ROOT / "README.md").read_text()
CHEAP = ["--learning.total-steps", "1500", "--placement", "serial", "--batch-size", "512", "--no-video"]
ONE_UPDATE = ["--learning.total-steps", "512", "--learning.num-epochs", "1"]
NOTHING_TO_CHOOSE = ["--minutes", "0.05", "--num-workers", "1", "--envs-per-worker", "16", "--placement", "served"]
NOTHING_TO_CHOOSE += ["--num-policy-workers", "1", "--sampling.min-request-groups", "1", "--num-threads", "1"]


def blocks(language, page=QUICK_START):
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def test_generated_pages_are_current():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.outdated() == [], "run python docs/generate.py"
    page = generate.configuration()
    for flag in ("--learning.learning-rate", "--envs.kwargs", "--import", "--run.keep-checkpoints"):
        assert f"| `{flag}` |" in page


def test_the_help_of_what_generates_pages_writes_none():
    page = (ROOT / "docs" / "metrics.md").stat().st_mtime_ns
    command = [sys.executable, str(ROOT / "docs" / "generate.py")]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--check" in shown
    assert "configuration.md" in shown
    refused = subprocess.run([*command, "--chekc"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "--chekc" in refused.stderr
    assert (ROOT / "docs" / "metrics.md").stat().st_mtime_ns == page


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_names_in_python_examples_exist(page):
    code = "\n".join(blocks("python", (ROOT / page).read_text()))
    imported = re.findall(r"^from (headrace[\w.]*) import ([\w, ]+)$", code, re.MULTILINE)
    names = {f"{module}.{name.strip()}" for module, names in imported for name in names.split(",")}
    for name in names | set(re.findall(r"(?<![\w./\"])headrace(?:\.\w+)+", code)):
        assert_there(name)


def assert_there(name):
    """A dotted name is that of a module, or of something in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            assert hasattr(found, part), name
            found = getattr(found, part)
        return
    raise AssertionError(name)


def test_quick_start_commands_run_in_order(tmp_path, monkeypatch, capsys):
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.chdir(tmp_path)
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) >= 6
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "headrace"
        if arguments[0] == "train":
            arguments += CHEAP
        if arguments[0] == "tune":
            arguments += NOTHING_TO_CHOOSE
        assert cli.main(arguments) == 0, command
    assert "entropy_coef" in capsys.readouterr().out
    assert (tmp_path / "cartpole.mp4").stat().st_size > 1000


def test_quick_start_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    exec(compile(code.replace("20_000", "1500"), "quick-start.md", "exec"), {})
    assert "mean return" in capsys.readouterr().out


def test_readme_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python", README)
    short = '"run.goal": 475.0, "run.video": False, "learning.total_steps": 1500, "sampling.placement": "serial"'
    assert '"run.goal": 475.0' in code
    exec(compile(code.replace('"run.goal": 475.0', short).replace("episodes=100", "episodes=2"), "README.md", "exec"), {})
    assert "mean return" in capsys.readouterr().out


def test_readme_commands_run_in_order(tmp_path, monkeypatch, capsys):
    for package in ("imageio_ffmpeg", "vizdoom"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    commands = [line for block in blocks("", README) for line in block.splitlines() if line.startswith("headrace")]
    commands = [shlex.split(command, comments=True)[1:] for command in commands]
    assert {arguments[0] for arguments in commands} == {"train", "eval", "watch", "envs"}
    for arguments in commands:
        few = [*CHEAP, *ONE_UPDATE, "--num-workers", "1", "--envs-per-worker", "4"] if arguments[0] == "train" else []
        if arguments[0] == "train":
            assert parse_config(arguments[1:]).env == arguments[arguments.index("--env") + 1]
        assert cli.main([*arguments, *few]) == 0, arguments
        said = capsys.readouterr().out
        if arguments[0] == "eval":
            assert len(json.loads(said)["returns"]) == 100
    assert (tmp_path / "cartpole.mp4").stat().st_size > 1000
