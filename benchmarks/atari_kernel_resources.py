"""What the Atari kernels take of a GPU: registers, spills, shared memory and code, as nvcc says. Needs no GPU.

    python benchmarks/atari_kernel_resources.py [--games pong ms_pacman] [--architectures sm_80 sm_90] [--docs]

Compiles the kernels with the interpreter, and with the compiled blocks of each game: some minutes of one core each and 2 GB of
memory, most of it in ptxas. What was compiled is kept in results/atari_kernel_resources.json under the hash of its source, so a
run that was stopped goes on with what is missing. `--docs` writes the table of everything that is there and current into
docs/atari-core.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import summary

import headrace_atari._native.atari as native
from headrace_atari.kernels import assemble
from headrace_atari.roms import load_game

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "atari_kernel_resources.json"
COLUMNS = (
    "kernel",
    "programs",
    "architecture",
    "registers",
    "stack, B",
    "spill stores, B",
    "spill loads, B",
    "shared, B",
    "KB of code",
)
ENTRY = re.compile(
    r"Compiling entry function '(\w+)' for '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers([^\n]*)",
    re.DOTALL,
)


def compile_for(source: str, architecture: str, folder: Path) -> tuple[str, Path, float]:
    """What ptxas prints, the file of machine code, and the seconds it took."""
    (folder / "kernels.cu").write_text(source)
    cubin = folder / "kernels.cubin"
    command = ["nvcc", "-std=c++20", "-fmad=false", f"-arch={architecture}", "-cubin", "-Xptxas", "-v", "-w"]
    began = perf_counter()
    done = subprocess.run([*command, str(folder / "kernels.cu"), "-o", str(cubin)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout + done.stderr, cubin, perf_counter() - began


def code_bytes(cubin: Path) -> dict[str, int]:
    """Bytes of machine code of each kernel and of all functions that it calls, by section, and of both together as `all`."""
    listed = subprocess.run(["readelf", "-SW", str(cubin)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"\.text\.(\S+)\s+PROGBITS\s+\S+\s+\S+\s+([0-9a-f]+)", listed)
    sizes = {name: int(size, 16) for name, size in found}
    return {**sizes, "all": sum(sizes.values())}


def rows_of(programs: str, source: str, architecture: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        printed, cubin, seconds = compile_for(source, architecture, Path(folder))
        sizes = code_bytes(cubin)
    rows = []
    for kernel, _, stack, stores, loads, registers, rest in ENTRY.findall(printed):
        shared = re.search(r"(\d+) bytes smem", rest)
        values = (kernel, programs, architecture, registers, stack, stores, loads, shared[1] if shared else "0")
        rows.append(dict(zip(COLUMNS, (*values, f"{sizes.get(kernel, 0) / 1024:.0f}"), strict=True)))
    print(f"{programs}, {architecture}: {len(rows)} kernels, {seconds:.0f} s", file=sys.stderr, flush=True)
    return rows


def kept() -> dict[str, Any]:
    """What was compiled before, by programs and architecture."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def compile_missing(sources: dict[str, str], architectures: list[str]) -> None:
    for architecture in architectures:
        for programs, source in sources.items():
            digest, name = digest_of(source), f"{programs}, {architecture}"
            if kept().get(name, {}).get("source") != digest:
                rows = rows_of(programs, source, architecture)
                summary.write(RESULTS, kept() | {name: {"source": digest, "rows": rows}})


def digest_of(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def current(sources: dict[str, str]) -> list[dict[str, Any]]:
    """Rows of these sources as they are now, in their order, for all architectures that there are."""
    found = sorted(kept().items(), key=lambda item: item[0].rpartition(" ")[2])
    digests = {programs: digest_of(source) for programs, source in sources.items()}
    return [
        row for programs, digest in digests.items() for name, entry in found
        if name.startswith(f"{programs}, ") and entry["source"] == digest for row in entry["rows"]
    ]  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    return "\n".join([*lines, *("| " + " | ".join(str(row[column]) for column in COLUMNS) + " |" for row in rows)])


def write_into_docs(name: str, text: str) -> None:
    """Replaces what stands between the two markers of this name in docs/atari-core.md."""
    page = ROOT / "docs" / "atari-core.md"
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="*", default=["pong", "ms_pacman"])
    parser.add_argument("--architectures", nargs="*", default=["sm_90", "sm_80", "sm_75"])
    parser.add_argument("--docs", action="store_true", help="write the table into docs/atari-core.md")
    args = parser.parse_args()
    if args.architectures and shutil.which("nvcc") is None:
        sys.exit("there is no nvcc here")
    sources = {"interpreter": assemble()}
    for game in args.games:
        sources[f"blocks of {game}"] = assemble(native.block_source(load_game(game)))
    compile_missing(sources, args.architectures)
    rows = current(sources)
    print(table(rows))
    if args.docs:
        write_into_docs("kernels", table(rows))


if __name__ == "__main__":
    main()
