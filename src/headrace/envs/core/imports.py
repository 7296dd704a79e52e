"""The user's code, which registers environments, networks and algorithms: which processes import it, and who may ask for it.

**Every process of a run imports it.** `--import` and `imports=[...]` name Python files and modules. What a script has imported
itself is found too: `source_here` names the code that registers an environment, and the run adds it to its imports.

**Only what the user names is run.** config.json of a run folder lists the code that the run imports, and its environment's id may
name a module (``gym/package:Name-v0``) or a function (``python/module:name``). If this code ran without being asked for, a folder
from somebody else could run anything on the user's machine; ``python/os:system`` needs not even an import.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from importlib.machinery import SOURCE_SUFFIXES
from operator import attrgetter
from pathlib import Path
from types import ModuleType

from headrace.config import Config, ConfigError
from headrace.config.file_reading import shortened
from headrace.processes.interrupt import deferred_interrupts

_imported: dict[str, None] = {}  # what `import_files` has imported, in order (the keys): absolute paths, and names of modules
_named: set[str] = set()  # ids of environments that the user has named in this process
_importing: list[str] = []  # what `import_files` is importing now: more than one if a file calls it, too


def import_files(names: Iterable[str | os.PathLike[str]]) -> None:
    """Import Python files and modules, each once. A file can import its siblings: its folder joins the end of `sys.path`.

    Raises `ConfigError` for what is not there, and whatever the code raises.
    """
    for name in map(absolute, names):
        if not _is_here(name):
            _importing.append(name)
            try:
                with deferred_interrupts():  # it may import torch
                    _import_file(Path(name)) if os.sep in name else import_module(name)
            finally:
                _importing.pop()
        _imported[name] = None


def listed(imports: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """The names in what a program gives as `imports`. Raises `ConfigError` for one name in the place of a list."""
    if isinstance(imports, str | os.PathLike):
        raise ConfigError(f"imports is {imports!r}; it must be a list of files and modules: [{str(imports)!r}]")
    return tuple(map(str, imports))


def absolute(name: str | os.PathLike[str]) -> str:
    """The name of a module as it is; the absolute path of a file."""
    text = str(name)
    is_module = all(part.isidentifier() for part in text.split(".")) and not text.endswith(tuple(SOURCE_SUFFIXES))
    return text if is_module else str(Path(text).resolve())


def import_module(name: str) -> None:
    """Import a module by its name, also from the working directory. Raises `ConfigError` if there is none."""
    _find_in(os.getcwd())
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there; one that it imports is not
        raise ConfigError(f"there is no module {name!r}, also not in the working directory {os.getcwd()}") from error


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"--import {shortened(str(path))}: there is no such file")
    if path.suffix not in SOURCE_SUFFIXES:
        raise ConfigError(f"--import {path}: not a Python file")
    _find_in(str(path.parent))
    spec = None
    if path.stem.isidentifier() and path.stem not in sys.modules:
        spec = importlib.util.find_spec(path.stem)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != path:  # the name means another module
        spec = importlib.util.spec_from_file_location(re.sub(r"\W", "_", f"headrace_import_{path}"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[spec.name]
        if isinstance(error, ImportError) and "relative import" in str(error):
            raise ConfigError(
                f"--import {path}: {error}. It belongs to a package: give its name there, such as "
                f"--import {path.parent.name}.{path.stem}, from the folder that holds the package"
            ) from error
        raise


def _find_in(folder: str) -> None:
    """Let modules be found in a folder, after all others: its files shadow nothing. Child processes get `sys.path` as it is."""
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()  # the files may have been written a moment ago


def _is_here(name: str) -> bool:
    """Whether this process has imported, in whatever way, the module or the file (an absolute path)."""
    if os.sep not in name:
        return name in sys.modules
    files = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    return any(os.path.basename(file) == os.path.basename(name) and os.path.realpath(file) == name for file in files)


def file_named(name: str) -> ModuleType | None:
    """What `import_files` has imported from the file NAME.py. For Python the name may mean another module, such as `test`."""
    files = [file for file in _imported if os.sep in file and Path(file).stem == name]
    modules = ((module, getattr(module, "__file__", None) or "") for module in list(sys.modules.values()))
    return next((module for module, at in modules if files and os.path.realpath(at) in files), None)


def imported() -> tuple[str, ...]:
    """What `import_files` has imported in this process, in order."""
    return tuple(_imported)


def is_importing() -> bool:
    return bool(_importing)


# -- where code is defined ----------------------------------------------------------------------------------------------


def source_here() -> str | None:
    """The file or module whose import leads to this call, as `import_files` takes it. None: no import repeats the call, since
    it comes from a notebook, interactive Python, a script without a guard, or a function that is called later."""
    frame = sys._getframe(1)
    while str(frame.f_globals.get("__name__")).startswith("headrace.envs.") and frame.f_back is not None:
        frame = frame.f_back
    caller = frame
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__"))
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    executed = name == "__main__" and frame is not caller  # a function that the script calls, perhaps behind its guard
    is_of_file = os.path.realpath(frame.f_code.co_filename) == os.path.realpath(file)
    return source_of(name) if is_of_file and not executed else None


def source_of(module: str) -> str | None:
    """What to import for the definitions of this module, as `import_files` takes it. None: no import gives them."""
    found = sys.modules.get(module)
    file, spec = getattr(found, "__file__", None), getattr(found, "__spec__", None)
    if file is None or (module == "__main__" and not _guarded(file)[0]):
        return None
    return spec.name if spec is not None and spec.parent else str(Path(file).resolve())


def script_that_registers() -> str | None:
    """The user's script, if it has a guard and calls a function `register` outside of it; None otherwise."""
    script = source_of("__main__")
    return script if script is not None and _guarded(sys.modules["__main__"].__file__)[1] else None


