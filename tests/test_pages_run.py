"""Every block of commands and of Python in the pages runs as it stands, in order, from an empty folder.

The commands are the pages' own lines in a shell; only their length is another. The shell finds a `headrace` that adds flags for
short trainings, few games and few Doom environments, and a `pip` and a `make` that do nothing.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$|((?:^    \S[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
COMMANDS = ("headrace", "python", "pip", "openssl", "cp", "make", "git", "torchrun", "echo", "--")
ELSEWHERE = re.compile(
    r"<this repository>|\bHOST\b|^python benchmarks/|--import benchmarks/|--on ray|^make (?:train$|image)|^pip install -e"
    r"| --push$| --demo\b|import torch\"",
    re.MULTILINE,
)
"""In a block: it needs other machines, a cluster, this repository, or a hub, npm, a Python without PyTorch (tests/export has
those)."""
HEADRACE = f"""#!/bin/sh
command=$1
case "$*" in *" vizdoom/"*) few="--sampling.num-workers 2 --sampling.envs-per-worker 2" ;; esac
case $command in
    train) set -- "$@" $few --learning.total-steps 1 --run.no-video ;;
    tune) set -- "$@" --minutes 0.05 --num-workers 1 --envs-per-worker 16 --placement served --num-policy-workers 1 \\
        --sampling.min-request-groups 1 --num-threads 1 ;;
    compare) set -- "$@" --budget 1 --seeds 1 ;;
    search) set -- "$@" --budget 1 --seeds 1 --trials 2 --test-seeds 1 ;;
    eval) set -- "$@" --episodes 2 ;;
    play) set -- "$@" --matches 2 ;;
esac
exec "{sys.executable}" -m headrace.cli "$@"
"""
SHORT = """
import runpy, sys, headrace
from headrace.config import override
train, evaluate = headrace.train, headrace.evaluate
headrace.train = lambda config: train(override(config, **{"learning.total_steps": 1, "run.video": False}))
headrace.evaluate = lambda folder, episodes: evaluate(folder, episodes=2)
runpy.run_path(sys.argv[1])
"""
NOTHING = "#!/bin/sh\nexit 0\n"


@dataclass
class Block:
    """A block of a page: its Python, or its commands."""

    python: str = ""
    commands: str = ""


def blocks(page: str) -> list[Block]:
    """The page's blocks that can run; diagrams, transcripts' answers and messages are left out."""
    found = []
    for language, fenced, indented in BLOCK.findall((ROOT / page).read_text()):
        if language == "python":
            found.append(Block(python=fenced))
            continue
        text = (fenced or re.sub(r"^    ", "", indented, flags=re.MULTILINE)).replace("\\\n", " ")
        lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")] or text.splitlines()
        lines = [line for line in lines if line.partition(" ")[0] in COMMANDS]
        if lines and not ELSEWHERE.search(text):
            found.append(Block(commands="\n".join(lines) + "\n"))
    return found


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """The environment of a reader's shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    for name, text in {"headrace": HEADRACE, "pip": NOTHING, "make": NOTHING, "python": python}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (tmp_path / "short.py").write_text(SHORT)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return kept | {"PATH": f"{folder}:{os.environ['PATH']}", "HEADRACE_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}


def run(command: list[str], folder: Path, programs: dict[str, str], what: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env=programs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500
    )
    assert done.returncode == 0, f"{what}\n{done.stdout[-4000:]}"


PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
SEVERAL_MACHINES = {"docs/remote.md"}
"""Pages with a test of their own, below."""
SLOW = {
    "README.md",
    "docs/ape-x.md",
    "docs/device.md",
    "docs/dqn.md",
    "docs/export.md",
    "docs/laboratory-results.md",
    "docs/laboratory.md",
    "docs/multi-agent.md",
    "docs/multi-gpu.md",
    "docs/multi-task.md",
    "docs/populations.md",
    "docs/quick-start.md",
    "docs/vizdoom.md",
}
"""Pages with many trainings. The commands of README.md and docs/quick-start.md are also run by tests/test_docs.py, in its own
process, which takes less time."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in SLOW else pytest.mark.process)
        for page in PAGES
        if blocks(page) and page not in SEVERAL_MACHINES
    ],
)
def test_every_block_runs(page: str, tmp_path: Path, programs: dict[str, str]) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    python = ""
    for block in blocks(page):
        if block.python:
            if 'device="cuda"' not in block.python:  # tests/gpu has those
                python += block.python + "\n\n"
            last = block.python
            continue
        for file in re.findall(r"--import (\w+\.py)", block.commands):
            if not (folder / file).exists():
                (folder / file).write_text(last)  # the block before is this file
        run(["bash", "-euo", "pipefail", "-c", block.commands], folder, programs, block.commands)
    if python:
        (folder / "page.py").write_text(python)
        run([sys.executable, str(tmp_path / "short.py"), "page.py"], folder, programs, page)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_block_of_several_machines_runs(tmp_path: Path, programs: dict[str, str]) -> None:
    """docs/remote.md: all machines are this one, and servers run until the end of their block."""
    text = (ROOT / "docs" / "remote.md").read_text()
    folder = tmp_path / "empty"
    folder.mkdir()
    found = 0
    fenced = [(language, block) for language, block, _ in BLOCK.findall(text) if block]
    for block in (block for language, block in fenced if not language):
        block = re.sub(r"^(simulator|training|both) machines? +", "", block.replace("\\\n", " "), flags=re.MULTILINE)
        block = re.sub(r"\b(simulator|trainer):7777", "127.0.0.1:7777", block).replace("10.0.0.7", "127.0.0.1")
        servers = []
        try:
            for line in sorted(block.splitlines(), key=lambda line: line.startswith("headrace train")):
                assert line.startswith(COMMANDS), line
                found += 1
                if " serve-envs " in line:
                    servers.append(subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=folder, env=programs))
                else:
                    run(["bash", "-euo", "pipefail", "-c", f"rm -rf runs; {line}"], folder, programs, line)
        finally:
            for server in servers:
                server.send_signal(signal.SIGINT)
                assert server.wait(30) == 130
    assert found == 9
    for block in (block for language, block in fenced if language == "python"):
        (folder / "page.py").write_text(block)
        run([sys.executable, str(tmp_path / "short.py"), "page.py"], folder, programs, "docs/remote.md")


def test_what_is_read_as_a_block() -> None:
    """So that a page whose form changes is noticed."""
    assert [bool(block.python) for block in blocks("README.md")] == [False, True]
    commands = {page: sum(block.commands.count("\n") for block in blocks(page)) for page in PAGES}
    assert commands["docs/device.md"] == 3
    assert commands["docs/quick-start.md"] >= 12
    assert sum(commands.values()) > 45
    assert sum(bool(block.python) for page in PAGES for block in blocks(page)) >= 15
