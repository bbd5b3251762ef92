"""Which precision a machine is good at."""

from pathlib import Path

import pytest
from leyden.infra.bf16 import native_bf16


@pytest.mark.parametrize(
    ("flags", "native"),
    [("sse avx2 sha_ni", False), ("avx512f avx512_bf16", True), ("amx_bf16 amx_tile", True), ("avx512f", False)],
)
def test_only_a_cpu_with_the_instructions_computes_in_bf16(tmp_path: Path, flags: str, native: bool) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nmodel name\t: some CPU with avx512_bf16 in its name\nflags\t\t: {flags}\n")
    assert native_bf16(cpuinfo, gpu=tmp_path / "none") is native


def test_a_machine_with_a_gpu_computes_in_bf16(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert native_bf16(tmp_path / "none", gpu=tmp_path / "nvidiactl")
    assert not native_bf16(tmp_path / "none", gpu=tmp_path / "other")
