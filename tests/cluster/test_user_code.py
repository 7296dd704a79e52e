"""Code of the user that is sent to nodes: which, how it is named there, and which package is missing."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import version
from pathlib import Path

import gymnasium
import pytest

from headrace.cluster import user_code
from headrace.cluster.user_code import missing_package, pack, parts, unpack
from headrace.config import Config, ConfigError
from headrace.envs.core import imports
from headrace.envs.core.imports import import_files
from headrace.make_config import make_config, to_train


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(imports, "_imported", {})


def test_a_file_its_imported_siblings_and_a_package_arrive(tmp_path: Path) -> None:
    (tmp_path / "whole_package" / "data").mkdir(parents=True)
    (tmp_path / "whole_package" / "__init__.py").write_text("")
    (tmp_path / "whole_package" / "data" / "map.bin").write_bytes(bytes(range(256)))
    (tmp_path / "world_of_code.py").write_text("import sibling_of_code, whole_package, numpy\n")
    (tmp_path / "sibling_of_code.py").write_text("A = 1\n")
    (tmp_path / "other.py").write_text("raise AssertionError('nobody imports it')\n")
    config = Config(imports=(str(tmp_path / "world_of_code.py"),))
    import_files(config.imports)
    packed = pack(config)
    assert b"".join(parts(packed)) == packed
    found = unpack(packed, config)
    (file,) = map(Path, found.imports)
    assert file.name == "world_of_code.py"
    assert file.parent != tmp_path
    names = {str(path.relative_to(file.parent)) for path in file.parent.rglob("*") if path.is_file()}
    assert names == {"world_of_code.py", "sibling_of_code.py", "whole_package/__init__.py", "whole_package/data/map.bin"}
    assert (file.parent / "whole_package/data/map.bin").read_bytes() == bytes(range(256))
    assert unpack(packed, config).imports == found.imports != config.imports  # a node that joins again imports nothing twice


def test_a_module_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_by_name.py").write_text("A = 1\n")
    monkeypatch.chdir(tmp_path)
    config = Config(imports=("module_by_name",))
    import_files(config.imports)
    packed = pack(config)
    sys.modules.pop("module_by_name")
    sys.path[:] = [path for path in sys.path if Path(path) != tmp_path and path]
    assert unpack(packed, config).imports == config.imports
    found = importlib.import_module("module_by_name")
    assert tmp_path not in Path(found.__file__ or "").parents


def test_a_file_that_is_named_relative_to_the_working_directory_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    (here / "relative_world.py").write_text("A = 1\n")
    monkeypatch.chdir(here)
    config = to_train(make_config("gym/CartPole-v1", imports=["relative_world.py", "gymnasium"]))
    packed = pack(config)
    monkeypatch.chdir(there)  # as on a node
    found = unpack(packed, config)
    import_files(found.imports)
    file, module = found.imports
    assert (Path(file).name, module) == ("relative_world.py", "gymnasium")
    assert here not in Path(file).parents


def test_a_package_without_init_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare_package").mkdir()
    (tmp_path / "bare_package" / "worlds.py").write_text("A = 1\n")
    monkeypatch.chdir(tmp_path)
    config = Config(imports=("bare_package.worlds",))
    import_files(config.imports)
    packed = pack(config)
    for name in ("bare_package", "bare_package.worlds"):
        sys.modules.pop(name)
    sys.path[:] = [path for path in sys.path if Path(path) != tmp_path and path]
    assert unpack(packed, config).imports == config.imports
    found = importlib.import_module("bare_package.worlds")
    assert tmp_path not in Path(found.__file__ or "").parents


def test_a_file_whose_time_a_zip_file_cannot_have_arrives(tmp_path: Path) -> None:
    (tmp_path / "of_no_time.py").write_text("A = 1\n")
    os.utime(tmp_path / "of_no_time.py", (0, 0))  # as in images of containers that are built reproducibly
    config = Config(imports=(str(tmp_path / "of_no_time.py"),))
    assert Path(unpack(pack(config), config).imports[0]).read_text() == "A = 1\n"


def test_what_is_installed_is_not_sent() -> None:
    assert pack(Config()) == b""
    assert pack(Config(imports=("gymnasium", gymnasium.__file__, "json", "headrace.envs"))) == b""


def test_what_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large.py").write_text("#" * 2000)
    monkeypatch.setattr(user_code, "LARGEST", 1000)
    with pytest.raises(ConfigError, match=r"large\.py and other code of --import are larger than"):
        pack(Config(imports=(str(tmp_path / "large.py"),)))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("ModuleNotFoundError: No module named 'gymnasium.envs'", 'gymnasium is not installed there: pip install "gymnasium=='),
        ("No module named 'headrace'", f'pip install "headrace=={version("headrace")}" (as on this machine)'),
        ("No module named 'nobody_has_it'", "pip install nobody_has_it (if a package of that name has it)"),
    ],
)
def test_the_package_that_is_missing_is_named(error: str, words: str) -> None:
    assert words in missing_package(f"a traceback\n{error}\nmore")
    assert missing_package("another error") == ""
