"""A run folder is data: code that it names runs only where the user has named it too.

config.json has the Python files that a run imports, and the id of its environment may name a package (``gym/package:Name-v0``). A
folder from somebody else could so run anything on the machine of whoever evaluates or resumes it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from headrace.config import Config, ConfigError
from headrace.envs.imports import imported


class ImportsNotGiven(ConfigError):
    """A run folder names code that the user has not named. `needed`: the files and packages to name."""

    def __init__(self, folder: os.PathLike[str] | str, code: list[str]) -> None:
        listed = "\n".join(f"  {name}" for name in code)
        super().__init__(
            f"the run in {folder} needs Python code that its config.json names:\n{listed}\n"
            "Code of a run folder runs only if you name it too: give --import with these names, in Python imports=[...]"
        )
        self.needed = code


def needed_code(config: Config) -> tuple[str, ...]:
    """The files, and the packages, that a run with this configuration imports."""
    named = [task.removeprefix("gym/").partition(":") for task in config.tasks if task.startswith("gym/")]
    return (*config.imports, *dict.fromkeys(package for package, colon, _ in named if colon))


def check_given(config: Config, given: Iterable[os.PathLike[str] | str], folder: os.PathLike[str] | str) -> tuple[str, ...]:
    """The Python files to import for the configuration of a run folder: those `given`, or those that it names where this process
    has imported them before.

    Raises `ImportsNotGiven` if it needs other code than that. A file given stands for any file of the run, so that a run whose
    files have moved can be used.
    """
    names = [str(path) for path in given]
    files = tuple(name for name in names if name not in needed_code(config) or name in config.imports)
    unknown = [path for path in config.imports if not files and Path(path).resolve() not in imported()]
    unknown += [name for name in needed_code(config)[len(config.imports) :] if name not in names and name not in sys.modules]
    if unknown:
        raise ImportsNotGiven(folder, unknown)
    return tuple(str(Path(path).resolve()) for path in files) or config.imports
