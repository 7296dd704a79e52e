"""Output to a terminal or a pipe that may go away: the connection breaks, the window is closed, `| head` has read enough."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any


def show(text: str) -> None:
    """Print a text. Nothing happens where nobody can read it any more."""
    tolerantly(lambda: print(text, flush=True), sys.stdout)


def tolerantly(write: Callable[[], object], stream: IO[str]) -> None:
    """Call `write`, which writes to `stream`. If its reader has gone, all that is written there from now on is discarded."""
    try:
        write()
    except OSError:
        discard(stream)


def discard(stream: IO[str]) -> None:
    """Discard all that is written to `stream` from now on."""
    with suppress(OSError, ValueError):  # a stream without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def show_without_source(show: Callable[..., None]) -> Callable[..., None]:
    """Show a `UserWarning` as one line, without file, line number and source. Warnings for developers go to `show`."""

    def show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if category is UserWarning:
            print(f"warning: {message}", file=sys.stderr)
        else:
            show(message, category, *where, **more)

    return show_warning
