"""The network that is exported: from the raw observations of an environment to the actions that it takes."""

from __future__ import annotations

import copy
import io
import logging
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from headrace.config.errors import UserError
from headrace.envs.core.actions import tensor_decoder
from headrace.envs.core.spaces import Leaf
from headrace.evaluation.trained_policy import TrainedPolicy
from headrace.export.interface import ActionLeaf, encoding_of, raw_dtype
from headrace.policies.activations import ELU
from headrace.policies.policy import OnTrunk, PolicyOutput
from headrace.policies.q_network import QOutput

OPSET = 18


class ExportError(UserError):
    """A policy could not be exported, or the file did not give what the policy gives."""


def act(
    policy: TrainedPolicy, model: nn.Module, obs: dict[str, Tensor], core: Tensor, first: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The deterministic action rows [N, A] of N observations in the engine's form, the core state after them [N, S], and by name
    what actions are sampled from: `logits` [N, M], `mean` and `std` [N, C], or `q` [N, M]."""
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
        fields, after = policy.algorithm.act(model, obs, core, first, envs, none, "deterministic")
    finally:
        if isinstance(model, OnTrunk):
            del model.act
    return fields["action"], after, _sampled_from(seen[-1] if seen else None)


def _sampled_from(output: Any) -> dict[str, Tensor]:
    if isinstance(output, QOutput):
        return {"q": output.q}
    if not isinstance(output, PolicyOutput):
        return {}
    found = {"logits": output.distribution.logits, "mean": output.distribution.mean, "std": output.distribution.std}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


class Graph(nn.Module):
    """Raw observations, then core state and reset flag where there is a core, to actions, what they are sampled from, and the
    next core state. Inputs and outputs are tensors in the order of `input_names` and `output_names`."""

    def __init__(self, policy: TrainedPolicy, observations: list[Leaf], actions: list[ActionLeaf]):
        super().__init__()
        self.policy, self.leaves, self.actions = policy, observations, actions
        self.model = _portable(policy.model)
        self.width = int(policy.model.core_width)
        self._decode = [tensor_decoder(leaf.space, "cpu", policy.spec.name) for leaf in actions]
        obs = {leaf.name: torch.zeros(1, *leaf.spec.shape, dtype=_torch(leaf.spec.dtype)) for leaf in observations}
        self.sampled_from = list(act(policy, self.model, obs, torch.zeros(1, self.width), torch.ones(1, dtype=torch.bool))[2])
        self.input_names = [leaf.name for leaf in observations] + (["core", "first"] if self.width else [])
        self.output_names = [leaf.name for leaf in actions] + self.sampled_from + (["next_core"] if self.width else [])

    def example(self, n: int) -> tuple[Tensor, ...]:
        """Inputs for n observations."""
        raw = [torch.zeros(n, *(leaf.source.shape or ()), dtype=_torch(raw_dtype(leaf))) for leaf in self.leaves]
        return (*raw, *([torch.zeros(n, self.width), torch.zeros(n, dtype=torch.bool)] if self.width else []))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        obs = {leaf.name: _encoded(leaf, x) for leaf, x in zip(self.leaves, inputs, strict=False)}
        n = inputs[0].shape[0]
        core, first = inputs[-2:] if self.width else (torch.zeros(n, 0), torch.zeros(n, dtype=torch.bool))
        rows, after, sampled_from = act(self.policy, self.model, obs, core, first)
        actions = [self._action(leaf, decode, rows) for leaf, decode in zip(self.actions, self._decode, strict=True)]
        return (*actions, *sampled_from.values(), *([after] if self.width else []))

    def _action(self, leaf: ActionLeaf, decode: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        values, dtype = decode(rows[:, leaf.columns]), np.dtype(leaf.space.dtype)
        if isinstance(leaf.space, spaces.Box) and np.issubdtype(dtype, np.integer):
            values = values.round()
        return values.to(_torch(dtype))


def _torch(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.zeros(1, dtype)).dtype


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
    return x.to(_torch(leaf.spec.dtype))


def _portable(model: nn.Module) -> nn.Module:
    """A copy of the model in operators that every exporter knows."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, ELU):
                setattr(module, name, nn.ELU())
    return model


# -- exporters ------------------------------------------------------------------------------------------------------------


def dynamo(graph: Graph) -> bytes:
    """Export by `torch.export`: whole graphs, or an error."""
    inputs = graph.example(2)
    shapes = (tuple({0: torch.export.Dim("batch")} for _ in inputs),)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        program = torch.onnx.export(
            graph, inputs, dynamo=True, dynamic_shapes=shapes, verbose=False, opset_version=OPSET, external_data=False,
            input_names=graph.input_names, output_names=graph.output_names,
        )  # fmt: skip
    finally:
        logger.setLevel(level)
    assert program is not None
    return program.model_proto.SerializeToString()


def torchscript(graph: Graph) -> bytes:
    """Export by recording one forward pass."""
    file: Any = io.BytesIO()
    names = [*graph.input_names, *graph.output_names]
    torch.onnx.export(
        graph, graph.example(2), file, dynamo=False, dynamic_axes={name: {0: "batch"} for name in names}, opset_version=OPSET,
        input_names=graph.input_names, output_names=graph.output_names,
    )  # fmt: skip
    return file.getvalue()


EXPORTERS: dict[str, Callable[[Graph], bytes]] = {"dynamo": dynamo, "torchscript": torchscript}
"""In the order in which they are tried: the first refuses what it cannot follow, the second may record one path of several."""


@torch.no_grad()
def exported(graph: Graph, exporter: str) -> bytes:
    """The ONNX file's bytes. Raises `ExportError`, which names the operator where one is the cause."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return EXPORTERS[exporter](graph)
    except Exception as error:  # the user's own network runs here, too
        raise ExportError(_cause(error)) from error


def _cause(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    operators = dict.fromkeys(re.findall(r"\b(?!aten)\w+::\w+|\baten(?:::|\.)\w+", " ".join(texts)))
    if operators:
        return f"the operator {next(iter(operators)).replace('::', '.')} has no form in ONNX"
    return texts[-1].strip().splitlines()[0][:300]
