"""Small fully connected policies: acting, and the gradient of PPO's loss, by native functions (`native/ppo`). Of other policies,
how the heads act.

An optimizer step on a few hundred samples is some 250 operations of PyTorch, and acting for eight environments some 80, of which
heads and drawing are 40: their arithmetic is a fraction of their cost. The native functions compute what `PolicyGradient.act` and
`PolicyGradient.loss` do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

import headrace._native.ppo as native
from headrace.accelerator.graphs import Tensors
from headrace.config import LearningConfig
from headrace.envs.core.contract import MASK_KEY, Categorical, Continuous
from headrace.learning.shape_checks import require
from headrace.policies.activations import ELU
from headrace.policies.distributions import layout, unsquashed
from headrace.policies.encoders import MultiEncoder, TwoNetworks, VectorEncoder
from headrace.policies.normalizer import RunningMeanStd
from headrace.policies.policy import ActionHead, Policy, Trunk, ValueHead

MOST_WORK = 1 << 23
"""Parameters times samples of a minibatch up to which one thread here should be as fast as several of PyTorch: an estimate."""
_KINDS: dict[type[nn.Module], native.Kind] = {nn.ReLU: native.Kind.relu, ELU: native.Kind.elu, nn.Tanh: native.Kind.tanh}


class SmallNetwork:
    """A policy of linear layers with one vector as its observation and without a core: how it acts, and its gradient. Of any
    other one, its heads: how they act.

    `acts` and `takes` say whether the native functions do it. The policy must stay the same object; its parameters may move in
    memory.
    """

    def __init__(self, policy: Policy):
        self.policy = policy
        self._discrete = all(isinstance(part, Categorical) for part in policy.spec.action.parts)
        self._layout = layout(policy.spec.action, torch.device("cpu"))  # whose tensors the native function reads
        self._width = policy.spec.action.width
        self._layers = _layers(policy) or _heads(policy)
        self._parameters = [] if self._layers is None else self._layers.parameters(policy)
        self._own: list[Tensor] = []
        self._work = sum(parameter.numel() for parameter in self._parameters)
        self._found: tuple[list[int], native.Policy] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies: addresses are found again."""
        return self.__dict__ | {"_found": None}

    def acts(self, obs: Tensors) -> bool:
        """Whether the native function acts on these observations: on the CPU, where no gradient is wanted."""
        return (
            self._layers is not None
            and not torch.is_grad_enabled()
            and not torch.jit.is_tracing()
            and all(x.is_cpu and self._work * x.shape[0] <= MOST_WORK for x in obs.values())
        )

    def act(self, obs: Tensors, core: Tensor, first: Tensor, generator: torch.Generator) -> tuple[Tensors, Tensor]:
        """See `PolicyGradient.act`: actions drawn from the policy, and the core state."""
        assert self._layers is not None
        if self._layers.actor:
            (name,) = self.policy.trunk.observed
            x = obs[name]
        else:
            x, core = self.policy.features(obs, core, first)
        if not (x.dtype is torch.float32 and x.dim() == 2 and x.is_contiguous()):  # for few samples quicker than the operations
            x = x.flatten(1).float().contiguous()
        n = x.shape[0]
        noise = torch.empty(n, self._layers.heads[0].out_features)
        noise = noise.uniform_(generator=generator) if self._discrete else noise.normal_(generator=generator)
        action = torch.empty(n, self._width, dtype=torch.int32 if self._discrete else torch.float32)
        log_prob, value = torch.empty(n), torch.empty(n)
        native.act(
            self._located(), self._surroundings(), n, x.data_ptr(), noise.data_ptr(),
            *_addresses(*((action, None) if self._discrete else (None, action)), log_prob, value),
        )  # fmt: skip
        return {"action": action, "log_prob": log_prob, "value": value}, core

    def _surroundings(self) -> native.Surroundings:
        trunk, at, whole = self.policy.trunk, self._layout, bool(self._layers and self._layers.actor)
        observations = cast(RunningMeanStd, trunk.normalizers[0]) if whole and trunk.normalized else None
        bounds = [t.data_ptr() for t in (at.bounded, at.low, at.high, at.middle, at.half_range)]
        return native.Surroundings(_statistics(observations), _statistics(self.policy.returns), *bounds)

    def takes(self, batch: Tensors, c: LearningConfig) -> bool:
        """Whether the native functions compute the loss of this minibatch: on the CPU, without action masks, with an exploration
        term that is the entropy of discrete actions, or none."""
        return (
            self._layers is not None
            and bool(self._layers.actor)
            and batch["action"].dtype == (torch.int32 if self._discrete else torch.float32)
            and batch["mask"].device.type == "cpu"
            and self._work * batch["mask"].numel() <= MOST_WORK
            and c.exploration == "entropy"
            and (c.entropy_coef == 0 or self._discrete)
            and all(parameter.requires_grad for parameter in self._parameters)
            and not c.compile
        )

    def evaluate(self, batch: Tensors) -> tuple[Tensor, Tensor]:
        """Under the present weights, of a minibatch with row T: the log-probabilities of the actions, float32 [T, B] (0 where the
        mask is False), and the values in the head's units, [T+1, B]. Raises as `backward`."""
        mask = batch["mask"].contiguous()
        x, (action, raw) = self._observation(batch, len(mask) + 1), self._actions(batch)
        log_prob, value = torch.empty(mask.shape), torch.empty(len(mask) + 1, mask.shape[1])
        at = *_addresses(action, *raw), *_addresses(mask, log_prob, value)
        native.evaluate(self._located(), value.numel(), mask.numel(), x.data_ptr(), *at)
        return log_prob, value

    def backward(self, batch: Tensors, c: LearningConfig) -> Tensors:
        """See `Algorithm.backward`; `batch` as `PolicyGradient.loss` takes it, with `target` and `advantage`. Raises `IndexError`
        for an action that the environment does not have."""
        mask, x, (action, raw) = batch["mask"], self._observation(batch, len(batch["mask"])), self._actions(batch)
        named = {name: batch[name] for name in ("log_prob", "advantage", "target")}
        if c.value_clip is not None:
            named["value"] = self.policy.normalize_value(batch["value"])
        require("SmallNetwork.backward", mask.shape, **named)
        others = [tensor.float().contiguous() for tensor in named.values()]
        old = others[3] if c.value_clip is not None else None
        valid, log_prob, value = mask.contiguous(), torch.empty(mask.shape), torch.empty(mask.shape)
        for parameter, own in zip(self._parameters, self._gradients(), strict=True):
            if parameter.grad is None:
                parameter.grad = own
        surrogate, error, entropy = native.gradient(
            self._located(), _settings(c), mask.numel(), x.data_ptr(), *_addresses(action, *raw), *_addresses(*others[:3], old),
            *_addresses(valid, log_prob, value),
        )  # fmt: skip
        batch |= {
            "sample/log_prob": log_prob, "sample/behaviour_log_prob": others[0], "sample/mask": mask,
            "sample/value": value, "sample/target": others[2],
        }  # fmt: skip
        loss = (surrogate + c.value_coef * error - c.entropy_coef * entropy) * (int(mask.sum()) if c.reduction == "sum" else 1)
        names = ["losses/loss", "losses/policy_loss", "losses/value_loss"]
        if c.entropy_coef > 0:
            names += ["losses/entropy", "losses/exploration_loss"]
        return dict(zip(names, torch.tensor([loss, surrogate, error, entropy, -entropy]).unbind(), strict=False))

    def _observation(self, batch: Tensors, rows: int) -> Tensor:
        """float32 [N, F], normalised."""
        (name,) = self.policy.trunk.observed
        x = self.policy.trunk.normalize({key.removeprefix("obs/"): x for key, x in batch.items() if key.startswith("obs/")})[name]
        if len(x) < rows:
            raise ValueError(f"{name}: {len(x)} rows of observations where {rows} are needed")
        return x[:rows].float().flatten(0, 1).flatten(1).contiguous()

    def _actions(self, batch: Tensors) -> tuple[Tensor | None, Sequence[Tensor | None]]:
        """Discrete actions; or of continuous ones what `unsquashed` makes of them."""
        if self._discrete:
            return batch["action"].contiguous(), (None, None)
        known = [batch.get(name) for name in ("raw_action", "log_slope")]
        raw = unsquashed(self.policy.spec.action, batch["action"]) if None in known else cast(list[Tensor], known)
        return None, [x.float().contiguous() for x in raw]

    def _gradients(self) -> list[Tensor]:
        """Memory for the gradients of parameters that have none."""
        if not self._own:
            self._own = [torch.zeros_like(parameter) for parameter in self._parameters]
        return self._own

    def _located(self) -> native.Policy:
        """Where parameters are now, and their gradients where there are any."""
        assert self._layers is not None
        addresses = [0 if x is None else x.data_ptr() for p in self._parameters for x in (p, p.grad)]
        found = self._found  # read and set once each: a sampler may be another thread
        if found is None or found[0] != addresses:
            choices = [part.n for part in self.policy.spec.action.parts if isinstance(part, Categorical)]
            found = self._found = addresses, self._layers.at(addresses, choices)
        return found[1]


