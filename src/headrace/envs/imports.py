"""The user's Python files: importing them registers environments, networks and algorithms."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from headrace.config import ConfigError
from headrace.config.reading import shortened

_imported: dict[Path, None] = {}
"""The files that `import_files` has imported, in order (a dictionary for its unique keys)."""
_importing: list[Path] = []
"""The files that it is importing: more than one if a file calls `import_files`."""


def import_files(paths: Iterable[str | Path]) -> None:
    """Import Python files, each once: they register environments, networks and algorithms. Raises `ConfigError` for missing
    files, and whatever a file raises."""
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
    """Whether `import_files` is importing a file now, so that another process can have what is registered by importing it too."""
    return bool(_importing)
