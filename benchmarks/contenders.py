"""The other systems, each run by the interpreter of its own virtual environment.

    python contenders.py sample-factory --env=atari_breakout --experiment=NAME ...     (its own flags)
    python contenders.py stable-baselines3 atari/GAME|gym/ID NUM_ENVS BATCH dummy|subprocesses
    python contenders.py replay headrace|cpprb|torchrl

`sample-factory` (see vs_sample_factory.py) needs sample-factory 2.1.1, ale-py, vizdoom, opencv-python-headless.
`stable-baselines3` (see vs_stable_baselines3.py) prints the steps trained on so far after every update. It needs
stable-baselines3; for Atari ale-py and opencv-python-headless, for MuJoCo gymnasium[mujoco].
`replay` (see replay.py) is one replay library, which reads orders from standard input and answers
on standard output (JSON lines).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

if sys.argv[1:2] == ["sample-factory"]:
    from ale_py.registration import register_v0_v4_envs

    register_v0_v4_envs()  # the names its Atari examples use; also in its worker processes, which import this file


# -- Sample Factory ----------------------------------------------------------------------------------------------------


def sample_factory(flags: list[str]) -> int:
    """Train."""
    from sample_factory.train import run_rl

    if any(flag.startswith("--env=atari_") for flag in flags):
        from sf_examples.atari.train_atari import parse_atari_args, register_atari_components

        register_atari_components()
        return run_rl(parse_atari_args(flags))
    from sf_examples.vizdoom.train_vizdoom import parse_vizdoom_cfg, register_vizdoom_components

    register_vizdoom_components()
    return run_rl(parse_vizdoom_cfg(flags))


# -- PPO of Stable-Baselines3 ------------------------------------------------------------------------------------------


class Make:
    """Makes one environment; Atari's games with the usual wrappers."""

    def __init__(self, env: str) -> None:
        self.family, self.name = env.split("/", 1)

    def __call__(self) -> Any:
        import gymnasium

        if self.family == "gym":
            return gymnasium.make(self.name)
        from ale_py.registration import register_v0_v4_envs
        from stable_baselines3.common.atari_wrappers import AtariWrapper

        register_v0_v4_envs()  # also in the processes of SubprocVecEnv
        return AtariWrapper(gymnasium.make(f"{self.name.capitalize()}NoFrameskip-v4"))


