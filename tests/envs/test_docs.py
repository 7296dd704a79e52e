"""The Python in docs/extending.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from worlds import reset_group, rows_for, step_group

from headrace.config import EnvConfig
from headrace.envs.make import describe, make_group
from headrace.policies.registry import NETWORKS

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def test_the_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 3
    NETWORKS.pop("attention", None)  # another test executes the same page
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)

    group = make_group("my/guess", EnvConfig(kwargs={"questions": 4}), 2)
    now, after = rows_for(group.spec, 2)
    reset_group(group, 0, after)
    for _ in range(4):
        right = after.obs["shown"].argmax(axis=1)[:, None].astype(np.int32)
        step_group(group, right, now, after)
    assert now.terminated.all()
    assert (now.episode_return == 4).all()
    assert describe("my/many", EnvConfig()).autoreset == "same-step"


def test_the_environment_of_tensors_in_the_device_page_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.with_name("device.md").read_text(), flags=re.DOTALL)
    exec(compile(block, "device.md", "exec"), {"__name__": "page"})
    group = make_group("my/walk", EnvConfig(), 3)
    now, after = rows_for(group.spec, 3)
    reset_group(group, 0, after)
    for _ in range(5):
        step_group(group, np.array([[1], [1], [0]], np.int32), now, after)
    assert now.terminated.all()
    assert now.episode_return.tolist() == [1, 1, 0]
    assert now.final_obs["obs"][:, 0].tolist() == [5, 5, -5]
    assert (after.obs["obs"] == 0).all()
