"""The other systems, each run by the interpreter of its own virtual environment.

    python contenders.py sample-factory --env=atari_breakout --experiment=NAME ...     (its own flags)
    python contenders.py stable-baselines3 atari/GAME|gym/ID NUM_ENVS BATCH dummy|subprocesses
    python contenders.py dqn stable-baselines3|cleanrl|rllib BATCH NUM_ENVS
    python contenders.py replay headrace|cpprb|torchrl

`sample-factory` (see vs_sample_factory.py) needs sample-factory 2.1.1, ale-py, vizdoom, opencv-python-headless.
`stable-baselines3` (see vs_stable_baselines3.py) prints the steps trained on so far after every update. It needs
stable-baselines3; for Atari ale-py and opencv-python-headless, for MuJoCo gymnasium[mujoco].
`dqn` (see vs_dqn.py) trains DQN on Pong, and prints the steps sampled and the updates made so far. It needs stable-baselines3,
cleanrl 1.2.0 or ray[rllib], and what these need for Atari.
`replay` (see replay.py) is one replay library, which reads orders from standard input and answers
on standard output (JSON lines).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

if sys.argv[1:2] == ["sample-factory"]:
    from ale_py.registration import register_v0_v4_envs

    register_v0_v4_envs()  # the names its Atari examples use; also in its worker processes, which import this file


# -- Sample Factory ----------------------------------------------------------------------------------------------------


def sample_factory(flags: list[str]) -> int:
    """Train."""
    from sample_factory.algo.runners.runner import Runner
    from sample_factory.train import run_rl

    # It reports every five seconds, which is too coarse where it learns from a batch in one or two. What its constructor sets is
    # left without effect.
    Runner.report_interval_sec = property(lambda runner: 0.25, lambda runner, seconds: None)

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


# -- DQN on Pong -------------------------------------------------------------------------------------------------------

SAMPLES_PER_STEP, CAPACITY, FIRST = 8, 50_000, 2_000
"""Transitions that are learned from for each step (the number of CleanRL, Stable-Baselines3 and Mnih et al. 2015: batches of 32
every 4 steps), steps that the replay holds, and steps before the first update."""


def report_updates(steps: Callable[[], int]) -> None:
    """Print the steps sampled and the updates made so far, every 10 steps of an Adam optimizer of this process."""
    from torch.optim import Adam

    step, made = Adam.step, 0

    def counted(self: Adam, *arguments: Any, **named: Any) -> Any:
        nonlocal made
        made += 1
        if made % 10 == 0:
            print(f"sampled {steps()}, updates {made}", flush=True)
        return step(self, *arguments, **named)

    setattr(Adam, "step", counted)  # noqa: B010


def dqn_stable_baselines3(batch: int, num_envs: int) -> None:
    """Train for ever. Where a step of all environments is worth several updates, they follow it."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    between = batch // SAMPLES_PER_STEP
    every = {"train_freq": max(between // num_envs, 1), "gradient_steps": max(num_envs // between, 1)}
    sizes = {"batch_size": batch, "buffer_size": CAPACITY, "learning_starts": FIRST, "learning_rate": 1e-4}
    envs = VecFrameStack(DummyVecEnv([Make("atari/pong")] * num_envs), 4)
    model = DQN("CnnPolicy", envs, device="cpu", exploration_fraction=1e-4, **every, **sizes)
    report_updates(lambda: model.num_timesteps)
    model.learn(10**9)


def dqn_cleanrl(batch: int, num_envs: int) -> None:
    """Train for ever with its dqn_atari.py, which can have one environment only."""
    import runpy

    import ale_py  # noqa: F401  (registers the games)
    from gymnasium.vector import SyncVectorEnv

    step, made = SyncVectorEnv.step, 0

    def counted(self: SyncVectorEnv, actions: Any) -> Any:
        nonlocal made
        made += 1
        return step(self, actions)

    setattr(SyncVectorEnv, "step", counted)  # noqa: B010
    report_updates(lambda: made)
    flags = {
        "env-id": "PongNoFrameskip-v4", "cuda": "false", "num-envs": num_envs, "batch-size": batch, "buffer-size": CAPACITY,
        "train-frequency": batch // SAMPLES_PER_STEP, "learning-starts": FIRST, "exploration-fraction": 0.001,
    }  # fmt: skip
    sys.argv = ["dqn_atari", *(f"--{name}={value}" for name, value in flags.items())]
    runpy.run_module("cleanrl.dqn_atari", run_name="__main__")


def dqn_rllib(batch: int, num_envs: int) -> None:
    """Train for ever with prioritized replay, sampling and learning in one process, as is its default."""
    import ale_py  # noqa: F401  (registers the games)
    import gymnasium
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
    from ray.tune.registry import register_env

    register_env(
        "pong", lambda _: wrap_atari_for_new_api_stack(gymnasium.make("PongNoFrameskip-v4"), dim=84, frameskip=4, framestack=4)
    )
    replay = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": CAPACITY, "alpha": 0.6, "beta": 0.4}
    config = DQNConfig().environment("pong", clip_rewards=True)
    fragment = max(batch // SAMPLES_PER_STEP // num_envs, 1)
    config = config.env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs, rollout_fragment_length=fragment)
    config = config.training(
        train_batch_size_per_learner=batch, training_intensity=SAMPLES_PER_STEP, replay_buffer_config=replay,
        num_steps_sampled_before_learning_starts=FIRST, lr=1e-4, double_q=False, dueling=False, n_step=1,
    )  # fmt: skip
    network = DefaultModelConfig(conv_filters=[(32, 8, 4), (64, 4, 2), (64, 3, 1)], head_fcnet_hiddens=[512])
    config = config.rl_module(model_config=network)
    algorithm = config.reporting(min_sample_timesteps_per_iteration=500, min_time_s_per_iteration=0).build_algo()
    sampled = 0
    report_updates(lambda: sampled)
    while True:
        sampled = algorithm.train()["num_env_steps_sampled_lifetime"]


DQN: dict[str, Callable[..., None]] = {"stable-baselines3": dqn_stable_baselines3, "cleanrl": dqn_cleanrl, "rllib": dqn_rllib}

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
    elif system == "dqn":
        DQN[arguments[0]](*map(int, arguments[1:]))
    else:
        replay(*arguments)
    return None


if __name__ == "__main__":
    sys.exit(main())
