"""headrace envs."""

from __future__ import annotations

import dataclasses
import fnmatch
import sys
from typing import Annotated

import tyro

from headrace.cli.options import Imports, parse
from headrace.config.errors import MissingExtra
from headrace.config.file_reading import shortened
from headrace.envs.core import registry
from headrace.envs.core.imports import import_files
from headrace.processes.output import show


@dataclasses.dataclass
class Envs:
    """List the environments."""

    pattern: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATTERN")] = ""
    """Show only ids that contain this text, or match it as a pattern with * and ?."""
    imports: Imports = ()
    """Python files to import first. They may register environments, which are listed then."""


def run(arguments: list[str]) -> int:
    """`headrace envs`. Exit code 1 if no id matches."""
    asked: Envs = parse(Envs, "envs", arguments)
    import_files(asked.imports)
    pattern = asked.pattern.lower()
    wanted = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    found = [name for name in registry.list_ids() if fnmatch.fnmatchcase(name.lower(), wanted)]
    if found:
        show("\n".join(found))
    else:
        print(f"headrace: no id matches {shortened(asked.pattern)!r}", file=sys.stderr)
    for family in registry.FAMILIES:
        if family not in pattern and not fnmatch.fnmatchcase(f"{family}/", wanted):
            continue  # nobody asked for its environments
        try:
            registry.list_ids(family)
        except MissingExtra as error:
            print(f"headrace: {error}", file=sys.stderr)
    return 0 if found else 1
