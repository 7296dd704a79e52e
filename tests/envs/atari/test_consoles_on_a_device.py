"""Consoles in the memory of a device as a group: its rows are those of the CPU's, and the device placement picks it.

The kernels run on the CPU here (`host_kernels`), in the interpreter.
"""

from __future__ import annotations

import functools
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ale_py")

from group_rows import contents, rows_of
from host_kernels import HostKernels

from headrace.config import EnvConfig
from headrace.envs.atari import family as atari
from headrace.envs.core.spaces import PLAIN_KEY
from headrace.envs.make import make_group
from headrace_atari import KernelOptions
from headrace_atari import kernels as atari_kernels

INTERPRETER = KernelOptions("interpreter", 32)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """A GPU as far as the family can tell: the arguments with which consoles were made there, which run on the CPU."""
    made: list[dict[str, Any]] = []
    vector = atari.AtariVector

    @functools.wraps(vector)
    def on_the_cpu(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device", "cpu") == "cpu":
            return vector(*args, **kwargs)
        made.append(dict(kwargs))
        return vector(*args, **kwargs | {"kernels": INTERPRETER})

    monkeypatch.setattr(atari, "AtariVector", on_the_cpu)
    monkeypatch.setattr(atari_kernels, "CudaKernels", lambda device: HostKernels())
    install_cuda_core(monkeypatch, tmp_path)
    return made


def install_cuda_core(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str = "") -> None:
    """A package cuda.core that runs `code` when it is imported."""
    (folder / "cuda" / "core").mkdir(parents=True)
    for each in (folder / "cuda", folder / "cuda" / "core"):
        (each / "__init__.py").touch()
    (folder / "cuda" / "core" / "__init__.py").write_text(code)
    for name in {"cuda", "cuda.core"} | {name for name in sys.modules if name.split(".")[0] == "cuda"}:
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))  # so that afterwards it is as it was, also if it was absent
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("breakout", EnvConfig(reward_clip=1.0, resize=(24, 20))),
        ("breakout", EnvConfig(protocol="ale-v5", max_episode_steps=17, resize=(24, 20), reward_scale=2.0)),
    ],
    ids=["lives", "whole-games"],
)
def test_rows_are_those_of_the_cpu(asked: list[dict[str, Any]], game: str, options: EnvConfig) -> None:
    n, steps, rng = 3, 90, np.random.default_rng(0)
    ours = make_group(f"atari/{game}", options, n, device="cuda:1")
    theirs = make_group(f"atari/{game}", options, n, device="cpu")
    assert [kwargs["device"] for kwargs in asked] == ["cuda:1"]
    assert (ours.tensors, getattr(theirs, "tensors", False)) == (True, False)
    assert ours.spec == theirs.spec
    (our_first, our_row), (their_first, their_row) = rows_of(ours.spec, n, True), rows_of(ours.spec, n, False)
    ours.reset(5, [our_first])
    theirs.reset(5, [their_first])
    ends, state = 0, None
    for step in range(steps):
        actions = rng.integers(ours.spec.action.parts[0].n, size=(n, 1))
        our_row.actions[:], their_row.actions[:] = torch.from_numpy(actions), actions
        ours.send([our_row])
        theirs.send([their_row])
        found, expected = contents(our_first, our_row), contents(their_first, their_row)
        for name, x in expected.items():
            assert found[name].dtype == x.dtype
            np.testing.assert_array_equal(found[name], x, err_msg=f"{name} in step {step}")
        ends += int(expected["terminated"].sum() + expected["truncated"].sum())
        if step == steps // 2:
            state = ours.get_state()
    assert ends > 3
    assert state is not None
    last = contents(our_first, our_row)
    # From the middle again, in a group of its own.
    again, rng = make_group(f"atari/{game}", options, n, device="cuda"), np.random.default_rng(0)
    again.set_state(state)
    for step in range(steps):
        actions = rng.integers(ours.spec.action.parts[0].n, size=(n, 1))
        if step > steps // 2:
            our_row.actions[:] = torch.from_numpy(actions)
            again.send([our_row])
    for name, x in contents(our_first, our_row).items():
        np.testing.assert_array_equal(x, last[name], err_msg=name)
    for group in (ours, theirs, again):
        group.close()


def test_observations_are_written_where_the_trajectory_is(asked: list[dict[str, Any]]) -> None:
    group = make_group("atari/pong", EnvConfig(resize=(24, 20)), 2, device="cuda")
    first, row = rows_of(group.spec, 2, True)
    group.reset(0, [first])
    before = row.after.obs[PLAIN_KEY].data_ptr()
    group.send([row])
    assert row.after.obs[PLAIN_KEY].data_ptr() == before
    assert row.after.obs[PLAIN_KEY].any()
    group.close()


@pytest.mark.parametrize(
    ("options", "cuda_core", "why"),
    [
        (EnvConfig(grayscale=False), "", "envs.grayscale"),
        (EnvConfig(), "raise ModuleNotFoundError('No module named cuda.core')", "pip install 'headrace\\[cuda\\]'"),
        (EnvConfig(), "raise ImportError('libnvrtc is too old')", "cannot be imported: libnvrtc is too old"),
    ],
)
def test_where_the_gpu_cannot_the_cpu_emulates_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: EnvConfig, cuda_core: str, why: str
) -> None:
    install_cuda_core(monkeypatch, tmp_path, cuda_core)
    with pytest.warns(UserWarning, match=f"emulated by the CPU and not by the GPU: .*{why}"):
        group = atari.make_group("pong", options, 1, device="cuda")
    assert not getattr(group, "tensors", False)
    group.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        atari.make_group("pong", options, 1, device="cpu").close()
        atari.make_group("pong", options, 1).close()
