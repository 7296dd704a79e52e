"""A trained policy as a plain `torch.nn.Module`, which other PyTorch code calls, tunes and exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.accelerator.staging import torch_dtype
from headrace.envs.core.actions import tensor_decoder
from headrace.envs.core.contract import EnvSpec
from headrace.envs.core.spaces import Leaf
from headrace.evaluation.interface import ActionLeaf, encoding_of
from headrace.learning.algorithm import Algorithm
from headrace.policies.policy import OnTrunk, PolicyOutput
from headrace.policies.q_network import QOutput


def act(
    algorithm: Algorithm, model: nn.Module, obs: dict[str, Tensor], core: Tensor, first: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The deterministic action rows [N, A] of N observations in the engine's form, the core state after them [N, S], and by name
    what actions are sampled from: `logits` [N, M], `mean` and `std` [N, C], or `q` [N, M]; `value` [N] beside the former."""
    seen: list[Any] = []
    if isinstance(model, OnTrunk):
        own = model.act

        def watched(*args: Any) -> Any:
            seen.append(own(*args))
            return seen[-1]

        model.act = watched  # type: ignore[assignment]
    try:
        none: Any = None  # nothing is drawn at random
        envs = torch.arange(first.shape[0])
        fields, after = algorithm.act(model, obs, core, first, envs, none, "deterministic")
    finally:
        if isinstance(model, OnTrunk):
            del model.act
    return fields["action"], after, _parameters(seen[-1] if seen else None)


def _parameters(output: Any) -> dict[str, Tensor]:
    if isinstance(output, QOutput):
        return {"q": output.q}
    if not isinstance(output, PolicyOutput):
        return {}
    found = {"logits": output.distribution.logits, "mean": output.distribution.mean, "std": output.distribution.std}
    return {name: tensor for name, tensor in found.items() if tensor is not None} | {"value": output.value}


class PolicyModule(nn.Module):
    """Maps observations, in the form in which the environment gives them, to actions in the form in which it takes them.
    `TrainedPolicy.module` makes one, `headrace export` exports one.

    Everything is differentiable but the choice of a discrete action; it needs no engine and draws nothing at random. Its
    parameters are those of `model`, its buffers hold the statistics of observations, which a forward pass never changes.
    """

    def __init__(
        self, algorithm: Algorithm, model: nn.Module, spec: EnvSpec, observations: list[Leaf], actions: list[ActionLeaf]
    ) -> None:
        super().__init__()
        self.model, self.algorithm, self.leaves, self.actions = model, algorithm, observations, actions
        self.core_width = int(getattr(model, "core_width", 0))  # S; 0 without a core
        self._decode = [tensor_decoder(leaf.space, "cpu", spec.name) for leaf in actions]

    def forward(self, obs: dict[str, Tensor], core: Tensor | None = None, first: Tensor | None = None) -> dict[str, Tensor]:
        """One step of N environments.

        Args:
            obs: by name (`obs` where the observation is one array, `camera/left` in nested ones), [N, ...] in the shape and dtype
                of the environment's space.
            core: float32 [N, S] before these observations. None: zeros.
            first: bool [N]: the core state is zeroed before these observations. None: nowhere.

        Returns, by name: `action` (`action/name` for each part of a compound space), the best one, in the shape, dtype and range
        of the environment's space; what actions are sampled from, `logits` [N, M], `mean` and `std` [N, C] before they are
        squashed into the range, or `q` [N, M]; `value` [N], of an actor-critic's critic; `next_core` [N, S], where there is one.
        """
        rows = {leaf.name: _encoded(leaf, obs[leaf.name]) for leaf in self.leaves}
        n = next(iter(rows.values())).shape[0]
        core = torch.zeros(n, self.core_width, dtype=torch.float32) if core is None else core
        first = torch.zeros(n, dtype=torch.bool) if first is None else first
        chosen, after, parameters = act(self.algorithm, self.model, rows, core, first)
        actions = {leaf.name: self._action(leaf, decode, chosen) for leaf, decode in zip(self.actions, self._decode, strict=True)}
        return actions | parameters | ({"next_core": after} if self.core_width else {})

    def _action(self, leaf: ActionLeaf, decode: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        return decode(rows[:, leaf.columns]).to(torch_dtype(np.dtype(leaf.space.dtype)))


def _encoded(leaf: Leaf, x: Tensor) -> Tensor:
    """What `leaf.write` does, in torch: [N, *source shape] -> [N, *spec shape]."""
    encoding = encoding_of(leaf)
    if encoding["kind"] == "one-hot":
        x = x.reshape(-1, len(encoding["n"]))
        choices = [torch.arange(n) + start for n, start in zip(encoding["n"], encoding["start"], strict=True)]
        return torch.cat([(x[:, i : i + 1] == values).float() for i, values in enumerate(choices)], -1)
    if encoding["kind"] == "image":
        if x.dtype != torch.uint8 or encoding["high"] != 255:
            x = (x.double() * (255 / encoding["high"])).round().clamp(0, 255).to(torch.uint8)
        d = x.dim()  # counted from the front: the older exporter writes negative dimensions as they are
        x = x.permute(*range(d - 3), d - 1, d - 3, d - 2) if encoding["channels_last"] else x
    shape = leaf.spec.shape
    x = x if tuple(x.shape[1:]) == shape else x.reshape(-1, *shape)
    return x.to(torch_dtype(leaf.spec.dtype))
