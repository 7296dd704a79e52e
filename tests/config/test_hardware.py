"""What is known of processors."""

import pytest

from headrace.config.hardware import cpu_has_fast_bf16


@pytest.mark.parametrize(
    ("vendor", "flags", "fast"),
    [
        ("AuthenticAMD", "avx512f avx512_bf16 avx512_vnni", True),
        ("AuthenticAMD", "avx2 avx512f", False),
        ("GenuineIntel", "avx512f avx512_bf16 amx_bf16 amx_tile", True),
        ("GenuineIntel", "avx512f avx512_bf16 avx512_fp16 avx_vnni", False),
        ("", "asimd bf16 i8mm", True),
        ("", "asimd", False),
    ],
)
def test_bf16_is_used_where_it_is_faster(vendor: str, flags: str, fast: bool) -> None:
    assert cpu_has_fast_bf16(f"vendor_id\t: {vendor}\nflags\t\t: fpu {flags} sse\n") is fast
