"""DQN in one file: the algorithm of Mnih et al. 2015 (Nature 518) to read, on plain PyTorch.

    python examples/dqn.py                            # CartPole, about a minute
    python examples/dqn.py --double                   # with Double Q-learning (van Hasselt et al. 2016, arXiv 1509.06461)

One process does three things in turn, and the file follows them:

    act with epsilon-greedy  ──▶  replay: the newest N transitions, drawn uniformly  ──▶  learn towards a target network
        ▲                                                                                       │
        └────────────────────────────────────── the new Q-function ─────────────────────────────┘

What is learned from was chosen by policies that are up to N transitions old; Q-learning needs no correction for that, since its
targets ask for the best action and not for the one that was taken. `headrace train --learning.algorithm dqn` runs the same loss
on a replay that other processes fill.

To use another network edit `Net`; any id of `headrace envs` with discrete actions and one vector as observation works.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
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
    total_steps: int = 120_000
    """Steps of all environments together."""
    envs: int = 8
    """E: environments, stepped together."""
    capacity: int = 50_000
    """N: transitions in the replay."""
    minimum: int = 1_000
    """Transitions in the replay before learning begins."""
    batch: int = 64
    """Transitions of one step of the optimizer."""
    steps_per_update: int = 2
    """Steps of environments for each step of the optimizer (the paper: 4)."""
    target_period: int = 250
    """C: steps of the optimizer between two copies of the Q-function into the target network."""
    double: bool = False
    """The online network chooses the best next action, the target network says what it is worth."""
    gamma: float = 0.99
    epsilon_start: float = 1.0
    epsilon_end: float = 0.02
    epsilon_share: float = 0.2
    """The share of training in which epsilon falls linearly from its start to its end."""
    learning_rate: float = 5e-4
    max_grad_norm: float = 10.0
    seed: int = 0
    goal: float | None = None
    """Stop when the mean return of the last 100 episodes reaches this."""


# -- edit here for another network -------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Q(s, a) of every action [N, A] for observations [N, D]."""

    def __init__(self, observation_shape: tuple[int, ...], num_actions: int):
        super().__init__()
        (width,) = observation_shape
        self.body = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, num_actions))

    def forward(self, obs: Tensor) -> Tensor:
        return self.body(obs)


# -- replay ------------------------------------------------------------------------------------------------------------------


class Replay:
    """A ring of the newest transitions: observation, action, reward, next observation, and whether the episode terminated."""

    def __init__(self, capacity: int, observation_shape: tuple[int, ...]):
        self.capacity, self.size, self._next = capacity, 0, 0
        self._memory = {
            "obs": torch.zeros(capacity, *observation_shape),
            "action": torch.zeros(capacity, dtype=torch.int64),
            "reward": torch.zeros(capacity),
            "next_obs": torch.zeros(capacity, *observation_shape),
            "terminated": torch.zeros(capacity, dtype=torch.bool),
        }

    def add(self, **transitions: np.ndarray) -> None:
        """Add [n, ...] of each; the oldest ones give way."""
        n = len(transitions["reward"])
        places = torch.arange(self._next, self._next + n) % self.capacity
        for name, values in transitions.items():
            self._memory[name][places] = torch.as_tensor(values).to(self._memory[name].dtype)
        self._next = (self._next + n) % self.capacity
        self.size = min(self.size + n, self.capacity)

    def sample(self, batch: int) -> dict[str, Tensor]:
        """`batch` transitions, uniformly and with replacement."""
        drawn = torch.randint(self.size, (batch,))
        return {name: memory[drawn] for name, memory in self._memory.items()}


# -- act ---------------------------------------------------------------------------------------------------------------------


def epsilon_at(step: int, settings: Settings) -> float:
    """The probability of a random action after so many steps of all environments."""
    share = min(1.0, step / (settings.epsilon_share * settings.total_steps))
    return settings.epsilon_start + share * (settings.epsilon_end - settings.epsilon_start)


