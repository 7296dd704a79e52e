"""headrace export."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from headrace.cli.options import Imports, parse
from headrace.config.ranges import Range
from headrace.processes.output import show
from headrace.processes.start import start_fork_server


@dataclasses.dataclass(kw_only=True)
class Export:
    """Write a trained policy as an ONNX file that needs neither PyTorch nor Headrace, and compare it with the checkpoint."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    to: Path | None = None
    """Name of the ONNX file; its contract is written beside it as .json. None: policy.onnx in the run folder."""
    which: Literal["newest", "best"] = "newest"
    """Checkpoint that is exported."""
    policy: Annotated[int, Range(0, 255)] | None = None
    """Number of the policy, from 0; needed where the run trained several (`population.size`)."""
    exporter: Literal["auto", "dynamo", "torchscript"] = "auto"
    """Which of PyTorch's exporters. auto: the first whose file gives what the checkpoint gives."""
    episodes: Annotated[int, Range(0, 1_000_000)] = 20
    """Number of games that the file plays; their mean return is written into the contract."""
    deterministic: bool = True
    """Play these games with the most probable actions; otherwise actions are sampled."""
    seed: Annotated[int, Range(0, 2**53)] = 0
    """Seed of these games."""
    licence: str | None = None
    """Licence of the weights, such as apache-2.0, for the contract. None: it states none."""
    imports: Imports = ()
    """Python files to import first: those that the run was trained with. The run folder names them, but no file runs unasked."""


def run(arguments: list[str]) -> int:
    """`headrace export`."""
    asked: Export = parse(Export, "export", arguments)
    start_fork_server()
    from headrace.export.onnx_file import export_policy  # imports torch

    show(str(export_policy(**vars(asked))))
    return 0
