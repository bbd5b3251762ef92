"""Whether this machine computes in bfloat16 or imitates it, which is ten times slower than float32."""

import re
from pathlib import Path

_INSTRUCTIONS = re.compile(r"^flags\s*:.*\b(avx512_bf16|amx_bf16)\b", re.MULTILINE)


def native_bf16(cpuinfo: Path = Path("/proc/cpuinfo"), gpu: Path = Path("/dev/nvidiactl")) -> bool:
    """True on a machine with an NVIDIA GPU, and on a CPU that has AVX-512 BF16 or AMX."""
    return gpu.exists() or (cpuinfo.exists() and _INSTRUCTIONS.search(cpuinfo.read_text()) is not None)
