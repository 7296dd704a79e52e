r"""PPO in one file: the algorithm of Schulman et al. 2017 (arXiv 1707.06347) to read, on plain PyTorch.

    python examples/ppo.py                                # CartPole, two minutes
    python examples/ppo.py --env atari/pong --envs 16 --rollout 128 --epochs 4 --minibatches 4 --gamma 0.99 --gae-lambda 0.95 \
        --entropy-coef 0.01 --learning-rate 5e-4 --total-steps 5000000      # images: needs headrace[atari]; hours

One process does two things in turn, and the file follows them:

    collect: T steps of E environments with the present policy  ──▶  advantages (GAE)  ──▶  learn: several epochs of minibatches
        ▲                                                                                              │
        └──────────────────────────────────────── the new policy ──────────────────────────────────────┘

Nothing here is older than one collection: there is no policy lag between processes, only the one that the epochs make, which
PPO's clipped ratio bounds. `headrace train` runs this loss while other processes go on collecting; it clips the ratio below at
1 / (1 + epsilon) instead of 1 - epsilon.

To use another network edit `Net`; any id of `headrace envs` with discrete actions and one array as observation works.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import headrace


@dataclass
class Settings:
    """The paper's names; sizes and rates that suit CartPole on a laptop."""

    env: str = "gym/CartPole-v1"
    total_steps: int = 150_000
    """Steps of all environments together."""
    envs: int = 8
    """E: environments, stepped together."""
    rollout: int = 32
    """T: steps of each environment between two phases of learning."""
    epochs: int = 20
    """K: how often each step is learned from."""
    minibatches: int = 1
    """Parts that each epoch is divided into; one step of the optimizer each."""
    gamma: float = 0.98
    gae_lambda: float = 0.8
    clip: float = 0.2
    """Epsilon: the policy gains nothing from moving the probability of an action by more than this share."""
    value_coef: float = 0.5
    entropy_coef: float = 0.0
    learning_rate: float = 1e-3
    """Falls linearly to 0."""
    max_grad_norm: float = 0.5
    seed: int = 0
    goal: float | None = None
    """Stop when the mean return of the last 100 episodes reaches this."""


# -- edit here for another network -------------------------------------------------------------------------------------------


def layer(module: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """Orthogonal weights and no bias to begin with, which PPO is usually run with (Huang et al. 2022, detail 2)."""
    nn.init.orthogonal_(module.weight, gain)  # type: ignore[arg-type]
    nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    return module


class Net(nn.Module):
    """Policy logits and a value for observations [N, ...]: vectors, or images uint8 [N, 4, 84, 84]."""

    def __init__(self, observation_shape: tuple[int, ...], num_actions: int):
        super().__init__()
        self.images = len(observation_shape) == 3
        if self.images:
            frames, width = observation_shape[0], 512
            sizes = [(frames, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)]  # the network of Mnih et al. 2015
            convolutions = [part for size in sizes for part in (layer(nn.Conv2d(*size)), nn.ReLU())]
            self.body = nn.Sequential(*convolutions, nn.Flatten(), layer(nn.Linear(64 * 7 * 7, width)), nn.ReLU())
        else:
            (width_in,), width = observation_shape, 64
            self.body = nn.Sequential(layer(nn.Linear(width_in, width)), nn.Tanh(), layer(nn.Linear(width, width)), nn.Tanh())
        self.policy = layer(nn.Linear(width, num_actions), gain=0.01)
        self.value = layer(nn.Linear(width, 1), gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, A] and values [N]."""
        x = self.body(obs.float() / 255.0 if self.images else obs.float())
        return self.policy(x), self.value(x).squeeze(-1)


# -- collect -----------------------------------------------------------------------------------------------------------------


class Collector:
    """Steps the environments with a policy, T steps at a time."""

    def __init__(self, settings: Settings):
        self.envs = headrace.make_vec(settings.env, settings.envs)
        self.observation_shape = self.envs.single_observation_space.shape
        self.num_actions = int(self.envs.single_action_space.n)  # type: ignore[attr-defined]
        self._settings = settings
        observation, _ = self.envs.reset(seed=settings.seed)
        self._obs = torch.as_tensor(observation)
        self._over = np.zeros(settings.envs, bool)  # the step before was the last of its episode
        self._returns = np.zeros(settings.envs)
        self.finished: deque[float] = deque(maxlen=100)
        """Returns of the last 100 episodes."""

    @torch.no_grad()
    def collect(self, net: Net) -> dict[str, Tensor]:
        """T steps: "obs" [T+1, E, ...]; "action", "log_prob", "reward", "terminated", "truncated", "valid" [T, E].

        Row t holds observation t, the action taken on it, and the reward and the end of the episode which that action brought.
        Row T has only an observation: the one to bootstrap from. A step after the end of an episode only begins the next one
        (Gymnasium's NEXT_STEP): its action was for nothing, so its row is not `valid`. Its observation is the last one of the
        episode, which a truncated episode is bootstrapped from.
        """
        rows: dict[str, list[Tensor]] = {}
        for _ in range(self._settings.rollout):
            logits, _ = net(self._obs)
            policy = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            observation, reward, terminated, truncated, _ = self.envs.step(action.numpy())
            row = {
                "obs": self._obs, "action": action, "log_prob": policy.log_prob(action),
                "reward": torch.as_tensor(reward, dtype=torch.float32), "terminated": torch.as_tensor(terminated),
                "truncated": torch.as_tensor(truncated), "valid": torch.as_tensor(~self._over),
            }  # fmt: skip
            for name, value in row.items():
                rows.setdefault(name, []).append(value.clone())
            self._returns += np.where(self._over, 0.0, reward)
            self._over = terminated | truncated
            self.finished.extend(self._returns[self._over].tolist())
            self._returns[self._over] = 0.0
            self._obs = torch.as_tensor(observation)
        rows["obs"].append(self._obs.clone())
        return {name: torch.stack(values) for name, values in rows.items()}


# -- advantages --------------------------------------------------------------------------------------------------------------


def advantages_of(batch: dict[str, Tensor], values: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Generalized advantage estimates [T, E] (Schulman et al. 2016, arXiv 1506.02438, equation 16). `values`: V, [T+1, E].

    A terminated episode has no value behind its end. A truncated one has, V of its last observation, but its sum ends there, too.
    """
    advantages = torch.zeros_like(batch["reward"])
    following = torch.zeros_like(batch["reward"][0])
    for t in reversed(range(len(advantages))):
        terminated, ended = batch["terminated"][t].float(), (batch["terminated"] | batch["truncated"])[t].float()
        delta = batch["reward"][t] + gamma * (1 - terminated) * values[t + 1] - values[t]
        following = delta + gamma * gae_lambda * (1 - ended) * following
        following = torch.where(batch["valid"][t], following, 0.0)  # nothing flows over the step between two episodes
        advantages[t] = following
    return advantages


# -- learn -------------------------------------------------------------------------------------------------------------------


def loss_of(net: Net, samples: dict[str, Tensor], settings: Settings) -> tuple[Tensor, dict[str, float]]:
    """PPO's loss (equations 7 and 9), a mean over the samples [N], and numbers to look at."""
    logits, values = net(samples["obs"])
    policy = torch.distributions.Categorical(logits=logits)
    ratio = (policy.log_prob(samples["action"]) - samples["log_prob"]).exp()
    advantages = samples["advantage"]
    advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    # The smaller of both: beyond the clip there is nothing to gain, but everything to lose.
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - settings.clip, 1 + settings.clip) * advantages)
    policy_loss = -surrogate.mean()
    value_loss = 0.5 * F.mse_loss(values, samples["target"])
    entropy = policy.entropy().mean()
    loss = policy_loss + settings.value_coef * value_loss - settings.entropy_coef * entropy
    clipped = ((ratio - 1).abs() > settings.clip).float().mean().item()
    return loss, {"policy": policy_loss.item(), "value": value_loss.item(), "entropy": entropy.item(), "clipped": clipped}