@dataclass(frozen=True)
class _Layers:
    """A policy's layers. Without those of a critic the actor's are for both heads; without an actor's there are heads only."""

    kind: native.Kind  # of the activation after each hidden layer
    actor: list[nn.Linear]
    critic: list[nn.Linear]
    heads: list[nn.Linear]  # of actions, and of the value

    def parameters(self, policy: Policy) -> list[Tensor]:
        """Weight and bias of all layers in order, then the logarithms of standard deviations, if there are any."""
        log_std = policy.action_head.log_std
        linear = (*self.actor, *self.critic, *self.heads)
        return [tensor for layer in linear for tensor in (layer.weight, layer.bias)] + ([] if log_std is None else [log_std])

    def at(self, addresses: list[int], choices: list[int]) -> native.Policy:
        """With `parameters` and their gradients at these addresses, in turns."""
        each = iter(addresses)

        def located(layer: nn.Linear) -> tuple[int, int, int, int, int, int]:
            weight, weight_gradient, bias, bias_gradient = next(each), next(each), next(each), next(each)
            return weight, bias, weight_gradient, bias_gradient, layer.in_features, layer.out_features

        actor, critic, heads = ([located(layer) for layer in layers] for layers in (self.actor, self.critic, self.heads))
        log_std, log_std_gradient = next(each, 0), next(each, 0)
        return native.Policy(self.kind, actor, critic, *heads, log_std, log_std_gradient, choices)


