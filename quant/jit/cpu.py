"""The CPU to compile for: its instruction set, and the tile shapes that suit it.

LLVM compiles a small probe for the CPU, and the instructions that it selects identify the instruction set. This has two
advantages over a list of CPU names: no code is emitted later that LLVM cannot encode, which would abort the process,
and new CPUs need no update. The exception is SME2: the operating system is asked for it, because LLVM compiles it for
every 64-bit ARM CPU (`quant.jit.sme`).

What LLVM found out is recorded in a file (`quant.jit.cpu_record`), so that a warm start loads neither LLVM nor numba.
`quant.jit.simd` emits the code for each instruction set.
"""

import ctypes
import os
import platform
import re
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from quant.jit.cpu_record import read_or_make

# One function for each feature that differs between instruction sets: register width, the integer dot product,
# bfloat16, half precision and fma, byte permutation.
PROBE_IR = """
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

# Client CPUs with a single 512-bit port: two 256-bit products a cycle do the same work without lowering the clock. They
# lack bfloat16. A CPU with bfloat16 under such a name is a server CPU whose model a virtual machine hides.
SINGLE_512_BIT_PORT_CPUS = {"icelake-client", "tigerlake", "rocketlake"}


@dataclass(frozen=True, slots=True)
class Target:
    """An instruction set and the register tiles that suit it.

    `rows` by `tokens` is the register tile of the matrix kernels. `accumulators` is the number of vectors of sixteen
    floats that attention accumulates in at a time. `depth` is the number of columns that one dot product instruction
    adds up.
    """

    isa: str
    rows: int
    tokens: int
    accumulators: int
    depth: int = 4
    has_bf16_dot: bool = False  # one instruction computes two bfloat16 products and their sum
    has_byte_permute: bool = False  # one instruction looks 64 bytes up in a table of 128

    @property
    def spare_vectors(self) -> int:
        """The number of vectors of sixteen floats that registers hold beside the accumulators, which take three
        quarters of them.
        """
        return self.accumulators // 3

    @property
    def has_exact_u8_dot(self) -> bool:
        """Whether the dot product instruction is exact for all unsigned bytes (0 to 255) times signed bytes."""
        return self.isa in ("avx512vnni", "vnni256", "neon-sme", "neon-i8mm")

    @property
    def has_outer_products(self) -> bool:
        """Whether the CPU multiplies bytes as outer products, which need a mode of their own: see `quant.jit.sme`."""
        return self.isa == "neon-sme"

    @property
    def tokens_per_vector(self) -> int:
        """The number of tokens whose sums share a vector of a register tile.

        An instruction that multiplies two rows by two tokens leaves the sums of two tokens in turns.
        """
        return 2 if self.depth == 8 else 1

    @property
    def has_signed_dot(self) -> bool:
        """Whether a dot product instruction multiplies signed bytes by signed bytes."""
        return self.isa in ("neon-dotprod", "neon-i8mm", "neon-sme")

    @property
    def has_signed_panels(self) -> bool:
        """Whether the register tile multiplies signed codes: minus the zero point, which then needs no correction."""
        return self.isa in ("neon-dotprod", "neon-i8mm")

    @property
    def has_shift_insert(self) -> bool:
        """Whether instructions shift bytes and insert the result into other bytes (sli, sri)."""
        return self.isa.startswith("neon")

    @property
    def multiplies_row_pairs(self) -> bool:
        """Whether a token is multiplied by two rows at a time, which share loads of activations, and additions if
        registers hold 64 bytes.

        NEON registers are small, so that a superblock of activations takes sixteen loads. The sixteen registers of AVX2
        are too few for two rows.
        """
        return self.isa.startswith("neon") or self.has_512_bit_vectors

    @property
    def has_512_bit_vectors(self) -> bool:
        """Whether registers hold 64 bytes."""
        return self.isa in ("avx512vnni", "avx512")

    @property
    def has_fma(self) -> bool:
        """Whether the CPU has a fused multiply-add instruction. Without one, LLVM would call a slow function."""
        return self.isa != "generic"


# Each target with the instructions that identify it. The first target whose instructions all occur is selected.
TARGETS = [
    (Target("avx512vnni", rows=16, tokens=12, accumulators=24), [r"vpaddb.*%zmm", "vpdpbusd"]),
    (Target("vnni256", rows=16, tokens=6, accumulators=6), ["vpdpbusd"]),
    (Target("avx512", rows=16, tokens=6, accumulators=24), [r"vpaddb.*%zmm"]),
    (Target("avx2", rows=8, tokens=4, accumulators=6), [r"vpaddb.*%ymm", "vcvtph2ps", "vfmadd"]),
    (Target("neon-sme", rows=32, tokens=32, accumulators=6), ["usdot", "streaming vectors: 64 bytes"]),
    (Target("neon-i8mm", rows=8, tokens=12, accumulators=6, depth=8), ["usdot"]),
    (Target("neon-dotprod", rows=8, tokens=12, accumulators=6), ["sdot"]),
    (Target("neon", rows=8, tokens=4, accumulators=6), ["fcvtl", "fmla"]),
    (Target("generic", rows=8, tokens=4, accumulators=6), []),
]
# This conversion implies vdpbf16ps, which LLVM never selects by itself. Windows passes vectors in memory.
BF16_PATTERN = r"vcvtneps2bf16.*(%zmm|\(%\w+\), %ymm)"
BYTE_PERMUTE_PATTERN = r"vperm[it]2b.*%zmm"


class FeaturesError(ValueError):
    """The environment variable NUMBA_CPU_FEATURES is not a list of features."""


class CpuRecord(NamedTuple):
    """What LLVM finds out about a CPU: its target triple, its name and features as LLVM writes them ("znver4" and
    "+avx2,..."), and its target."""

    triple: str
    name: str
    features: str
    target: Target


@cache
def selected() -> CpuRecord:
    """Return the CPU to compile for.

    It is the host, unless the environment variables NUMBA_CPU_NAME and NUMBA_CPU_FEATURES are set.
    `quant.jit.vectors` makes numba compile for the same CPU.
    """
    if "NUMBA_CPU_NAME" in os.environ or "NUMBA_CPU_FEATURES" in os.environ:
        return make_record()
    dependencies = [Path(__file__).read_bytes(), str(host_streaming_bytes()).encode()]
    return read_or_make(dependencies, parse_record, lambda: as_json(make_record()))


def as_json(record: CpuRecord) -> dict[str, Any]:
    """Return a record as it is stored."""
    return {**record._asdict(), "target": asdict(record.target)}


def parse_record(found: Any) -> CpuRecord:
    """Parse a stored record. Raises KeyError or TypeError if it is damaged."""
    record = CpuRecord(**{**found, "target": Target(**found["target"])})
    example = CpuRecord("", "", "", TARGETS[0][0])
    pairs = [*zip(record, example, strict=True), *zip(astuple(record.target), astuple(example.target), strict=True)]
    if any(type(value) is not type(expected) for value, expected in pairs):
        raise TypeError("a value of the wrong type")
    return record


def make_record() -> CpuRecord:
    """Ask LLVM about the selected CPU."""
    import llvmlite.binding as llvm

    name, features = os.environ.get("NUMBA_CPU_NAME"), forced_features()
    if features is None:
        features = "" if name == "generic" else host_features()
    name = name or str(llvm.get_host_cpu_name())
    return CpuRecord(process_triple(), name, features, find_target(name, features))


def selected_cpu() -> tuple[str, str]:
    """Return the name and the features of the CPU to compile for, as LLVM writes them."""
    return selected().name, selected().features


def target() -> Target:
    """Return the target of the CPU to compile for."""
    return selected().target


def identity() -> str:
    """Return everything about the CPU that machine code depends on, as one string."""
    return "|".join([*selected()[:3], target().isa])


def forced_features() -> str | None:
    """Return the features in NUMBA_CPU_FEATURES without white space, or None if it is not set.

    Raises FeaturesError for what LLVM does not accept: it would abort the process.
    """
    text = os.environ.get("NUMBA_CPU_FEATURES")
    if text is None:
        return None
    features = [each.strip() for each in text.split(",") if each.strip()]
    for each in features:
        if not re.fullmatch(r"[+-][A-Za-z0-9_.-]+", each):
            raise FeaturesError(f"NUMBA_CPU_FEATURES: {each!r} must be + or - and the name of a feature")
    return ",".join(features)


def host_features() -> str:
    """Return the features of the host: "+avx2,-avx512f". Empty if LLVM cannot detect them, as on macOS."""
    import llvmlite.binding as llvm

    try:
        return str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:
        return ""


# The features that decide about instruction sets.
USED_FEATURES = (
    *("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw", "avx512vl", "avx512vbmi", "avx512vnni", "avx512bf16"),
    *("neon", "fp-armv8", "dotprod", "i8mm", "bf16", "sme", "sme2"),
)


def used_features() -> list[str]:
    """Return those of USED_FEATURES that LLVM detects on the host."""
    present = set(host_features().split(","))
    return [name for name in USED_FEATURES if f"+{name}" in present]


# Constants of Linux: a request to prctl and its result, and an entry of the auxiliary vector and a flag in it.
PR_SME_GET_VL, VECTOR_LENGTH_MASK, AT_HWCAP2, HWCAP2_SME2 = 64, 0xFFFF, 26, 1 << 37


def host_streaming_bytes() -> int:
    """Return the length of the host's vectors in streaming mode, according to the operating system. 0 without SME2."""
    if platform.machine() not in ("arm64", "aarch64"):
        return 0
    libc = ctypes.CDLL(None)
    if platform.system() == "Darwin":
        return system_number(libc, "sme_max_svl_b") if system_number(libc, "FEAT_SME2") else 0
    if platform.system() != "Linux":
        return 0
    libc.getauxval.restype, libc.getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    has_sme2 = libc.getauxval(AT_HWCAP2) & HWCAP2_SME2
    return libc.prctl(PR_SME_GET_VL, 0, 0, 0, 0) & VECTOR_LENGTH_MASK if has_sme2 else 0


