"""`examples/my_env.py`: a user's environment and network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.config import EnvConfig, PolicyConfig
from headrace.envs.core.imports import import_files
from headrace.envs.make import describe, make_env

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_env.py"


def test_the_environment_needs_no_torch() -> None:
    code = (
        "import sys; from headrace.config import EnvConfig; from headrace.envs.make import describe_here\n"
        "from headrace.envs.core.imports import import_files\n"
        f"import_files([{str(EXAMPLE)!r}])\n"
        "assert describe_here('my/catch', EnvConfig()).observation['obs'].shape == (1, 21, 21)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_catching_is_rewarded() -> None:
    import_files([EXAMPLE])
    env = make_env("my/catch", EnvConfig(), render_mode="rgb_array")
    for seed in range(5):
        env.reset(seed=seed)
        caught = env.unwrapped
        steps, over = 0, False
        while not over:
            direction = (caught.ball[1] > caught.paddle) - (caught.ball[1] < caught.paddle)
            _, reward, over, _, _ = env.step(1 + direction)
            steps += 1
        assert (reward, steps) == (1.0, 6)
    assert env.render().shape == (21, 21, 3)


def test_the_network_acts() -> None:
    import torch

    from headrace.policies import Policy

    import_files([EXAMPLE])
    spec = describe("my/catch", EnvConfig())
    policy = Policy(spec, PolicyConfig(encoder="my-net"))
    obs = {"obs": torch.randint(0, 256, (5, 1, 21, 21), dtype=torch.uint8)}
    output = policy.act(obs, torch.zeros(5, policy.core_width), torch.ones(5, dtype=torch.bool))
    assert output.distribution.sample().shape == (5, 1)


@pytest.mark.slow
def test_it_is_learned(tmp_path: Path) -> None:
    """The command in the file's first lines."""
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "train", "--import", str(EXAMPLE)]
    command += ["--env", "my/catch", "--run.goal", "0.9", "--run.folder", str(tmp_path / "run"), "--run.no-video"]
    subprocess.run([*command, "--learning.total-steps", "400000"], check=True, timeout=280)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["charts/episodic_return_100"] >= 0.9
