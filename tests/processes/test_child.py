"""How the end of a child process is told."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.processes.child import how_it_ended


@pytest.mark.parametrize(("code", "words"), [
    (0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL"), (-signal.SIGRTMIN, "killed by SIGRTMIN"),
    (-(signal.SIGRTMIN + 6), f"killed by signal {signal.SIGRTMIN + 6}"),
])  # fmt: skip
def test_every_end_has_words(code: int, words: str) -> None:
    assert how_it_ended(code) == words


@pytest.mark.process
def test_every_child_draws_other_numbers_from_numpys_global_generator(tmp_path: Path) -> None:
    """Children are forked from one process, whose generator they would all have."""
    (tmp_path / "draws.py").write_text("import numpy as np\ndef draw(report):\n    report.send(np.random.random())\n")
    script = "import draws\nfrom headrace.processes.child import Child\n"
    script += "children = [Child(draws.draw, (), f'child {i}') for i in range(3)]\n"
    script += "print(len({child.receive(60)[0] for child in children}))\nfor child in children:\n    child.end(5)\n"
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "3\n", done.stderr


@pytest.mark.process
def test_a_child_may_have_children_of_its_own(tmp_path: Path) -> None:
    """As environments do that use multiprocessing, such as Gymnasium's AsyncVectorEnv."""
    (tmp_path / "family.py").write_text(
        "import multiprocessing\n"
        "def grandchild(queue):\n    queue.put('here')\n"
        "def child(report):\n"
        "    queue = multiprocessing.Queue()\n"
        "    process = multiprocessing.Process(target=grandchild, args=(queue,))\n"
        "    process.start()\n    report.send(queue.get(timeout=30))\n    process.join()\n"
    )
    script = "import family\nfrom headrace.processes.child import Child\n"
    script += "child = Child(family.child, (), 'child')\nprint(child.receive(60), child.wait(20))\nchild.end()\n"
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "['here'] True\n", done.stdout + done.stderr
