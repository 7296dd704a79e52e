"""Imports the user's Python files, which register environments, networks and algorithms, and checks which files may be imported.

config.json of a run folder lists the Python files that the run imports, and its environment's id may name a package
(``gym/package:Name-v0``). If this code ran without being asked for, a folder from somebody else could run anything on the user's
machine. So code that a run folder names runs only if the user names it, too.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from headrace.config import Config, ConfigError
from headrace.config.file_reading import shortened

_imported: dict[Path, None] = {}
"""The files that `import_files` has imported, in order (the keys)."""
_importing: list[Path] = []
"""The files that `import_files` is importing now: more than one if a file calls it, too."""


def import_files(paths: Iterable[str | Path]) -> None:
    """Import Python files, each once. Raises `ConfigError` for missing files, and whatever a file raises."""
    for path in map(Path, paths):
        if not os.path.isfile(path):
            raise ConfigError(f"--import {shortened(str(path))}: there is no such file")
        name = f"headrace_import_{path.resolve().as_posix().replace('/', '_').removesuffix('.py')}"
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"--import {path}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        _importing.append(path)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            _importing.pop()
        _imported[path.resolve()] = None


def imported() -> tuple[Path, ...]:
    """The files that `import_files` has imported in this process, in order."""
    return tuple(_imported)


def is_importing() -> bool:
    """Whether `import_files` is importing a file now; another process that imports the file registers the same."""
    return bool(_importing)


# -- files that a run folder names --------------------------------------------------------------------------------------


class ImportsNotGiven(ConfigError):
    """A run folder names code that the user has not named. `needed`: the files and packages to name."""

    def __init__(self, folder: os.PathLike[str] | str, code: list[str]) -> None:
        listed = "\n".join(f"  {name}" for name in code)
        super().__init__(
            f"the run in {folder} needs Python code that its config.json names:\n{listed}\n"
            "Code of a run folder runs only if you name it too: give --import with these names, in Python imports=[...]"
        )
        self.needed = code


def _packages(config: Config) -> list[str]:
    """Packages in the ids of a run's environments."""
    named = [task.removeprefix("gym/").partition(":") for task in config.tasks if task.startswith("gym/")]
    return list(dict.fromkeys(package for package, colon, _ in named if colon))


def needed_code(config: Config) -> tuple[str, ...]:
    """The files and packages that a run with this configuration imports."""
    return (*config.imports, *_packages(config))


def check_given(config: Config, given: Iterable[os.PathLike[str] | str], folder: os.PathLike[str] | str) -> tuple[str, ...]:
    """The Python files to import for the configuration of a run folder: those `given`, or else those that it names, if this
    process has already imported them.

    Raises `ImportsNotGiven` if the configuration needs other code. Any given file replaces all files that the configuration
    names, so that a run whose files have moved can be used.
    """
    names = [str(path) for path in given]
    files = tuple(name for name in names if name not in needed_code(config) or name in config.imports)
    unknown = [path for path in config.imports if not files and Path(path).resolve() not in imported()]
    unknown += [package for package in _packages(config) if package not in names and package not in sys.modules]
    if unknown:
        raise ImportsNotGiven(folder, unknown)
    return tuple(str(Path(path).resolve()) for path in files) or config.imports
