"""Which CPU the machine code is for, and the tile shapes that suit it.

LLVM itself is asked: it compiles a few lines for that CPU, and the instructions that it picks tell the instruction set.
So nothing is emitted later that it cannot encode, which would end the process, and no list of CPU names ages.
Facts only, from llvmlite alone: starting a program with a full kernel cache must not wait for numba.
How each instruction set is spoken is `quant.jit.simd`.
"""

import os
import re
from dataclasses import dataclass, replace
from functools import cache

# One function for each thing that instruction sets differ in: registers, the integer dot product, bfloat16, half
# precision and fma, tables of bytes.
PROBE = """
define <64 x i8> @registers(<64 x i8> %a, <64 x i8> %b) {
  %c = add <64 x i8> %a, %b
  ret <64 x i8> %c
}
define i32 @unsigned_by_signed(<16 x i8> %a, <16 x i8> %b) {
  %c = zext <16 x i8> %a to <16 x i32>
  %d = sext <16 x i8> %b to <16 x i32>
  %e = mul <16 x i32> %c, %d
  %f = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %e)
  ret i32 %f
}
define i32 @signed_by_signed(<16 x i8> %a, <16 x i8> %b) {
  %c = sext <16 x i8> %a to <16 x i32>
  %d = sext <16 x i8> %b to <16 x i32>
  %e = mul <16 x i32> %c, %d
  %f = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %e)
  ret i32 %f
}
define <16 x bfloat> @bfloats(<16 x float> %a) {
  %b = fptrunc <16 x float> %a to <16 x bfloat>
  ret <16 x bfloat> %b
}
define <8 x float> @floats(<8 x half> %a, <8 x float> %b) {
  %c = fpext <8 x half> %a to <8 x float>
  %d = call <8 x float> @llvm.fma.v8f32(<8 x float> %c, <8 x float> %b, <8 x float> %b)
  ret <8 x float> %d
}
define <64 x i8> @table(<64 x i8> %a, <64 x i8> %b) {
  %c = shufflevector <64 x i8> %a, <64 x i8> %b, <64 x i32> <SCATTERED>
  ret <64 x i8> %c
}
""".replace("SCATTERED", ", ".join(f"i32 {37 * lane % 128}" for lane in range(64)))

# Client chips with a single 512-bit port: two products of 256 bits a cycle do as much, without slowing the clock. They
# know no bfloat16: what has it and such a name is a server whose model a virtual machine hides.
ONE_WIDE_PORT = {"icelake-client", "tigerlake", "rocketlake"}


@dataclass(frozen=True, slots=True)
class Target:
    """An instruction set, and what its registers hold: the tile of the matrix kernels, `rows` of weights by `tokens`,
    and how many sums of sixteen floats attention keeps at a time. Neighbours in a tile are the `depth` columns of a row
    or a token that one instruction adds up."""

    isa: str
    rows: int
    tokens: int
    sums: int
    depth: int = 4
    bfloats: bool = False  # whether two products of bfloat16 and their sum are one instruction
    looks_bytes_up: bool = False  # in tables of 128, 64 at a time
    far_sighted: bool = False  # whether its own prefetching of memory leaves little to ask for

    @property
    def takes_any_byte(self) -> bool:
        """Whether the instruction for dot products takes any unsigned byte, times a signed one, exactly."""
        return self.isa in ("avx512vnni", "vnni256", "neon-i8mm")

    @property
    def follows_pages(self) -> bool:
        """Whether its own prefetching is Intel's, which follows what is read of each of some pages."""
        return not self.far_sighted and self.isa in ("avx512vnni", "vnni256", "avx512", "avx2")

    @property
    def fused(self) -> bool:
        """Whether a multiplication and an addition are one instruction; else LLVM would call a slow function."""
        return self.isa != "generic"


# What LLVM calls those whose own prefetching was measured to do nearly all that asking ahead can: AMD's since Zen 4. An
# Intel server answers up to 1.8 times as fast when it is asked always.
FAR_SIGHTED = r"znver[4-9]"

# Each with the instructions that it is known by; the first that has them all is taken.
KNOWN_BY = [
    (Target("avx512vnni", rows=16, tokens=12, sums=24), [r"vpaddb.*%zmm", "vpdpbusd"]),
    (Target("vnni256", rows=16, tokens=6, sums=6), ["vpdpbusd"]),
    (Target("avx512", rows=16, tokens=6, sums=24), [r"vpaddb.*%zmm"]),
    (Target("avx2", rows=8, tokens=4, sums=6), [r"vpaddb.*%ymm", "vcvtph2ps", "vfmadd"]),
    (Target("neon-i8mm", rows=8, tokens=12, sums=6, depth=8), ["usdot"]),
    (Target("neon-dotprod", rows=8, tokens=12, sums=6), ["sdot"]),
    (Target("neon", rows=8, tokens=4, sums=6), ["fcvtl", "fmla"]),
    (Target("generic", rows=8, tokens=4, sums=6), []),
]
BFLOATS = r"vcvtneps2bf16.*%zmm"  # comes with vdpbf16ps, which LLVM does not pick by itself
TABLES = r"vperm[it]2b.*%zmm"


def selected() -> tuple[str, str]:
    """The CPU and its features as LLVM writes them, "znver4" and "+avx2,...": the host's, or what the environment
    variables NUMBA_CPU_NAME and NUMBA_CPU_FEATURES say. `quant.jit.vectors` has numba compile for just that."""
    import llvmlite.binding as llvm

    name, features = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        features = "" if name == "generic" else host_features()
    return name or llvm.get_host_cpu_name(), features


def host_features() -> str:
    """What the host has and lacks: "+avx2,-avx512f"; nothing where LLVM cannot tell, as on macOS."""
    import llvmlite.binding as llvm

    try:
        return str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:
        return ""


def assembly(name: str, features: str) -> str:
    """What LLVM makes of the probe for a CPU."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    if triple.startswith("x86_64"):
        features = f"{features},+64bit".lstrip(",")  # a name that LLVM does not know would else end the process
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{PROBE}')
    machine = llvm.Target.from_triple(triple).create_target_machine(name, features, opt=1)
    return str(machine.emit_assembly(module))


@cache
def target() -> Target:
    """The target that numba compiles for."""
    name, features = selected()
    code = assembly(name, features)
    found = next(row for row, signs in KNOWN_BY if all(re.search(sign, code) for sign in signs))
    bfloats, looks_bytes_up = bool(re.search(BFLOATS, code)), bool(re.search(TABLES, code))
    if found.isa == "avx512vnni" and name in ONE_WIDE_PORT and not bfloats:
        return Target("vnni256", rows=16, tokens=12, sums=24)
    far_sighted = bool(re.match(FAR_SIGHTED, name))
    return replace(found, bfloats=bfloats, looks_bytes_up=looks_bytes_up, far_sighted=far_sighted)


def identity() -> str:
    """Everything about the CPU that machine code depends on, as one string."""
    import llvmlite.binding as llvm

    return "|".join([llvm.get_process_triple(), *selected()])
