"""The network that is exported: from the raw observations of an environment to the actions that it takes."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headrace.accelerator.staging import torch_dtype
from headrace.config.errors import UserError
from headrace.evaluation.interface import raw_dtype
from headrace.evaluation.module import PolicyModule
from headrace.policies.activations import ELU

OPSET = 18


class ExportError(UserError):
    """A policy could not be exported, or the file did not give what the policy gives."""


class Graph(nn.Module):
    """A `PolicyModule` whose inputs and outputs are tensors in the order of `input_names` and `output_names`."""

    def __init__(self, module: PolicyModule):
        super().__init__()
        self.module = _portable(module)
        width = self.width = module.core_width
        self.input_names = [leaf.name for leaf in module.leaves] + (["core", "first"] if width else [])
        outputs = self.module(dict(zip(self.input_names, self.example(1), strict=False)))
        self.output_names = [name for name in outputs if name != "value"]
        self.sampled_from = [name for name in self.output_names if not name.startswith("action") and name != "next_core"]

    def example(self, n: int) -> tuple[Tensor, ...]:
        """Inputs for n observations."""
        raw = [torch.zeros(n, *(leaf.source.shape or ()), dtype=torch_dtype(raw_dtype(leaf))) for leaf in self.module.leaves]
        return (*raw, *([torch.zeros(n, self.width), torch.zeros(n, dtype=torch.bool)] if self.width else []))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.input_names, inputs, strict=True))
        outputs = self.module(given, given.get("core"), given.get("first"))
        return tuple(outputs[name] for name in self.output_names)


def _portable(module: PolicyModule) -> PolicyModule:
    """The module, in operators that every exporter knows."""
    for part in module.modules():
        for name, child in part.named_children():
            if isinstance(child, ELU):
                setattr(part, name, nn.ELU())
    return module


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
