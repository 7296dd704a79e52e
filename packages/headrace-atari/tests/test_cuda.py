"""Consoles on a GPU against those of the CPU: `pytest -m gpu` where there is one."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from gymnasium.vector import AutoresetMode

from headrace_atari import AtariVector, KernelOptions

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(
        importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None, reason="no cuda-core"
    ),
]

CASES: list[tuple[Any, KernelOptions, dict[str, Any]]] = [
    ("pong", KernelOptions(), {}),
    ("pong", KernelOptions(consoles_per_warp=32), {}),
    ("pong", KernelOptions(consoles_per_warp=32, reconverge=False), {"repeat_action_probability": 0.25}),
    (
        "breakout",
        KernelOptions(consoles_per_warp=4),
        {"autoreset_mode": AutoresetMode.SAME_STEP, "max_num_frames_per_episode": 80},
    ),
    ("montezuma_revenge", KernelOptions("interpreter", 8), {"repeat_action_probability": 0.25, "sticky_stream": "counter"}),
    ("klax", KernelOptions("interpreter"), {"max_num_frames_per_episode": 101, "grayscale": False}),
    (["pong", "breakout", "seaquest"], KernelOptions("interpreter", 32), {"img_height": 105, "img_width": 80}),
    (["pong", "breakout"], KernelOptions(consoles_per_warp=8), {}),  # a kernel for each game, on streams of their own
]


@pytest.mark.parametrize(("game", "kernels", "options"), CASES)
def test_equals_the_cpu(game: Any, kernels: KernelOptions, options: dict[str, Any]) -> None:
    ours = AtariVector(game, 70, device="cuda", kernels=kernels, **options)
    theirs = AtariVector(game, 70, **options)
    np.testing.assert_array_equal(ours.reset(seed=1)[0].cpu(), theirs.reset(seed=1)[0])
    rng = np.random.default_rng(0)
    for step in range(70):
        if step >= 60:  # states go from one to the other
            saved = (ours, theirs)[step % 2].save_state(3)
            ours.load_state(4, saved)
            theirs.load_state(4, saved)
        actions = rng.integers(theirs.single_action_space.n, size=70)
        mine, other = ours.step(torch.from_numpy(actions).cuda()), theirs.step(actions)
        for a, b in zip(mine[:4], other[:4], strict=True):
            np.testing.assert_array_equal(a.cpu(), b)
        for key in ("lives", "frame_number", "episode_frame_number"):
            np.testing.assert_array_equal(mine[4][key].cpu(), other[4][key])


def test_results_are_ordered_with_the_stream_of_the_caller() -> None:
    """On a stream of its own, a step waits for the actions that are computed there, and nothing waits for the step."""
    ours = AtariVector("pong", 256, device="cuda", kernels=KernelOptions("interpreter"))
    theirs = AtariVector("pong", 256)
    theirs.reset(seed=1)
    with torch.cuda.stream(torch.cuda.Stream()):
        ours.reset(seed=1)
        big = torch.randn(4096, 4096, device="cuda")
        for step in range(5):
            actions = ((big @ big).sum() * 0).to(torch.int64) + torch.full((256,), step, device="cuda")
            observations = ours.step(actions)[0]
            big.copy_(big)
            np.testing.assert_array_equal(observations.clone().cpu(), theirs.step(np.full(256, step))[0])
