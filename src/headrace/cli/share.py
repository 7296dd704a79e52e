"""headrace share."""

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
class Share:
    """Write a trained policy as a model repository of the Hugging Face hub, with a card, and upload it if asked."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    repo: str
    """Name of the repository, as user/name."""
    to: Path | None = None
    """Folder that is written. None: share in the run folder."""
    which: Literal["newest", "best"] = "newest"
    """Checkpoint that is shared."""
    policy: Annotated[int, Range(0, 255)] | None = None
    """Number of the policy, from 0; needed where the run trained several (`population.size`)."""
    episodes: Annotated[int, Range(0, 1_000_000)] = 100
    """Number of games whose mean return the card states."""
    seed: Annotated[int, Range(0, 2**53)] = 0
    """Seed of these games."""
    licence: str | None = None
    """Licence of the weights, as the hub names it, such as apache-2.0. None: the card states none."""
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
    imports: Imports = ()
    """Python files to import first: those that the run was trained with. The run folder names them, but no file runs unasked."""


def run(arguments: list[str]) -> int:
    """`headrace share`."""
    asked: Share = parse(Share, "share", arguments)
    start_fork_server()
    from headrace.export.share import share  # imports torch

    folder = share(**vars(asked))
    show(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    if asked.push:
        show(f"uploaded: headrace eval hf://{asked.repo}")
    return 0
