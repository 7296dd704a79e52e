r"""PPO on an Atari game in one file, in the manner of CleanRL: Schulman et al. 2017 (arXiv 1707.06347) with that paper's numbers.

    pip install headrace-atari torch
    python ppo_atari.py --game breakout

The consoles are the one line of `VECTOR_ENVS` that is chosen: `--envs ale` runs the same training on ale-py's vector environment.
Both give the same observations and rewards for the same seed and actions, so with the same build of PyTorch and one thread
(`--torch-threads 1`) both trainings have the same returns, episode by episode, and the same weights.

A step is one decision of one environment and lasts four frames. Returns are unclipped and of whole games.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import time
from collections.abc import Callable

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

VECTOR_ENVS = {
    "headrace": "headrace_atari:AtariVector",
    "ale": "ale_py.vector_env:AtariVectorEnv",
}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", choices=VECTOR_ENVS, default="headrace", help="whose consoles")
    parser.add_argument("--game", default="breakout", help="a name like ms_pacman")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-steps", type=int, default=10_000_000, help="steps of all environments together")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--env-threads", type=int, default=1, help="threads that step the environments")
    parser.add_argument("--max-frames", type=int, default=108_000, help="frames after which an episode is truncated")
    parser.add_argument("--rollout", type=int, default=128, help="steps of each environment between two updates")
    parser.add_argument("--epochs", type=int, default=4, help="how often each step is learned from")
    parser.add_argument("--minibatches", type=int, default=4, help="parts that each epoch is divided into")
    parser.add_argument("--learning-rate", type=float, default=2.5e-4, help="falls linearly to 0")
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--clip", type=float, default=0.1)
    parser.add_argument("--entropy-coef", type=float, default=0.01)
    parser.add_argument("--value-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    parser.add_argument("--torch-threads", type=int, default=0, help="0: as many as PyTorch takes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where PyTorch computes")
    return parser.parse_args(given)


def layer(module: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """Orthogonal weights and no bias to begin with."""
    nn.init.orthogonal_(module.weight, gain)  # type: ignore[arg-type]
    nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    return module


class Agent(nn.Module):
    """Logits of the policy and a value for images uint8 `[batch, 4, 84, 84]`, by the network of Mnih et al. 2015."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            layer(nn.Conv2d(4, 32, 8, stride=4)), nn.ReLU(),
            layer(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU(),
            layer(nn.Conv2d(64, 64, 3)), nn.ReLU(),
            nn.Flatten(), layer(nn.Linear(64 * 7 * 7, 512)), nn.ReLU(),
        )  # fmt: skip
        self.actor = layer(nn.Linear(512, num_actions), 0.01)
        self.critic = layer(nn.Linear(512, 1), 1.0)

    def forward(self, images: Tensor) -> tuple[torch.distributions.Categorical, Tensor]:
        features = self.trunk(images / 255.0)
        return torch.distributions.Categorical(logits=self.actor(features)), self.critic(features).squeeze(-1)


def advantages_of(rewards: Tensor, values: Tensor, dones: Tensor, last: Tensor, args: argparse.Namespace) -> Tensor:
    """Generalized advantage estimates `[T, B]` (Schulman et al. 2016). `dones[t]`: an episode ended with step t. `last`: values
    `[B]` of the observations after the rollout."""
    advantages, running, after = torch.zeros_like(rewards), torch.zeros_like(last), last
    for t in reversed(range(len(rewards))):
        alive = 1.0 - dones[t]
        delta = rewards[t] + args.gamma * after * alive - values[t]
        advantages[t] = running = delta + args.gamma * args.gae_lambda * alive * running
        after = values[t]
    return advantages


def loss_of(agent: Agent, batch: dict[str, Tensor], args: argparse.Namespace) -> Tensor:
    """PPO's clipped loss of a minibatch, with the value's loss clipped likewise."""
    policy, values = agent(batch["images"])
    ratio = (policy.log_prob(batch["actions"]) - batch["log_probs"]).exp()
    advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - args.clip, 1 + args.clip)).mean()
    clipped = batch["values"] + (values - batch["values"]).clamp(-args.clip, args.clip)
    value_loss = 0.5 * torch.max((values - batch["returns"]) ** 2, (clipped - batch["returns"]) ** 2).mean()
    return policy_loss - args.entropy_coef * policy.entropy().mean() + args.value_coef * value_loss


def main(args: argparse.Namespace, clock: Callable[[], float] = time.perf_counter) -> dict[str, object]:
    """Train, and print every episode's return. Returns the returns, a digest of the weights, and steps per second of `clock`."""
    if args.torch_threads:
        torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    module, _, name = VECTOR_ENVS[args.envs].partition(":")
    envs = getattr(importlib.import_module(module), name)(
        args.game,
        args.num_envs,
        num_threads=args.env_threads,
        reward_clipping=False,
        max_num_frames_per_episode=args.max_frames,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    device = torch.device(args.device)
    agent = Agent(int(envs.single_action_space.n)).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    size = (args.rollout, args.num_envs)
    images = torch.zeros((*size, *envs.single_observation_space.shape), dtype=torch.uint8, device=device)
    actions = torch.zeros(size, dtype=torch.long, device=device)
    log_probs, rewards, dones, values = (torch.zeros(size, device=device) for _ in range(4))

    observation = torch.as_tensor(envs.reset(seed=args.seed)[0]).to(device)
    episode_return, episode_returns, stepping, begun = np.zeros(args.num_envs), list[float](), 0.0, clock()
    updates = args.total_steps // actions.numel()
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - update / updates)
        for t in range(args.rollout):
            with torch.no_grad():
                policy, values[t] = agent(observation)
                actions[t] = policy.sample()
                log_probs[t] = policy.log_prob(actions[t])
            images[t] = observation
            chosen, before = actions[t].cpu().numpy(), clock()
            pixels, reward, terminated, truncated, _ = envs.step(chosen)
            stepping += clock() - before
            done = terminated | truncated
            observation = torch.as_tensor(pixels).to(device)
            rewards[t], dones[t] = torch.as_tensor(np.sign(reward)), torch.as_tensor(done)
            episode_return += reward
            for i in np.flatnonzero(done):
                steps = (update * args.rollout + t + 1) * args.num_envs
                print(f"step {steps}: environment {i}, return {episode_return[i]:g}", flush=True)
                episode_returns.append(float(episode_return[i]))
                episode_return[i] = 0
        with torch.no_grad():
            advantages = advantages_of(rewards, values, dones, agent(observation)[1], args)
        columns = {"actions": actions, "log_probs": log_probs, "advantages": advantages, "values": values}
        columns |= {"images": images, "returns": advantages + values}
        flat = {key: column.flatten(0, 1) for key, column in columns.items()}
        for _ in range(args.epochs):
            for part in torch.randperm(actions.numel(), device=device).chunk(args.minibatches):
                optimizer.zero_grad()
                loss_of(agent, {key: column[part] for key, column in flat.items()}, args).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
    envs.close()
    steps = updates * actions.numel()
    digest = hashlib.sha256(b"".join(weight.detach().cpu().numpy().tobytes() for weight in agent.parameters())).hexdigest()[:16]
    rates = {"steps/s": steps / (clock() - begun), "steps/s of envs.step": steps / stepping}
    print(f"{args.envs}: weights {digest}; " + ", ".join(f"{rate:,.0f} {unit}" for unit, rate in rates.items()))
    return {"returns": episode_returns, "weights": digest, **rates}


if __name__ == "__main__":
    main(arguments())