def system_number(libc: ctypes.CDLL, name: str) -> int:
    """Return what macOS knows about a feature of the CPU: sysctl hw.optional.arm.NAME. 0 if it does not exist."""
    number, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    found = ctypes.byref(number), ctypes.byref(size)
    return 0 if libc.sysctlbyname(f"hw.optional.arm.{name}".encode(), *found, None, 0) else number.value


def streaming_bytes() -> int:
    """Return the length of vectors in streaming mode that code may use: the host's, unless NUMBA_CPU_FEATURES is set.

    SME2 must then be one of the features. Its vectors are assumed to have 64 bytes.
    """
    features = forced_features()
    if features is None:
        return host_streaming_bytes()
    return 64 if "+sme2" in features.split(",") else 0


def probe_assembly(name: str, features: str) -> str:
    """Return the assembly that LLVM generates from the probe for a CPU."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = process_triple()
    if triple.startswith("x86_64"):
        features = f"{features},+64bit".lstrip(",")  # else a CPU name unknown to LLVM would abort the process
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{PROBE_IR}')
    machine = llvm.Target.from_triple(triple).create_target_machine(name, features, opt=1)
    return str(machine.emit_assembly(module))


def find_target(name: str, features: str) -> Target:
    """Return the target of a CPU, according to the instructions that LLVM selects for it."""
    code = probe_assembly(name, features) + f"streaming vectors: {streaming_bytes()} bytes"
    matched = next(row for row, signs in TARGETS if all(re.search(sign, code) for sign in signs))
    has_bf16_dot, has_byte_permute = bool(re.search(BF16_PATTERN, code)), bool(re.search(BYTE_PERMUTE_PATTERN, code))
    if matched.isa == "avx512vnni" and name in SINGLE_512_BIT_PORT_CPUS and not has_bf16_dot:
        return Target("vnni256", rows=16, tokens=12, accumulators=24)
    return replace(matched, has_bf16_dot=has_bf16_dot, has_byte_permute=has_byte_permute)


def elf_triple() -> str:
    """Return the target triple of kernels: this system's calling convention, and ELF object files on every system.

    LLVM would otherwise write COFF on Windows and Mach-O on macOS. macOS has the calling convention of Linux, except
    for a register that belongs to the system: see `reserved_registers`.
    """
    triple = selected().triple
    if "apple" in triple:
        return f"{'x86_64' if triple.startswith('x86_64') else 'aarch64'}-unknown-linux-gnu"
    return f"{triple}-elf" if "windows" in triple and not triple.endswith("-elf") else triple


def reserved_registers() -> str:
    """Return the LLVM features that keep kernels from using registers of the system. macOS on arm64 reserves x18."""
    triple = selected().triple
    return "+reserve-x18" if "apple" in triple and not triple.startswith("x86_64") else ""


def process_triple() -> str:
    """Return LLVM's target triple of this process, such as arm64-apple-darwin24.1.0."""
    import llvmlite.binding as llvm

    return str(llvm.get_process_triple())
