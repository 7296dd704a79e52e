"""The machine code that the Atari translator's assembler writes, against the assembler and disassembler of GNU binutils."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[1] / "native"

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the assembler is for x86-64"),
    pytest.mark.skipif(not all(map(shutil.which, ("g++", "as", "objdump", "objcopy"))), reason="no g++ and binutils"),
]


def disassemble(code: Path) -> list[str]:
    """One line per instruction, without what two encodings of the same may differ in: a REX prefix that changes nothing, a
    displacement of 0."""
    command = ["objdump", "-D", "-b", "binary", "-m", "i386:x86-64", "-M", "intel", "--no-show-raw-insn", str(code)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    lines = re.findall(r"^ *[0-9a-f]+:\t(.*)$", listing, re.MULTILINE)
    return [re.sub(r"\s+", " ", line).strip().removeprefix("rex ").replace("+0x0]", "]") for line in lines]


def test_every_instruction(tmp_path: Path) -> None:
    """Every form with every pair of registers, and with 400 operands in memory."""
    program, code, expected = tmp_path / "program", tmp_path / "code.bin", tmp_path / "expected.txt"
    source = Path(__file__).parent / "assembler.cpp"
    subprocess.run(["g++", "-std=c++20", f"-I{NATIVE}", str(source), "-o", str(program)], check=True, timeout=120)
    subprocess.run([program, code, expected], check=True, timeout=60)
    wanted = [line.split(" ", 1) for line in expected.read_text().splitlines()]

    assembly, linked, reference = tmp_path / "expected.s", tmp_path / "expected.o", tmp_path / "expected.bin"
    assembly.write_text(".intel_syntax noprefix\n" + "".join(f"{line}\n" for kind, line in wanted if kind == "?"))
    subprocess.run(["as", "--64", str(assembly), "-o", str(linked)], check=True, timeout=60)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", str(linked), str(reference)], check=True, timeout=60)
    assembled = iter(disassemble(reference))
    assert disassemble(code) == [next(assembled) if kind == "?" else line for kind, line in wanted]
    assert len(wanted) > 20_000
