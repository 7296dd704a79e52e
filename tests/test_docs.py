"""The documentation is current, and its examples run."""

import ast
import dataclasses
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import cli
from headrace.cli import help
from headrace.cli.flags import full_name, parse_config
from headrace.config import Config, ConfigError
from headrace.config.io import GONE
from headrace.make_config import check_config

ROOT = Path(__file__).parents[1]
QUICK_START = (ROOT / "docs" / "quick-start.md").read_text()
README = (ROOT / "README.md").read_text()
PAGES = [*(ROOT / name for name in ("README.md", "CHANGELOG.md", "examples/README.md")), *sorted((ROOT / "docs").glob("*.md"))]
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
    for page in PAGES:
        for target, _, heading in re.findall(r"\]\(([^)#\s]*)(#([^)\s]+))?\)", page.read_text()):
            if target.startswith("http"):
                continue
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), f"{page.name}: {target}"
            assert not heading or heading in headings(there), f"{page.name}: {target}#{heading}"


def headings(page):
    """The names by which links lead to a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", title)).lower().replace(" ", "-") for title in titles}


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


def plain(markdown):
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)


def texts():
    """Where, and what: the pages without their code blocks, and every text in the package's code: messages, help, docstrings."""
    for page in PAGES:
        yield page.name, plain(page.read_text())
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.name}:{node.lineno}", node.value


SETTINGS = {setting.name for setting in help.settings(Config())}
SWITCHES = {setting.name for setting in help.settings(Config()) if setting.type in ("bool", "bool | None")}
GROUPS = {name.partition(".")[0] for name in SETTINGS if "." in name}
NO_SETTINGS = {"population.rating", "population.opponents", "learning.adam", "policy.act"}
"""What a matchmaker may ask, how the names of two settings begin, a method of a trained policy."""
FILES = ("onnx", "mp4", "json", "jsonl", "lock", "md", "png", "py")


def test_every_setting_that_is_named_exists():
    """In the pages, in help texts, in error messages: "use a larger learning.batch-size"."""
    named = re.compile(rf"(?<![\w./-])(?:--)?((?:{'|'.join(sorted(GROUPS))})\.(?:no-)?[a-z][a-z0-9_-]*[a-z0-9])(?![\w(/])")
    found = 0
    for where, text in texts():
        for name in named.findall(text):
            setting = name.replace(".no-", ".").replace("-", "_")
            if name not in NO_SETTINGS and name not in GONE and setting.rpartition(".")[2] not in FILES:
                assert setting in SETTINGS, f"{where}: {name}"
                assert ".no-" not in name or setting in SWITCHES, f"{where}: {name} is no switch"
                found += 1
    assert found > 500


OPTIONS = {
    "eval": cli.eval.Eval,
    "export": cli.export.Export,
    "share": cli.share.Share,
    "watch": cli.watch.Watch,
    "play": cli.play.Play,
    "envs": cli.envs.Envs,
    "serve-envs": cli.serve_envs.ServeEnvs,
    "tune": cli.tune.Tune,
    "compare": cli.compare.Compare,
    "search": cli.search.SearchOptions,
    "report": cli.report.Report,
    "status": cli.status.Status,
    "stop": cli.stop.Stop,
}
TRAINS = ("train", "tune", "compare", "search")
"""Commands that take the flags of `headrace train`."""


def options(command):
    """The flags of a command."""
    own = {f"--{field.name}" for field in dataclasses.fields(OPTIONS[command])} if command in OPTIONS else set()
    shared = SETTINGS if command in TRAINS else {name for name in SETTINGS if name.startswith("envs.")}
    return own | {f"--{name}" for name in shared} | {"--import", "--help", "--help_all"}


def test_every_flag_of_a_command_in_the_pages_exists():
    found = 0
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        lines = re.findall(r"^(?:    |.*?)(headrace (?:[a-z-]+) .*)$", "\n".join(blocks("\\w*", text)), re.MULTILINE)
        lines += re.findall(r"^    (headrace .*)$", plain(text), re.MULTILINE)
        lines += [" ".join(code.split()) for code in re.findall(r"`(headrace [^`]*)`", plain(text))]
        for line in lines:
            command, *arguments = re.sub(r"'[^']*'", "{}", line.partition(" # ")[0]).split()[1:]
            if not command.islower():
                continue  # headrace COMMAND
            for flag in (argument.partition("=")[0] for argument in arguments if argument.startswith("--")):
                name = full_name(flag) if command in TRAINS else flag
                name = name.replace("-", "_").replace("__", "--", 1).replace(".no_", ".")
                assert name in options(command), f"{page.name}: {flag} in {line}"
                found += 1
    assert found > 100


ELSEWHERE = re.compile(r"\b[A-Z]{2,}|\.\.\.|path/to|\.cfg|--import|envs\.remote|--help|\||dmlab")
"""In a command: it needs a server, or files or packages of the reader's own."""


def test_every_training_command_can_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = 0
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        lines = re.findall(r"^(?:    )?headrace train (.*)$", text, re.MULTILINE)
        lines += [" ".join(code.split()) for code in re.findall(r"`headrace train ([^`]*)`", plain(text))]
        for line in lines:
            if not ELSEWHERE.search(line):
                try:
                    check_config(parse_config(shlex.split(line, comments=True)))
                except (ConfigError, SystemExit) as error:
                    raise AssertionError(f"{page.name}: headrace train {line}\n{error}") from error
                found += 1
    assert found > 25


def test_every_file_of_the_repository_that_is_named_exists():
    paths = re.compile(r"(?<![\w/.])((?:tests|benchmarks|native|docs|src)/[\w./*-]*\w\.(?:py|md|hpp|cpp|cu|json))")
    outside = ("docs/users/", "native/test_")  # DeepMind Lab's; in tests/
    for where, text in texts():
        for name in paths.findall(text):
            there = name.startswith(outside) or any(ROOT.glob(name)) or name == "benchmarks/results/gpu_suite.json"
            assert there, f"{where}: {name}"


@pytest.fixture
def quiet(capfd):
    """No process has shown a warning in the end; gives what was printed."""
    said = []

    def read():
        said.append(capfd.readouterr())
        return said[-1].out

    yield read
    read()
    assert not [line for one in said for line in (one.out + one.err).splitlines() if "Warning:" in line]


@pytest.mark.process
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_quick_start_commands_run_in_order(tmp_path, monkeypatch, quiet):
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
    assert "entropy_coef" in quiet()
    assert (tmp_path / "cartpole.mp4").stat().st_size > 1000


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_quick_start_python_runs(tmp_path, monkeypatch, quiet):
    monkeypatch.chdir(tmp_path)
    _, code = blocks("python")  # the first is an environment, with which tests/test_pages_run.py trains
    exec(compile(code.replace("20_000", "1500"), "quick-start.md", "exec"), {})
    assert "mean return" in quiet()


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_readme_python_runs(tmp_path, monkeypatch, quiet):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python", README)
    short = '"run.goal": 475.0, "run.video": False, "learning.total_steps": 1500, "sampling.placement": "serial"'
    assert '"run.goal": 475.0' in code
    exec(compile(code.replace('"run.goal": 475.0', short).replace("episodes=100", "episodes=2"), "README.md", "exec"), {})
    assert "mean return" in quiet()


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_readme_commands_run_in_order(tmp_path, monkeypatch, quiet):
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
        said = quiet()
        if arguments[0] == "eval":
            assert len(json.loads(said)["returns"]) == 100
    assert (tmp_path / "cartpole.mp4").stat().st_size > 1000