def _layers(policy: Policy) -> _Layers | None:
    """None if anything about the policy is not as `Policy` makes it for one vector with `policy.mlp`, without a core: then the
    native functions do not compute what it computes."""
    trunk, network, heads = policy.trunk, policy.trunk.network, _linear_heads(policy)
    own = (
        type(trunk) is Trunk
        and (type(network) is TwoNetworks) == (policy.parts == 2)
        and all(type(n) is RunningMeanStd for n in trunk.normalizers)
    )
    if not own or not heads or trunk.core is not None or trunk.precision != "float32":
        return None
    mlps = [_mlp(part) for part in ((network.actor, network.critic) if type(network) is TwoNetworks else (network,))]
    kinds = {type(activation) for mlp in mlps for activation in mlp[1::2]}
    if len(trunk.observed) != 1 or not all(mlps) or len(kinds) != 1 or not kinds <= _KINDS.keys():
        return None
    if not all(_is_plain(layer) for mlp in mlps for layer in mlp[::2]):
        return None
    hidden = [cast(list[nn.Linear], mlp[::2]) for mlp in mlps]
    found = _Layers(_KINDS[kinds.pop()], hidden[0], hidden[1] if len(hidden) > 1 else [], heads)
    # None is shared, and there are no others.
    known, every = [id(tensor) for tensor in found.parameters(policy)], [id(tensor) for tensor in policy.parameters()]
    return found if sorted(known) == sorted(every) else None


def _heads(policy: Policy) -> _Layers | None:
    """The heads alone; None as in `_layers`, and where each has features of its own."""
    heads = _linear_heads(policy) if policy.parts == 1 else []
    return _Layers(native.Kind.relu, [], [], heads) if heads else None


def _linear_heads(policy: Policy) -> list[nn.Linear]:
    """The layers of both heads, of actions whose parts are all of one kind and free to be drawn; else nothing."""
    parts, heads = policy.spec.action.parts, (policy.action_head, policy.value_head)
    alike = all(isinstance(part, Categorical) for part in parts) or all(isinstance(part, Continuous) for part in parts)
    own = [type(head) for head in heads] == [ActionHead, ValueHead] and all(_is_plain(head.linear) for head in heads)
    free = layout(policy.spec.action, torch.device("cpu")).fixed is None and MASK_KEY not in policy.spec.observation
    return [cast(nn.Linear, head.linear) for head in heads] if alike and own and free else []


def _mlp(network: nn.Module) -> list[nn.Module]:
    """Linear layers and activations in turns, of the encoder of the only observation, if it is a vector taken as it is; else
    nothing."""
    only = network.encoders[0] if type(network) is MultiEncoder and len(network.encoders) == 1 else None
    if type(only) is not VectorEncoder or only.scale != 1.0 or type(only.mlp) is not nn.Sequential or len(only.mlp) % 2:
        return []
    return list(only.mlp)


def _is_plain(layer: nn.Module) -> bool:
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return type(layer) is nn.Linear and layer.bias is not None and layer.weight.dtype == torch.float32 and not hooked


def _settings(c: LearningConfig) -> native.Settings:
    return native.Settings(
        -1.0 if c.ppo_clip is None else c.ppo_clip, -1.0 if c.value_clip is None else c.value_clip, c.value_coef, c.entropy_coef,
        c.normalize_advantages, c.reduction == "sum",
    )  # fmt: skip


def _addresses(*tensors: Tensor | None) -> Iterator[int]:
    return (0 if x is None else x.data_ptr() for x in tensors)


def _statistics(normalizer: RunningMeanStd | None) -> tuple[int, int, float, float]:
    if normalizer is None:
        return 0, 0, 0.0, 0.0
    return normalizer.mean.data_ptr(), normalizer.var.data_ptr(), normalizer.eps, normalizer.clip or 0.0
