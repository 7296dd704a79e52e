"""IMPALA in one file: the algorithm of Espeholt et al. 2018 (arXiv 1802.01561) to read, on plain PyTorch.

    pip install minatar
    python examples/impala.py                         # MinAtar Breakout, some minutes on two cores
    python examples/impala.py --game freeway --total-steps 1000000

Data flows in one circle, and the file follows it:

    actors (processes)          buffers (shared memory)              learner (this process)
    act with their copy   ──▶   slot: T+1 rows of E environments ──▶ batch of slots ──▶ V-trace, loss, update
        ▲                       free queue, full queue                                       │
        └───────────────────────────── weights (shared memory) ◀─────────────────────────────┘

An actor takes the newest weights before each trajectory. While it acts, and while its trajectory waits, the learner goes on: what
is learned from was chosen by a policy mu that is some updates older than the learner's policy pi. V-trace corrects for that.

Everything is here but `vtrace` itself, the formula of the paper's section 4.1. To use another environment edit `make_env`, to use
another network edit `Net`: nothing else knows what they are.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional as F

from headrace.learning.vtrace import vtrace


@dataclass
class Settings:
    """The paper's Table G.1, but for sizes that fit a laptop."""

    game: str = "breakout"
    total_steps: int = 3_000_000
    """Steps of all environments together."""
    actors: int = 2
    """Processes that step environments."""
    envs: int = 16
    """E: environments of each actor."""
    unroll: int = 20
    """T: steps of a trajectory."""
    batch: int = 2
    """Slots in a batch: batch x E trajectories (the paper: 32)."""
    slots: int = 6
    """Slots in shared memory: one for each actor, one batch that is learned from, and some that wait. More make older data."""
    gamma: float = 0.99
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    learning_rate: float = 6e-4
    """Falls linearly to 0."""
    rmsprop_alpha: float = 0.99
    rmsprop_eps: float = 0.01
    max_grad_norm: float = 40.0
    """Of the gradient of the summed loss."""
    reward_clip: float = 1.0
    seed: int = 0
    goal: float | None = None
    """Stop when the mean return of the last 100 episodes reaches this."""


# -- edit here for another environment ---------------------------------------------------------------------------------------


class MinAtar:
    """One game on a 10x10 board (Young and Tian 2019). Observation: bool [10, 10, C], an object of kind c is there."""

    def __init__(self, game: str, seed: int):
        from minatar import Environment

        self._game = Environment(game)
        self._game.seed(seed)
        self._actions = self._game.minimal_action_set()
        self.num_actions = len(self._actions)
        self.observation_shape = tuple(self._game.state_shape())

    def reset(self) -> np.ndarray:
        """The first observation of an episode."""
        self._game.reset()
        return self._game.state()

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Observation, reward, whether the episode is over."""
        reward, done = self._game.act(self._actions[action])
        return self._game.state(), float(reward), bool(done)


def make_env(settings: Settings, seed: int) -> MinAtar:
    """Anything with `observation_shape`, `num_actions`, `reset` and `step` as above."""
    return MinAtar(settings.game, seed)


# -- edit here for another network -------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Policy logits and a value for observations [N, H, W, C]; the convolution of the MinAtar paper."""

    def __init__(self, observation_shape: tuple[int, ...], num_actions: int):
        super().__init__()
        height, width, channels = observation_shape
        self.conv = nn.Conv2d(channels, 16, kernel_size=3)
        self.hidden = nn.Linear(16 * (height - 2) * (width - 2), 128)
        self.policy = nn.Linear(128, num_actions)
        self.value = nn.Linear(128, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, A] and values [N]."""
        x = F.relu(self.conv(obs.float().movedim(-1, 1)))
        x = F.relu(self.hidden(x.flatten(1)))
        return self.policy(x), self.value(x).squeeze(-1)


# -- buffers: where actors and learner meet ----------------------------------------------------------------------------------


def make_buffers(settings: Settings, observation_shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Memory for all slots, shared by every process.

    Row t holds observation t, the action taken on it and its log-probability, and the reward and the end of the episode which
    that action brought. Row T has only an observation: the one to bootstrap from.
    """
    S, T, E = settings.slots, settings.unroll, settings.envs
    buffers = {
        "obs": torch.zeros(S, T + 1, E, *observation_shape, dtype=torch.bool),
        "action": torch.zeros(S, T, E, dtype=torch.int64),
        "log_prob": torch.zeros(S, T, E),  # log mu(action | obs), of the policy that acted
        "reward": torch.zeros(S, T, E),
        "done": torch.zeros(S, T, E, dtype=torch.bool),
        "episode_return": torch.full((S, T, E), float("nan")),  # where an episode ended
        "version": torch.zeros(S, dtype=torch.int64),  # updates the acting weights had seen
    }
    return {name: x.share_memory_() for name, x in buffers.items()}


