"""headrace share."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from headrace.cli.options import ExportOptions, parse
from headrace.config.ranges import Range
from headrace.processes.output import show
from headrace.processes.start import start_fork_server


@dataclasses.dataclass(kw_only=True)
class Share(ExportOptions):
    """Write a trained policy as a model repository of the Hugging Face hub, with a card, and upload it if asked."""

    repo: str
    """Name of the repository, as user/name."""
    to: Path | None = None
    """Folder that is written. None: share in the run folder."""
    episodes: Annotated[int, Range(0, 1_000_000)] = 100
    """Number of games whose mean return the card states."""
    video: bool = True
    """Record a game."""
    push: bool = False
    """Upload the folder, with the token that huggingface_hub knows (hf auth login)."""
    private: bool = False
    """Create the repository as a private one."""
    demo: bool = False
    """Add demo.html, in which the policy plays in the visitor's browser by onnxruntime-web. For classic-control environments.
    npm fetches that package once."""
    onnxruntime_web: Path | None = None
    """Folder of the npm package onnxruntime-web for the demo, such as node_modules/onnxruntime-web. None: npm fetches it."""


def run(arguments: list[str]) -> int:
    asked: Share = parse(Share, "share", arguments)
    start_fork_server()
    from headrace.export.share import share  # imports torch

    folder = share(**vars(asked))
    show(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    if asked.push:
        show(f"uploaded: headrace eval hf://{asked.repo}")
    return 0
