"""Runs the kernel tests in a process for every other instruction set that this CPU supports.

`test_arm64` runs 64-bit ARM under emulation.
"""

import os
import platform
import re
import subprocess
import sys

import llvmlite.binding as llvm
import pytest
from locations import CHECKOUT, PYTHONPATH

from quant.jit import cpu

NEEDS = {
    "icelake-client": ("avx512vnni", "avx512vl"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512vl"),
    "haswell": ("avx2", "fma", "f16c"),
    "x86-64-v2": ("sse4.2",),
}

# These formats cover what formats need of an instruction set: half precision, codes of 4, 6 and 8 bits, groups of 16,
# blocks of 32, a table lookup, base 3.
FORMATS = ("F16", "Q4_K", "Q6_K", "Q8_0", "IQ4_NL", "TQ1_0")
# With activations of 15 bits, one format of each layout of activations: floats, groups of 32 and of 16.
IN_HIGH_PRECISION = ("F16", "Q4_K", "Q6_K")
TESTS = "any_bytes or integers or alone"


@pytest.mark.parametrize("name", NEEDS)
def test_kernels_on_instruction_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [feature for feature in NEEDS[name] if f"+{feature}" not in cpu.host_features().split(",")]
    if missing:
        pytest.skip(f"this CPU has no {', '.join(missing)}")
    own = cpu.target()
    monkeypatch.setenv("NUMBA_CPU_NAME", name)
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "")
    if cpu.make_record().target == own:
        pytest.skip("the tests of this process run with the same instructions")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    files = ["tests/quant/jit/test_simd.py", "tests/quant/matmul/test_kernels.py"]
    formats, high = (
        " or ".join(f"[{each} or -{each}" for each in names)  # the whole name: not BF16 and IQ4_K
        for names in (FORMATS, IN_HIGH_PRECISION)
    )
    chosen = f"test_simd or ({TESTS}) and (({formats}) and not [high or {high})"
    command = [sys.executable, "-m", "pytest", "-v", "-x", *files, "-k", chosen]
    result = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    for file in files:
        assert re.search(f"^{file}::.* PASSED", result.stdout, re.MULTILINE)


DARWIN = "arm64-apple-macosx"
LINUX = "x86_64-unknown-linux-gnu"


@pytest.mark.parametrize(
    ("triple", "name", "kind", "function", "instruction"),
    [
        (DARWIN, "apple-m1", "Q4_K", "matmul", "sdot"),
        (DARWIN, "apple-m2", "Q4_K", "matvec", "usdot"),
        (DARWIN, "apple-m2", "Q4_K", "matmul", "smmla"),
        (LINUX, "alderlake", "Q4_K", "matmul", "{vex}\tvpdpbusd"),
        (LINUX, "sapphirerapids", "BF16", "matmul", "vdpbf16ps"),
        (DARWIN, "apple-m2", "BF16", "matmul", "fmla"),
    ],
)
def test_cross_compiled_kernels_use_instruction(
    triple: str, name: str, kind: str, function: str, instruction: str
) -> None:
    where = os.pathsep.join(PYTHONPATH)
    environment = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": "", "PYTHONPATH": where}
    command = [sys.executable, str(CHECKOUT / "tests" / "harness" / "assembly.py"), triple, kind, function]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-1000:]
    assert result.stdout.count(f"\t{instruction}\t") >= 8
    assert triple == LINUX or not re.search(r"\b[wx]18\b", result.stdout), "a register of macOS"
    assert triple != LINUX or "\tandq\t$-64, %rsp" in result.stdout  # the stack is aligned for vectors


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86 CPUs")
@pytest.mark.parametrize("triple", [LINUX, "x86_64-pc-windows-msvc", "x86_64-apple-darwin24.1.0"])
@pytest.mark.parametrize(
    ("name", "isa", "has_bf16_dot", "has_byte_permute"),
    [
        ("znver4", "avx512vnni", True, True),
        ("sapphirerapids", "avx512vnni", True, True),
        ("znver3", "avx2", False, False),
        ("cascadelake", "avx512vnni", False, False),
        ("icelake-client", "vnni256", False, False),
        ("alderlake", "vnni256", False, False),
        ("sierraforest", "vnni256", False, False),  # converts to bfloat16, but has no dot product of it
        ("skylake-avx512", "avx512", False, False),
        ("haswell", "avx2", False, False),
        ("ivybridge", "generic", False, False),
        ("no-such-cpu", "generic", False, False),
    ],
)
def test_cpu_name_selects_instruction_set(
    monkeypatch: pytest.MonkeyPatch, triple: str, name: str, isa: str, has_bf16_dot: bool, has_byte_permute: bool
) -> None:
    monkeypatch.setattr(llvm, "get_process_triple", lambda: triple)
    monkeypatch.setenv("NUMBA_CPU_NAME", name)
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "")
    actual = cpu.make_record().target
    assert (actual.isa, actual.has_bf16_dot, actual.has_byte_permute) == (isa, has_bf16_dot, has_byte_permute)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86 CPUs")
@pytest.mark.parametrize(("features", "isa"), [("", "vnni256"), ("+avx512bf16", "avx512vnni")])
def test_server_cpu_with_client_name_is_detected(monkeypatch: pytest.MonkeyPatch, features: str, isa: str) -> None:
    """LLVM derives the name from the model number, which virtual machines may fake."""
    monkeypatch.setenv("NUMBA_CPU_NAME", "rocketlake")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", features)
    assert cpu.make_record().target.isa == isa


@pytest.mark.parametrize(
    ("text", "features"), [("", ""), (" ", ""), (",", ""), (" +avx2 , -fma,", "+avx2,-fma"), ("\t+avx2\n", "+avx2")]
)
def test_white_space_in_features_is_ignored(monkeypatch: pytest.MonkeyPatch, text: str, features: str) -> None:
    """LLVM aborts the process for an entry without a sign."""
    monkeypatch.setenv("NUMBA_CPU_FEATURES", text)
    assert cpu.make_record().features == features


@pytest.mark.parametrize("text", ["avx2", "+avx2,fma", "+", "+a b", "+é", "-avx2\0x"])
def test_malformed_features_are_rejected(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("os.environ", {"NUMBA_CPU_FEATURES": text})
    with pytest.raises(cpu.FeaturesError, match=r"^NUMBA_CPU_FEATURES: .* must be"):
        cpu.make_record()


def test_cpu_name_alone_keeps_host_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in numba, both variables are needed to change the instruction set."""
    monkeypatch.delenv("NUMBA_CPU_FEATURES", raising=False)
    monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    host = cpu.make_record()
    monkeypatch.setenv("NUMBA_CPU_NAME", "haswell")
    assert cpu.make_record()[:3] == (host.triple, "haswell", host.features)
