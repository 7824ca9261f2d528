"""Which CPU the machine code is for, and the tile shape that suits it.

Facts only, from llvmlite alone: starting a program with a full kernel cache must not wait for numba.
How each instruction set is spoken is `quant.simd`.
"""

import os
import platform
from dataclasses import dataclass
from functools import cache

X86 = platform.machine().lower() in ("x86_64", "amd64")

# Names that NUMBA_CPU_NAME may give with NUMBA_CPU_FEATURES="": the instruction set that LLVM then has.
NAMED = {
    "haswell": "avx2",
    "x86-64-v3": "avx2",
    "icelake-client": "avx512vnni",
    "x86-64-v4": "avx512",
    "x86-64-v2": "generic",
    "generic": "generic",
}


@dataclass(frozen=True, slots=True)
class Target:
    """An instruction set, and what its registers hold: the tile of the matrix kernels, `rows` of weights by `tokens`,
    and how many sums of sixteen floats attention keeps at a time."""

    isa: str
    rows: int
    tokens: int
    sums: int

    @property
    def fused(self) -> bool:
        """Whether a multiplication and an addition are one instruction; else LLVM would call a slow function."""
        return self.isa != "generic" or not X86


TARGETS = {
    "avx512vnni": Target("avx512vnni", rows=16, tokens=12, sums=24),
    "avx512": Target("avx512", rows=16, tokens=6, sums=24),
    "avx2": Target("avx2", rows=8, tokens=4, sums=6),
    "generic": Target("generic", rows=8, tokens=4, sums=6),
}


@cache
def host_features() -> dict[str, bool]:
    """LLVM's names of the host's features, e.g. {"avx2": True}; empty where LLVM cannot tell."""
    import llvmlite.binding as llvm

    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:
        return {}


@cache
def target() -> Target:
    """The target that numba compiles for: the host, or what NUMBA_CPU_NAME and NUMBA_CPU_FEATURES select."""
    name = os.environ.get("NUMBA_CPU_NAME")
    if name and name != "host":
        return TARGETS[NAMED.get(name, "generic")]
    features = host_features()
    if not X86:
        return TARGETS["generic"]
    if all(features.get(need) for need in ("avx512f", "avx512bw", "avx512vl")):
        return TARGETS["avx512vnni" if features.get("avx512vnni") else "avx512"]
    if all(features.get(need) for need in ("avx2", "fma", "f16c")):
        return TARGETS["avx2"]
    return TARGETS["generic"]


def identity() -> str:
    """Everything about the CPU that machine code depends on, as one string."""
    import llvmlite.binding as llvm

    features = ",".join(sorted(name for name, has in host_features().items() if has))
    chosen = [os.environ.get(variable, "") for variable in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")]
    return "|".join([platform.machine(), llvm.get_host_cpu_name(), features, *chosen])
