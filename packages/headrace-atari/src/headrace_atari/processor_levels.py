"""Which native modules of a wheel a processor can use.

Built from source, native modules are for the processor of that machine. A wheel has them once for each level of x86-64
processors, in folders beside each other, of which the highest that this processor has is used. Their results are the same bits
unless the module says otherwise.
"""

from __future__ import annotations

import os
from pathlib import Path

_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vbmi"}
LEVELS = {"x86_64_v4": _V4, "x86_64_v3": _V3, "x86_64_v2": _V2}
"""What a processor must have for each level, by the names of /proc/cpuinfo. The highest level comes first."""
VARIABLE = "HEADRACE_PROCESSOR"
"""Environment variable that names a level to use instead, for comparisons."""


def use_processor_level(package_path: list[str]) -> str | None:
    """Make the modules of the highest level importable that this processor has.

    Args:
        package_path: The `__path__` of the package of native modules; the level's folder is appended to it.

    Returns:
        The level in use. None: the modules were built from source, for this machine.

    Raises:
        ImportError: if the processor has none of the levels, or the variable `HEADRACE_PROCESSOR` names one that is not there.
    """
    folder = Path(package_path[0])
    present = frozenset(level for level in LEVELS if (folder / level).is_dir())
    if not present:
        return None
    level = choose_level(present, processor_flags(), os.environ.get(VARIABLE))
    package_path.append(str(folder / level))
    return level


def choose_level(present: frozenset[str], flags: frozenset[str], wanted: str | None = None) -> str:
    """The level to use of those that are `present`, on a processor with these `flags`.

    Raises `ImportError` if the processor has none of them, or there is no level `wanted`.
    """
    if wanted:
        if wanted not in present:
            raise ImportError(f"{VARIABLE} is {wanted!r}; this installation has {', '.join(sorted(present))}")
        return wanted
    for level, needed in LEVELS.items():
        if level in present and needed <= flags:
            return level
    missing = ", ".join(sorted(_V2 - flags))
    raise ImportError(f"this wheel needs a processor of level x86-64-v2 ({missing} is missing); build it from source")


def processor_flags() -> frozenset[str]:
    """What the first processor has. Empty where it does not say."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            return next((frozenset(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), frozenset())
    except OSError:
        return frozenset()
