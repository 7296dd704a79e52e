"""PPO of Stable-Baselines3, run by the interpreter of its own virtual environment (see vs_stable_baselines3.py).

    python contender_stable_baselines3.py atari/GAME|gym/ID NUM_ENVS BATCH dummy|subprocesses

Prints the steps trained on so far after every update. Needs stable-baselines3; for Atari ale-py and opencv-python-headless, for
MuJoCo gymnasium[mujoco].
"""

import sys

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize, VecTransposeImage


class Make:
    """Makes one environment; Atari's games with the usual wrappers."""

    def __init__(self, env: str) -> None:
        self.family, self.name = env.split("/", 1)

    def __call__(self) -> gymnasium.Env:
        if self.family == "gym":
            return gymnasium.make(self.name)
        from ale_py.registration import register_v0_v4_envs

        register_v0_v4_envs()  # also in the processes of SubprocVecEnv
        return AtariWrapper(gymnasium.make(f"{self.name.capitalize()}NoFrameskip-v4"))


class Report(BaseCallback):
    """Steps that were trained on when the next ones begin to be collected."""

    def _on_rollout_start(self) -> None:
        print(f"trained on {self.num_timesteps}", flush=True)

    def _on_step(self) -> bool:
        return True


def main() -> None:
    env, num_envs, batch, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    made = {"dummy": DummyVecEnv, "subprocesses": SubprocVecEnv}[kind]([Make(env)] * num_envs)
    n_steps = batch // num_envs
    if env.startswith("gym/"):  # its own numbers but for the length of a collection: 10 epochs, minibatches of 64, 3e-4
        model = PPO("MlpPolicy", VecNormalize(made), n_steps=n_steps, device="cpu")
    else:
        images = VecTransposeImage(VecFrameStack(made, 4))
        model = PPO("CnnPolicy", images, n_steps=n_steps, batch_size=batch, n_epochs=1, device="cpu", learning_rate=1e-4)
    model.learn(10**9, callback=Report())


if __name__ == "__main__":
    main()
