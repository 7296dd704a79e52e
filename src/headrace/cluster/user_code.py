"""The user's code on its way to nodes that an engine starts elsewhere: files and packages of `--import` and of environments' ids.

It goes over the membership stream, behind the run's token. Ray's runtime environments would want `ray[default]` on every machine,
and code would depend on the engine. A node that a person has started runs its own files, and none of the network's.
"""

from __future__ import annotations

import functools
import importlib.metadata
import io
import json
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import util
from pathlib import Path

from headrace.config import Config, ConfigError
from headrace.envs.core.imports import absolute, needed_code

LARGEST = 64 << 20  # most bytes of code and of what is in its packages' folders
PART = 8 << 20  # bytes of a message
_NAMES = "names.json"


def pack(config: Config) -> bytes:
    """What the run's imports need that is not installed, as a zip file; b"" if that is nothing. A package is sent as its whole
    folder, a file with those modules beside it that this process has imported.

    Raises `ConfigError` if it is too large.
    """
    names: dict[str, str] = {}
    folders: dict[Path, int] = {}
    units: dict[Path, None] = {}
    for name in map(absolute, needed_code(config)):
        unit = Path(name) if os.sep in name else _unit_of(name)
        if unit is None or _is_installed(unit):
            continue
        number = folders.setdefault(unit.parent, len(folders))
        if os.sep in name:
            names[name] = f"{number}/{unit.name}"
        units |= dict.fromkeys([unit, *_imported_in(unit.parent)])
    if not units:
        return b""
    packed, size = io.BytesIO(), 0
    # Not strict: a file may be older than what a zip file can say (1980).
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        archive.writestr(_NAMES, json.dumps(names))
        for unit in units:
            for file in _files(unit):
                size += file.stat().st_size
                if size > LARGEST:
                    raise ConfigError(
                        f"{unit} and other code of --import are larger than {LARGEST >> 20} MiB, and are not sent to the nodes: "
                        "install the package on every machine, or keep data elsewhere"
                    )
                archive.write(file, f"{folders[unit.parent]}/{file.relative_to(unit.parent)}")
    return packed.getvalue()


def unpack(packed: bytes, config: Config) -> Config:
    """Write what `pack` gave to a folder that ends with this process; `config` with the imports as they are named there."""
    folder, names = _folder(packed), names_in(packed)
    imports = [str(folder / names[path]) if (path := absolute(name)) in names else name for name in config.imports]
    return replace(config, imports=tuple(imports))


@functools.cache
def _folder(packed: bytes) -> Path:
    """Where the code is; a node that joins again with the same code has it, and has imported it, already."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-code-", dir=util.get_temp_dir()))
    sys.path += extract(packed, folder)  # for modules; child processes get it too
    return folder


def extract(packed: bytes, folder: Path) -> list[str]:
    """Write what `pack` gave to a folder; those folders in it in which Python is to look for modules."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(folder)
    return [str(path) for path in sorted(folder.iterdir()) if path.is_dir()]


def names_in(packed: bytes) -> dict[str, str]:
    """By the absolute path of each file of the imports, its path in the folder that `extract` writes to."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        names: dict[str, str] = json.loads(archive.read(_NAMES))
    return names


def parts(packed: bytes) -> list[bytes]:
    """Messages that `packed` is sent as."""
    return [packed[i : i + PART] for i in range(0, len(packed), PART)]


def missing_package(error: str) -> str:
    """For an error of a node in which Python has found no module: the command that installs it there, as a line; else ""."""
    found = re.search(r"No module named '([\w.]+)'", error)
    if found is None:
        return ""
    module = found[1].partition(".")[0]
    package = next(iter(importlib.metadata.packages_distributions().get(module, ())), module)
    try:
        how = f'pip install "{package}=={importlib.metadata.version(package)}" (as on this machine)'
    except importlib.metadata.PackageNotFoundError:
        how = f"pip install {package} (if a package of that name has it)"
    return f"\nThe module {module} is not installed there: {how}"


def _unit_of(module: str) -> Path | None:
    """The file or the folder of the outermost package of a module that this process has imported; None if it has none."""
    found = sys.modules.get(module.partition(".")[0])
    file = getattr(found, "__file__", None)
    if file is None:  # a package without __init__.py, or a module that is no file
        folders = list(getattr(found, "__path__", ()))
        return Path(folders[0]).resolve() if len(folders) == 1 else None
    path = Path(file).resolve()
    return path.parent if path.name == "__init__.py" else path


def _is_installed(unit: Path) -> bool:
    """Whether it came with Python or pip."""
    by_pip = any(part in ("site-packages", "dist-packages") for part in unit.parts)
    return by_pip or Path(os.__file__).parent in unit.parents or unit == _unit_of("headrace")


def _imported_in(folder: Path) -> Iterator[Path]:
    """Modules and packages directly in a folder that this process has imported."""
    for name in list(sys.modules):
        if "." not in name and (unit := _unit_of(name)) is not None and unit.parent == folder and not _is_installed(unit):
            yield unit


def _files(unit: Path) -> Iterator[Path]:
    """A file, or all files below a package's folder but compiled ones."""
    if unit.is_file():
        yield unit
        return
    for folder, folders, files in os.walk(unit):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if Path(folder, name).is_file())
