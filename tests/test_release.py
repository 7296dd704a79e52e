"""The script of `make release`: what it writes into the changelog and where a version is named."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

HEAD = "# Changelog\n\nHow it is written.\n\n## Unreleased\n"
OLDER = "## 0.1.0 - 2026-01-02\n\n### Added\n\n- The first version.\n"
ENTRIES = "### Added\n\n- A thing.\n\n### Fixed\n\n- A fault.\n"


def test_entries_move_into_a_section_of_the_version():
    for older in ("", OLDER):
        changelog = f"{HEAD}\n{ENTRIES}" + (f"\n{older}" if older else "")
        after = release.released(changelog, "0.2.0", "2026-03-04")
        assert after == f"{HEAD}\n## 0.2.0 - 2026-03-04\n\n{ENTRIES}" + (f"\n{older}" if older else "")
        assert release.released(after, "0.2.0", "2026-05-06") == after, "a second time changes nothing"


@pytest.mark.parametrize(
    ("changelog", "message"),
    [
        (f"{HEAD}\n{OLDER}", "nothing stands under Unreleased"),
        (HEAD, "nothing stands under Unreleased"),
        (f"{HEAD}\n{ENTRIES}\n{OLDER.replace('0.1.0', '0.2.0')}", "choose another version"),
        (OLDER, "no section Unreleased"),
    ],
)
def test_a_changelog_that_does_not_fit_is_refused(changelog, message):
    with pytest.raises(release.ReleaseError, match=message):
        release.released(changelog, "0.2.0", "2026-03-04")


@pytest.fixture
def checkout(tmp_path):
    """A copy of the files that name the version."""
    for name in ("pyproject.toml", "packages/headrace-atari/pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(f"{HEAD}\n{ENTRIES}")
    return tmp_path


def test_a_version_is_written_everywhere(checkout):
    assert release.prepare(checkout, "3.4.5", "2026-03-04") == "3.4.5"
    assert release.version_of(checkout) == "3.4.5"
    assert "version: 3.4.5\n" in (checkout / "CITATION.cff").read_text()
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    assert "headrace-atari~=3.4.0" in project["dependencies"]
    assert "## 3.4.5 - 2026-03-04" in (checkout / "CHANGELOG.md").read_text()


def test_what_is_refused_changes_nothing(checkout):
    before = {path: path.read_text() for path in checkout.rglob("*") if path.is_file()}
    with pytest.raises(release.ReleaseError, match="not a version"):
        release.prepare(checkout, "v3", "2026-03-04")
    (checkout / "CHANGELOG.md").write_text(HEAD)
    with pytest.raises(release.ReleaseError, match="nothing stands"):
        release.prepare(checkout, "3.4.5", "2026-03-04")
    (checkout / "CHANGELOG.md").write_text(f"{HEAD}\n{ENTRIES}")
    assert {path: path.read_text() for path in checkout.rglob("*") if path.is_file()} == before


def test_both_packages_have_the_version_and_fit_each_other():
    version = release.version_of(ROOT)
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    source = pyproject["tool"]["scikit-build"]["metadata"]["version"]
    assert re.search(source["regex"], (ROOT / source["input"]).read_text(), re.MULTILINE)["value"] == version
    (needed,) = (each for each in pyproject["project"]["dependencies"] if each.startswith("headrace-atari"))
    assert needed == f"headrace-atari~={'.'.join(version.split('.')[:2])}.0"
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_what_is_missing_is_named(tmp_path):
    version = release.version_of(ROOT)
    (tmp_path / f"headrace_atari-{version}-py3-none-any.whl").touch()
    (tmp_path / f"headrace_atari-{version}.tar.gz").touch()
    command = [sys.executable, ROOT / "tools" / "release.py", "check", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path} lacks the wheel or the source distribution of headrace-{version}\n"