def _guarded(file: str | None) -> tuple[bool, bool]:
    """Whether a script has an ``if __name__ == "__main__"``, so that it can be imported, and whether it calls a function
    `register` outside of it."""
    try:
        body = ast.parse(Path(file or "").read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False, False
    guards = [part for part in body if isinstance(part, ast.If) and "__name__" in ast.unparse(part.test)]
    calls = [node.func for part in body if part not in guards for node in ast.walk(part) if isinstance(node, ast.Call)]
    return bool(guards), any(ast.unparse(function).rpartition(".")[2] == "register" for function in calls)


GUARD = """    if __name__ == "__main__":
        headrace.train(...)"""
CELL = """    %%writefile my_env.py    (the first line of the cell that defines it)
    import my_env            (before the training)"""


class NotCarried(ConfigError):
    """Only this process knows an environment; the message says why, and what to do."""

    def __init__(self, env_id: str) -> None:
        file = getattr(sys.modules["__main__"], "__file__", None) or ""
        if not os.path.isfile(file):  # "<stdin>"
            why = f"a notebook or interactive Python defines it. Write it to a file and import that:\n{CELL}"
        elif not _guarded(file)[0]:
            why = f"importing {file} would train again. Put the training behind a guard:\n{GUARD}"
        else:
            why = (
                "no import defines or registers it. Do that at the top level of a module, outside of functions and of\n"
                '`if __name__ == "__main__":`, and import this module'
            )
        super().__init__(
            f"the other processes of the run cannot make {env_id}: {why}\n"
            "With sampling.placement serial, which needs no other processes, it trains as it is"
        )


# -- files that a run folder or a policy's file names -------------------------------------------------------------------


class ImportsNotGiven(ConfigError):
    """What holds a run or a policy names code that the user has not named. `needed`: the files and modules to name."""

    def __init__(self, source: str, code: list[str]) -> None:
        listed = "\n".join(f"  {name}" for name in code)
        super().__init__(
            f"{source} needs Python code that it names:\n{listed}\n"
            "It runs only if you name it too: give --import with these names, or where the files are now; in Python imports=[...]"
        )
        self.needed = code


def module_in(env_id: str) -> str | None:
    """The module that an id names: ``gym/module:Name-v0``, ``python/module:Class``. None also for ``__main__``, which no
    process imports."""
    family, _, name = env_id.partition("/")
    module, colon, _ = name.partition(":")
    return module if colon and family in ("gym", "python") and module != "__main__" else None


def _stem(name: str) -> str:
    """The name that a file has as a module, of an absolute path; a module's own."""
    return Path(name).stem if os.sep in name else name


def needed_code(config: Config) -> tuple[str, ...]:
    """The files and modules that a run with this configuration imports."""
    named = [module for task in config.tasks if (module := module_in(task)) is not None]
    stems = {_stem(absolute(name)) for name in config.imports}
    return tuple(dict.fromkeys([*config.imports, *(name for name in named if name not in stems)]))


def name_environments(env_ids: Iterable[str]) -> None:
    """The user has named these environments in this process, so what their ids name may be imported and called."""
    _named.update(env_ids)


def _is_trusted(env_id: str) -> bool:
    """Whether this environment of a folder or a file may be made although its module is not given: the user has named it, or this
    process has imported the module. ``python/module:name`` must then be a class of environments, since a function could be any,
    such as `os.system`."""
    family, _, name = env_id.partition("/")
    module, _, path = name.partition(":")
    if env_id in _named or family != "python":
        return env_id in _named or module in sys.modules
    try:
        found = attrgetter(path)(sys.modules[module])
    except (KeyError, AttributeError):
        return False
    return isinstance(found, type) and hasattr(found, "reset") and hasattr(found, "step")


def check_given(config: Config, given: Iterable[os.PathLike[str] | str], source: os.PathLike[str] | str) -> tuple[str, ...]:
    """The code to import for the configuration in a run folder or a file, `source`: that `given`, or else that which it names, if
    this process has already imported it, see also `_is_trusted`.

    Raises `ImportsNotGiven` if the configuration needs other code. Any given file replaces all files that the configuration
    names, so that a run whose files have moved can be used.
    """
    names = [absolute(path) for path in listed(given)]
    of_ids = set(needed_code(config)) - set(config.imports)
    files = tuple(name for name in names if name not in of_ids)
    unknown = [name for name in config.imports if not files and not _is_here(absolute(name))]
    stems = {_stem(name) for name in (*names, *map(absolute, unknown))}
    asked = {module_in(task): None for task in config.tasks if not _is_trusted(task)}
    unknown += [module for module in asked if module is not None and module not in stems]
    if unknown:
        raise ImportsNotGiven(f"{os.fspath(source)} ({config.env:.100})", unknown)  # the id may name a function, too
    return files or config.imports
