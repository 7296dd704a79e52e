"""The package alone: what it imports, and which level of processors it uses."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace_atari
from headrace_atari import processor_levels

PACKAGE = Path(headrace_atari.__file__).parent
ON_A_GPU = {"kernels", "device"}
LEVELS = frozenset(processor_levels.LEVELS)


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def test_nothing_of_headrace_and_torch_only_on_a_gpu() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 10
    for path in files:
        modules = [name.split(".") for node in ast.walk(ast.parse(path.read_text())) for name in imported(node)]
        assert not [name for name in modules if name[0] == "headrace"], path
        assert path.stem in ON_A_GPU or not [name for name in modules if name[0] == "torch"], path
        if path.stem not in ON_A_GPU | {"vector"}:
            assert not [name for name in modules if name[-1] in ON_A_GPU], path


def test_consoles_of_the_cpu_import_no_torch() -> None:
    program = (
        "import sys, gymnasium, headrace_atari\n"
        "envs = gymnasium.make_vec('headrace/Pong-v5', num_envs=2)\n"
        "envs.reset(seed=0)\n"
        "envs.step(envs.action_space.sample())\n"
        "one = gymnasium.make('headrace/Pong-v5')\n"
        "one.reset(seed=0)\n"
        "print(sorted({'torch', 'headrace', 'cv2'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    assert headrace_atari.__all__ == sorted(headrace_atari.__all__)
    assert all(hasattr(headrace_atari, name) for name in headrace_atari.__all__)


def test_the_highest_level_is_used_that_the_processor_has_all_of() -> None:
    choose_level = processor_levels.choose_level
    v2, v3, v4 = (processor_levels.LEVELS[f"x86_64_v{i}"] for i in (2, 3, 4))
    assert v2 < v3 < v4
    assert choose_level(LEVELS, v4 | {"more"}) == "x86_64_v4"
    assert choose_level(LEVELS, v4 - {"avx512vbmi"}) == "x86_64_v3"
    assert choose_level(LEVELS, v3 - {"fma"}) == "x86_64_v2"
    assert choose_level(LEVELS - {"x86_64_v4"}, v4) == "x86_64_v3"
    assert choose_level(LEVELS, v4, wanted="x86_64_v2") == "x86_64_v2"
    with pytest.raises(ImportError, match="popcnt is missing"):
        choose_level(LEVELS, v2 - {"popcnt"})
    with pytest.raises(ImportError, match="HEADRACE_PROCESSOR is 'pentium'; this installation has x86_64_v2,"):
        choose_level(LEVELS, v4, wanted="pentium")


def test_the_folder_of_the_level_is_searched_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = [str(tmp_path)]
    assert headrace_atari.use_processor_level(path) is None
    assert path == [str(tmp_path)]
    (tmp_path / "x86_64_v2").mkdir()
    monkeypatch.setenv(processor_levels.VARIABLE, "x86_64_v2")
    assert headrace_atari.use_processor_level(path) == "x86_64_v2"
    assert path == [str(tmp_path), str(tmp_path / "x86_64_v2")]
