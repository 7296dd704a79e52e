"""headrace export."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from headrace.cli.options import ExportOptions, parse
from headrace.config.ranges import Range
from headrace.processes.output import show
from headrace.processes.start import start_fork_server


@dataclasses.dataclass(kw_only=True)
class Export(ExportOptions):
    """Write a trained policy as an ONNX file that needs neither PyTorch nor Headrace, and compare it with the checkpoint."""

    to: Path | None = None
    """Name of the ONNX file. A description of its inputs and outputs, the contract, is written beside it as .json. None:
    policy.onnx in the run folder."""
    exporter: Literal["auto", "dynamo", "torchscript"] = "auto"
    """PyTorch's exporter to use. auto: the first one whose file gives the same outputs as the checkpoint."""
    episodes: Annotated[int, Range(0, 1_000_000)] = 20
    """Number of games that are played with the file; their mean return is written into the contract."""
    deterministic: bool = True
    """Play these games with the most probable actions; otherwise actions are sampled."""


def run(arguments: list[str]) -> int:
    asked: Export = parse(Export, "export", arguments)
    start_fork_server()
    from headrace.export.onnx_file import export_policy  # imports torch

    show(str(export_policy(**vars(asked))))
    return 0