# -- actors ------------------------------------------------------------------------------------------------------------------


def act(
    number: int,
    settings: Settings,
    shared: Net,
    version: Tensor,
    buffers: dict[str, Tensor],
    free: Any,
    full: Any,
) -> None:
    """What an actor's process runs: fill a free slot with T steps, hand it over, take the next."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed * 1000 + number)
    envs = [make_env(settings, settings.seed * 100_003 + number * settings.envs + e) for e in range(settings.envs)]
    net = Net(envs[0].observation_shape, envs[0].num_actions)
    obs = torch.from_numpy(np.stack([env.reset() for env in envs]))
    returns = np.zeros(settings.envs)
    while (slot := free.get()) is not None:
        # The newest weights, for the whole trajectory. From here on the learner moves ahead: this is the policy lag.
        net.load_state_dict(shared.state_dict())
        buffers["version"][slot] = version
        b = {name: x[slot] for name, x in buffers.items() if name != "version"}
        b["obs"][0] = obs
        for t in range(settings.unroll):
            with torch.no_grad():
                logits, _ = net(obs)
            distribution = torch.distributions.Categorical(logits=logits)
            action = distribution.sample()
            b["action"][t], b["log_prob"][t] = action, distribution.log_prob(action)
            b["episode_return"][t] = float("nan")
            for e, env in enumerate(envs):
                observation, reward, done = env.step(int(action[e]))
                returns[e] += reward
                b["reward"][t, e], b["done"][t, e] = reward, done
                if done:  # the next row is the first of the next episode; V-trace cuts its sums here
                    b["episode_return"][t, e], returns[e] = returns[e], 0.0
                    observation = env.reset()
                obs[e] = torch.from_numpy(observation)
            b["obs"][t + 1] = obs
        full.put(slot)


# -- the learner -------------------------------------------------------------------------------------------------------------


def loss_of(net: Net, batch: dict[str, Tensor], settings: Settings) -> tuple[Tensor, dict[str, float]]:
    """The loss of IMPALA, summed over the batch, and numbers to look at.

    batch: "obs" [T+1, B, ...], "action", "log_prob", "reward", "done" [T, B].
    """
    T, B = batch["reward"].shape
    logits, values = net(batch["obs"].flatten(0, 1))
    logits, values = logits.unflatten(0, (T + 1, B)), values.unflatten(0, (T + 1, B))
    log_pi = F.log_softmax(logits[:-1], dim=-1)
    log_prob = log_pi.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)

    # How much more, or less, probable the learner's policy makes what was done: log pi(a|x) - log mu(a|x).
    log_ratio = log_prob.detach() - batch["log_prob"]
    targets = vtrace(
        log_ratio,
        batch["reward"].clamp(-settings.reward_clip, settings.reward_clip),
        values.detach(),
        terminated=batch["done"],
        truncated=torch.zeros_like(batch["done"]),
        valid=torch.ones_like(batch["done"]),
        gamma=settings.gamma,
    )
    policy_loss = -(targets.advantages * log_prob).sum()
    value_loss = 0.5 * (targets.values - values[:-1]).square().sum()
    entropy = -(log_pi.exp() * log_pi).sum()
    loss = policy_loss + settings.value_coef * value_loss - settings.entropy_coef * entropy
    ratio = log_ratio.exp()
    return loss, {
        "policy": policy_loss.item() / (T * B),
        "value": value_loss.item() / (T * B),
        "entropy": entropy.item() / (T * B),
        "clipped": (ratio > 1).float().mean().item(),  # the share of importance weights that V-trace cuts down to 1
    }


def make_optimizer(net: Net, settings: Settings) -> torch.optim.Optimizer:
    """PyTorch's RMSProp, with epsilon outside the root; the paper's (TensorFlow) has it inside."""
    return torch.optim.RMSprop(
        net.parameters(), lr=settings.learning_rate, alpha=settings.rmsprop_alpha, eps=settings.rmsprop_eps
    )


def update(net: Net, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], settings: Settings) -> dict[str, float]:
    """One step of the optimizer."""
    loss, numbers = loss_of(net, batch, settings)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), settings.max_grad_norm)
    optimizer.step()
    return numbers


def next_full(full: Any, actors: list[Any]) -> int:
    """The next full slot. Raises `RuntimeError` if an actor has died: its message is above."""
    while True:
        try:
            return full.get(timeout=1.0)
        except queue.Empty:
            if not all(actor.is_alive() for actor in actors):
                raise RuntimeError("an actor has ended") from None


def take_batch(settings: Settings, buffers: dict[str, Tensor], free: Any, full: Any, actors: list[Any]) -> dict[str, Tensor]:
    """Wait for `batch` full slots, copy them side by side, and free them."""
    slots = [next_full(full, actors) for _ in range(settings.batch)]
    batch = {name: torch.cat([x[slot] for slot in slots], dim=1) for name, x in buffers.items() if name != "version"}
    batch["version"] = torch.stack([buffers["version"][slot] for slot in slots])
    for slot in slots:  # not before the copy
        free.put(slot)
    return batch


def train(settings: Settings) -> tuple[float, int]:
    """Train; returns the mean return of the last 100 episodes and the steps made."""
    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)
    env = make_env(settings, settings.seed)
    net = Net(env.observation_shape, env.num_actions)
    shared = Net(env.observation_shape, env.num_actions).share_memory()
    shared.load_state_dict(net.state_dict())
    version = torch.zeros((), dtype=torch.int64).share_memory_()
    buffers = make_buffers(settings, env.observation_shape)
    context = mp.get_context("spawn")
    free, full = context.Queue(), context.Queue()
    for slot in range(settings.slots):
        free.put(slot)
    actors = [
        context.Process(target=act, args=(n, settings, shared, version, buffers, free, full), daemon=True)
        for n in range(settings.actors)
    ]
    for actor in actors:
        actor.start()

    optimizer = make_optimizer(net, settings)
    steps = updates = 0
    returns: deque[float] = deque(maxlen=100)
    started = shown = time.perf_counter()
    try:
        while steps < settings.total_steps:
            batch = take_batch(settings, buffers, free, full, actors)
            lag = updates - batch["version"].float().mean().item()
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * (1 - steps / settings.total_steps)
            numbers = update(net, optimizer, batch, settings)
            shared.load_state_dict(net.state_dict())  # an actor may read half of this; it is one small step of the optimizer
            updates += 1
            version.fill_(updates)
            steps += batch["reward"].numel()
            ended = batch["episode_return"]
            returns.extend(ended[~ended.isnan()].tolist())
            mean = sum(returns) / max(1, len(returns))
            if (now := time.perf_counter()) - shown > 5 or steps >= settings.total_steps:
                shown = now
                rate = steps / (now - started)
                left = (settings.total_steps - steps) / rate
                print(
                    f"step {steps:>9,}  {rate:,.0f} steps/s  {left:,.0f} s left  return {mean:.2f}  lag {lag:.1f}"
                    f"  entropy {numbers['entropy']:.2f}  ratios clipped {numbers['clipped']:.0%}",
                    flush=True,
                )
            if settings.goal is not None and len(returns) == 100 and mean >= settings.goal:
                break
    finally:
        for actor in actors:
            actor.kill()
            actor.join()
    return mean, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float if value is None else type(value), default=value)
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C
        train(Settings(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