class Actor:
    """Steps the environments with epsilon-greedy actions, and adds their transitions to the replay."""

    def __init__(self, settings: Settings):
        self.envs = headrace.make_vec(settings.env, settings.envs)
        self.observation_shape = self.envs.single_observation_space.shape
        self.num_actions = int(self.envs.single_action_space.n)  # type: ignore[attr-defined]
        self._random = np.random.default_rng(settings.seed)
        self._obs, _ = self.envs.reset(seed=settings.seed)
        self._obs = self._obs.copy()
        self._over = np.zeros(settings.envs, bool)  # the step before was the last of its episode
        self._returns = np.zeros(settings.envs)
        self.finished: deque[float] = deque(maxlen=100)
        """Returns of the last 100 episodes."""

    def step(self, net: Net, replay: Replay, epsilon: float) -> None:
        """One step of every environment.

        A step after the end of an episode only begins the next one (Gymnasium's NEXT_STEP): it is no transition. The observation
        before it is the true last one of the episode, so a truncated episode is bootstrapped from the right place.
        """
        with torch.no_grad():
            action = net(torch.as_tensor(self._obs)).argmax(-1).numpy()
        explore = self._random.random(len(action)) < epsilon
        action = np.where(explore, self._random.integers(self.num_actions, size=len(action)), action)
        observation, reward, terminated, truncated, _ = self.envs.step(action)
        real = ~self._over
        transitions = {"obs": self._obs, "action": action, "reward": reward, "next_obs": observation, "terminated": terminated}
        replay.add(**{name: values[real] for name, values in transitions.items()})
        self._returns += np.where(real, reward, 0.0)
        self._over = terminated | truncated
        self.finished.extend(self._returns[self._over].tolist())
        self._returns[self._over] = 0.0
        self._obs = observation.copy()  # the environments may write the next one into the same memory


# -- learn -------------------------------------------------------------------------------------------------------------------


def loss_of(net: Net, target: Net, samples: dict[str, Tensor], settings: Settings) -> tuple[Tensor, dict[str, float]]:
    """The Huber loss of the temporal-difference errors, a mean over the samples, and numbers to look at."""
    with torch.no_grad():
        following = target(samples["next_obs"])
        best = net(samples["next_obs"]).argmax(-1) if settings.double else following.argmax(-1)
        value = following.gather(-1, best.unsqueeze(-1)).squeeze(-1)
        # Nothing follows a terminated episode. A truncated one goes on: its last observation has a value.
        targets = samples["reward"] + settings.gamma * torch.where(samples["terminated"], 0.0, value)
    q = net(samples["obs"]).gather(-1, samples["action"].unsqueeze(-1)).squeeze(-1)
    # The paper clips errors to [-1, 1], which is the gradient of the Huber loss.
    return F.smooth_l1_loss(q, targets), {"q": q.mean().item(), "error": (q - targets).abs().mean().item()}


def update(
    net: Net, target: Net, optimizer: torch.optim.Optimizer, samples: dict[str, Tensor], settings: Settings
) -> dict[str, float]:
    """One step of the optimizer."""
    loss, numbers = loss_of(net, target, samples, settings)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), settings.max_grad_norm)
    optimizer.step()
    return numbers


def train(settings: Settings) -> tuple[float, int]:
    """Train; returns the mean return of the last 100 episodes and the steps made."""
    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)
    actor = Actor(settings)
    net = Net(actor.observation_shape, actor.num_actions)  # type: ignore[arg-type]
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=settings.learning_rate)
    replay = Replay(settings.capacity, actor.observation_shape)  # type: ignore[arg-type]
    steps = updates = 0
    mean, numbers = float("nan"), {"q": float("nan"), "error": float("nan")}
    started = shown = time.perf_counter()
    try:
        while steps < settings.total_steps:
            actor.step(net, replay, epsilon_at(steps, settings))
            steps += settings.envs
            while replay.size >= settings.minimum and updates * settings.steps_per_update < steps - settings.minimum:
                numbers = update(net, target, optimizer, replay.sample(settings.batch), settings)
                updates += 1
                if updates % settings.target_period == 0:
                    target.load_state_dict(net.state_dict())
            mean = sum(actor.finished) / max(1, len(actor.finished))
            if (now := time.perf_counter()) - shown > 5 or steps >= settings.total_steps:
                shown, rate = now, steps / (now - started)
                left = max(0.0, (settings.total_steps - steps) / rate)
                print(
                    f"step {steps:>9,}  {rate:,.0f} steps/s  {left:,.0f} s left  return {mean:.2f}"
                    f"  epsilon {epsilon_at(steps, settings):.2f}  Q {numbers['q']:.1f}  error {numbers['error']:.2f}",
                    flush=True,
                )
            if settings.goal is not None and len(actor.finished) == 100 and mean >= settings.goal:
                break
    finally:
        actor.envs.close()
    return mean, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in vars(Settings()).items():
        if isinstance(value, bool):
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name.replace('_', '-')}", type=float if value is None else type(value), default=value)
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C
        train(Settings(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
