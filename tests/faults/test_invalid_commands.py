"""Invalid values for every setting of `headrace train`, and invalid arguments of the other commands.

Every command runs in a process of its own; one that trains gets Ctrl-C after a few seconds. A command may run, end at Ctrl-C, or
end with one clear message. It may not end with a traceback or by a signal, hang, or leave processes behind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Commands, Ended

from headrace.cli.help import settings
from headrace.config import Config

pytestmark = pytest.mark.process

TINY = ["train", "--env", "gym/CartPole-v1", "--sampling.placement", "serial", "--learning.batch-size", "512", "--run.no-video"]
TINY += ["--learning.total-steps", "600", "--learning.num-threads", "1", "--run.no-dashboard", "--run.folder", "run"]
VALUES = ("", "-1", "0", "2147483648", "1e30", "nan", "x" * 300, "None", "..", "a b\n", "[[[[", "ä")
FOLDERS = ("", "x" * 300, "/dev/null", "/dev/zero", "/proc/self/mem", "/proc", ".", "\n", "a" + "/a" * 3000, "-", "--", "ä")
CARTPOLE, ONE = "gym/CartPole-v1", ["--budget", "600", "--seeds", "1", "--folder", "made", "--placement", "serial"]
OTHERS = (
    (["eval", "trained"], "episodes seed num-envs checkpoint import"),
    (["watch", "trained", "--episodes", "1"], "episodes max-steps checkpoint video task"),
    (["play", "trained"], "policy checkpoint seed against matches num-envs max-episode-steps"),
    (["export", "trained"], "which policy seed licence to exporter episodes"),
    (["share", "trained", "--no-video"], "repo licence to episodes policy"),
    (["report", "trained"], "out reference"),
    (["compare", CARTPOLE, "--vary", "gamma=0.9,0.99", *ONE], "vary budget parallel seeds folder on"),
    (["search", CARTPOLE, "--over", "gamma=0.9,0.99", "--trials", "1", "--test-seeds", "0", *ONE],
     "over budget parallel seeds folder trials test-seeds sampler objectives"),
    (["tune", CARTPOLE, "--minutes", "0.01"], "minutes batch-sizes"),
    (["serve-envs", "--env", CARTPOLE], "env num-envs listen dial token-file tls-cert compression"),
)  # fmt: skip
"""Other commands, and options that each is given."""
INTERRUPT, DEADLINE, LONGEST = 8.0, 60.0, 2500
MEMORY = 24 << 30
"""Bytes of addresses that a command may have: a huge size must not take this machine's memory."""


def cases() -> Iterator[list[str]]:
    """The arguments of each command."""
    for setting in settings(Config()):
        for value in VALUES:
            yield [*TINY, setting.flag, value]
        yield [*TINY, setting.flag]
        yield [*TINY, setting.flag[:-1] + "_x", "1"]
    for folder in FOLDERS:
        yield [*TINY, "--run.folder", folder]
        for command in ("eval", "watch", "export", "share", "report", "status", "stop"):
            yield [command, folder]
    for arguments, options in OTHERS:
        for option in options.split():
            for value in VALUES:
                yield [*arguments, f"--{option}", value]
    for word in VALUES:
        yield [word]
        yield ["envs", word]
        yield [*TINY, "--env", f"gym/{word}"]
        yield [*TINY, "--env", word]


def problem(ended: Ended) -> str:
    """What the command did that none may do; empty where it did nothing of the kind."""
    if ended.problem or ended.code in (0, 130):
        return ended.problem
    if ended.code not in (1, 2):
        return f"exit code {ended.code}"
    printed = ended.output.strip()
    return "" if printed and len(ended.message or printed) <= LONGEST else "no clear message"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_invalid_commands_end_with_a_message(tmp_path: Path) -> None:
    """One of every nine cases: all of them take hours. Nine and the fourteen cases of a setting have no common divisor, so every
    kind of value is tried. HEADRACE_DRAW, from 0 to 8: which of the nine."""
    found = []
    with Commands(OMP_NUM_THREADS="1", XDG_CONFIG_HOME=str(tmp_path)) as commands:
        commands.run([*TINY, "--run.folder", "trained"], tmp_path)
        chosen = list(cases())[int(os.environ.get("HEADRACE_DRAW", 0)) :: 9]
        assert len(chosen) > 200
        for number, arguments in enumerate(chosen):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "trained").symlink_to(tmp_path / "trained")
            ended = commands.run(arguments, folder, DEADLINE, interrupt=INTERRUPT, limits={"AS": MEMORY})
            if wrong := problem(ended):
                found.append(f"headrace {' '.join(arguments)[-200:]!r}: {wrong}\n{ended.output[-1500:]}")
    assert not found, "\n".join(found)