def stable_baselines3(env: str, num_envs: int, batch: int, kind: str) -> None:
    """Train for ever."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize, VecTransposeImage

    class Report(BaseCallback):
        """Steps that were trained on when the next ones begin to be collected."""

        def _on_rollout_start(self) -> None:
            print(f"trained on {self.num_timesteps}", flush=True)

        def _on_step(self) -> bool:
            return True

    made = {"dummy": DummyVecEnv, "subprocesses": SubprocVecEnv}[kind]([Make(env)] * num_envs)
    n_steps = batch // num_envs
    if env.startswith("gym/"):  # its own numbers but for the length of a collection: 10 epochs, minibatches of 64, 3e-4
        model = PPO("MlpPolicy", VecNormalize(made), n_steps=n_steps, device="cpu")
    else:
        images = VecTransposeImage(VecFrameStack(made, 4))
        model = PPO("CnnPolicy", images, n_steps=n_steps, batch_size=batch, n_epochs=1, device="cpu", learning_rate=1e-4)
    model.learn(10**9, callback=Report())


# -- replay libraries --------------------------------------------------------------------------------------------------

ALPHA, BETA, BATCH = 0.6, 0.4, 512


class Headrace:
    def __init__(self) -> None:
        import headrace.experience.replay.buffer as module

        sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "experience"))
        from history_writer import HistoryWriter

        self.module, self.writer = module, HistoryWriter

    def vectors(self, size: int, priorities: np.ndarray) -> None:
        m, histories = self.module, 16
        self.replay = m.Replay(
            m.ReplayConfig(histories=histories, capacity=size, minimum=1, n_step=1),
            {"obs": m.ReplayField((4,), "float32", stack=1)},
        )
        for history, part in enumerate(np.split(priorities, histories)):
            writer, rows = self.writer(self.replay, history), len(part)
            writer.append({"obs": np.zeros((rows, 4), np.float32)}, np.zeros(rows), np.zeros(rows), np.ones(rows))
            writer.ready(part)
        self.batch = self.replay.empty_batch(BATCH)

    def frames(self, frames: np.ndarray, episode: int) -> None:
        m, count = self.module, len(frames)
        self.replay = m.Replay(
            m.ReplayConfig(histories=1, capacity=count, slack=1.0, minimum=1),
            {"obs": m.ReplayField((84, 84), "uint8", stack=4), "act": m.ReplayField((), "int64")},
        )
        writer = self.writer(self.replay, 0)
        ends = np.arange(1, count + 1) % episode == 0
        for start in range(0, count, 500):
            part = slice(start, start + 500)
            writer.append({"obs": frames[part], "act": np.zeros(500)}, np.ones(500), np.where(ends[part], 0.0, 0.99), ends[part])
        writer.ready(np.random.default_rng(0).random(count).astype(np.float32))
        self.batch = self.replay.empty_batch(BATCH)

    def sample(self) -> None:
        self.replay.sample(BATCH, self.batch)

    def sample_keys(self) -> None:
        self.replay.sample_keys(BATCH)

    def sample_two_threads(self) -> None:
        self.replay.sample(BATCH, self.batch, threads=2)

    def update(self, priorities: np.ndarray) -> None:
        self.replay.update(self.batch.keys, priorities)


class Cpprb:
    def vectors(self, size: int, priorities: np.ndarray) -> None:
        import cpprb

        self.replay = cpprb.PrioritizedReplayBuffer(size, {"obs": {"shape": 4, "dtype": np.float32}}, alpha=ALPHA)
        self.replay.add(obs=np.zeros((size, 4), np.float32), priorities=priorities)

    def frames(self, frames: np.ndarray, episode: int) -> None:
        import cpprb

        columns = {"obs": {"shape": (84, 84, 4), "dtype": np.uint8}, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
        self.replay = cpprb.PrioritizedReplayBuffer(len(frames), columns, next_of="obs", stack_compress="obs", alpha=ALPHA)
        rng = np.random.default_rng(0)
        for start in range(0, len(frames), episode):
            part = frames[start : start + episode]
            padded = np.concatenate([part[:1]] * 3 + [part, part[-1:]])
            stacks = np.lib.stride_tricks.sliding_window_view(padded, 4, 0)
            for i in range(0, len(part), 100):
                n = min(100, len(part) - i)
                self.replay.add(
                    obs=np.ascontiguousarray(stacks[i : i + n]),
                    next_obs=np.ascontiguousarray(stacks[i + 1 : i + 1 + n]),
                    act=np.zeros(n),
                    rew=np.ones(n),
                    done=np.zeros(n),
                    priorities=rng.random(n),
                )
            self.replay.on_episode_end()

    def sample(self) -> None:
        self.drawn = self.replay.sample(BATCH, BETA)

    def update(self, priorities: np.ndarray) -> None:
        self.replay.update_priorities(self.drawn["indexes"], priorities)


class Torchrl:
    """Only the assembly of batches, with uniform sampling: where the compiled part of torchrl does not load (it needs the
    very torch it was built with) there is no prioritized sampling."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)

    def frames(self, frames: np.ndarray, episode: int) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

        self.replay = TensorDictReplayBuffer(storage=LazyTensorStorage(len(frames)), batch_size=BATCH)
        for start in range(0, len(frames), episode):
            part = frames[start : start + episode]
            padded = np.concatenate([part[:1]] * 3 + [part, part[-1:]])
            stacks = torch.from_numpy(np.moveaxis(np.lib.stride_tricks.sliding_window_view(padded, 4, 0), -1, 1).copy())
            n = len(part)
            columns = {"obs": stacks[:n], "next_obs": stacks[1:], "act": torch.zeros(n), "rew": torch.ones(n)}
            self.replay.extend(TensorDict(columns, [n]))

    def sample(self) -> None:
        self.drawn = self.replay.sample()


def measure(library: Any, action: str, count: int) -> list[float]:
    """Seconds of each of `count` calls. Before an update there is a sample that is not counted."""
    rng, seconds = np.random.default_rng(1), []
    for _ in range(count):
        if action == "update":
            library.sample()
            priorities = rng.random(BATCH).astype(np.float32)
            start = time.perf_counter()
            library.update(priorities)
        else:
            call = getattr(library, action)
            start = time.perf_counter()
            call()
        seconds.append(time.perf_counter() - start)
    return seconds


def replay(name: str) -> None:
    """Do what standard input says."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    library: Any = {"headrace": Headrace, "cpprb": Cpprb, "torchrl": Torchrl}[name]()
    for line in sys.stdin:
        order = json.loads(line)
        reply: Any = None
        if order["do"] == "vectors":
            library.vectors(order["size"], np.random.default_rng(0).random(order["size"]).astype(np.float32) + 0.01)
        elif order["do"] == "frames":
            library.frames(np.load(order["path"], mmap_mode="r"), order["episode"])
        else:
            reply = measure(library, order["do"], order["count"])
        print(json.dumps({"reply": reply}), file=replies, flush=True)


def main() -> int | None:
    system, *arguments = sys.argv[1:]
    if system == "sample-factory":
        return sample_factory(arguments)
    if system == "stable-baselines3":
        env, num_envs, batch, kind = arguments
        stable_baselines3(env, int(num_envs), int(batch), kind)
    else:
        replay(*arguments)
    return None


if __name__ == "__main__":
    sys.exit(main())
