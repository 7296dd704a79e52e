"""PPO of Stable-Baselines3 on an Atari game, run by the interpreter of its own virtual environment (see vs_stable_baselines3.py).

    python contender_stable_baselines3.py GAME NUM_ENVS BATCH dummy|subprocesses

Prints the steps trained on so far after every update. Needs stable-baselines3, ale-py, opencv-python-headless.
"""

import sys

import gymnasium
from ale_py.registration import register_v0_v4_envs
from stable_baselines3 import PPO
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecTransposeImage


class Game:
    """Makes one game with the usual wrappers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self) -> gymnasium.Env:
        register_v0_v4_envs()  # also in the processes of SubprocVecEnv
        return AtariWrapper(gymnasium.make(f"{self.name.capitalize()}NoFrameskip-v4"))


class Report(BaseCallback):
    """Steps that were trained on when the next ones begin to be collected."""

    def _on_rollout_start(self) -> None:
        print(f"trained on {self.num_timesteps}", flush=True)

    def _on_step(self) -> bool:
        return True


def main() -> None:
    game, num_envs, batch, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    make = {"dummy": DummyVecEnv, "subprocesses": SubprocVecEnv}[kind]
    envs = VecTransposeImage(VecFrameStack(make([Game(game)] * num_envs), 4))
    model = PPO("CnnPolicy", envs, n_steps=batch // num_envs, batch_size=batch, n_epochs=1, device="cpu", learning_rate=1e-4)
    model.learn(10**9, callback=Report())


if __name__ == "__main__":
    main()