def learn(net: Net, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], settings: Settings) -> dict[str, float]:
    """K epochs over one collection; the numbers of the last minibatch."""
    T, E = batch["reward"].shape
    with torch.no_grad():
        values = net(batch["obs"].flatten(0, 1))[1].unflatten(0, (T + 1, E))
    advantages = advantages_of(batch, values, settings.gamma, settings.gae_lambda)
    names = ("obs", "action", "log_prob")
    samples = {name: batch[name][:T][batch["valid"]] for name in names}
    samples |= {"advantage": advantages[batch["valid"]], "target": (advantages + values[:T])[batch["valid"]]}
    for _ in range(settings.epochs):
        for part in torch.randperm(len(samples["action"])).chunk(settings.minibatches):
            loss, numbers = loss_of(net, {name: x[part] for name, x in samples.items()}, settings)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), settings.max_grad_norm)
            optimizer.step()
    return numbers


def train(settings: Settings) -> tuple[float, int]:
    """Train; returns the mean return of the last 100 episodes and the steps made."""
    torch.manual_seed(settings.seed)
    collector = Collector(settings)
    net = Net(collector.observation_shape, collector.num_actions)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(net.parameters(), lr=settings.learning_rate, eps=1e-5)
    steps, mean = 0, float("nan")
    started = shown = time.perf_counter()
    try:
        while steps < settings.total_steps:
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * (1 - steps / settings.total_steps)
            numbers = learn(net, optimizer, collector.collect(net), settings)
            steps += settings.envs * settings.rollout
            mean = sum(collector.finished) / max(1, len(collector.finished))
            if (now := time.perf_counter()) - shown > 5 or steps >= settings.total_steps:
                shown, rate = now, steps / (now - started)
                left = max(0.0, (settings.total_steps - steps) / rate)
                print(
                    f"step {steps:>9,}  {rate:,.0f} steps/s  {left:,.0f} s left  return {mean:.2f}"
                    f"  entropy {numbers['entropy']:.2f}  ratios clipped {numbers['clipped']:.0%}",
                    flush=True,
                )
            if settings.goal is not None and len(collector.finished) == 100 and mean >= settings.goal:
                break
    finally:
        collector.envs.close()
    return mean, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float if value is None else type(value), default=value)
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C
        train(Settings(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
