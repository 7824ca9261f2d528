"""llama.cpp's matrix product kernels for ARM, compiled by clang, and the loop of each that multiplies."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from assembly_loops import Loop, basic_blocks, find_loops, functions, iteration
from hot_loops import SUPERBLOCK, HotLoop, own_products
from llvm_mca import find_tool

SOURCES = ("arch/arm/quants.c", "arch/arm/repack.cpp", "vec.cpp", "llamafile/sgemm.cpp")
KERNEL = re.compile(r"ggml_(vec_dot|gemv|gemm)_(.+?)(?:_\d+x\d+)?(?:_q8_[01K])?$")
HALF_TILE = re.compile(r"tinyBLASILi8E13__Float16x8_t.*4gemm")

# The loops around the code of a superblock: that over superblocks; rows, too; tokens, too.
LOOP_DEPTH = {"vec_dot": 1, "gemv": 2, "gemm": 3}
EXTRA_PRODUCTS = {"IQ1_M": 2}  # dot products with other operands than codes double the number of instructions


def compile_source(llama_cpp: Path, source: str, cpu: str) -> str:
    """Return the assembly of a source file of llama.cpp for a CPU, with the default options of a release build."""
    clang, ggml = find_tool("clang"), llama_cpp / "ggml"
    if clang is None:
        raise SystemExit("error: clang is not installed")
    folders = [f"-I{ggml / folder}" for folder in ("include", "src", "src/ggml-cpu")]
    definitions = ["-DNDEBUG", "-D_GNU_SOURCE", "-DGGML_USE_LLAMAFILE", "-DGGML_USE_CPU_REPACK"]
    standard = "-std=c++17" if source.endswith(".cpp") else "-std=c11"
    command = [clang, "--target=aarch64-linux-gnu", f"-mcpu={cpu}", "-O3", standard, *definitions, *folders]
    path = ggml / "src" / "ggml-cpu" / source
    done = subprocess.run([*command, "-S", "-o", "-", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {path}: {done.stderr[:500]}")
    return disassemble_words(done.stdout)


def disassemble_words(assembly: str) -> str:
    """Replace instructions that inline assembly gives as numbers (.inst) by their names."""
    words, disassembler = sorted(set(re.findall(r"\.inst\s+(0x[0-9a-f]+)", assembly))), find_tool("llvm-mc")
    if not words or disassembler is None:
        return assembly
    text = "\n".join(" ".join(f"0x{byte:02x}" for byte in int(word, 16).to_bytes(4, "little")) for word in words)
    features = ["-triple=aarch64", "-mattr=+dotprod,+i8mm,+bf16,+fullfp16"]
    done = subprocess.run([disassembler, "--disassemble", *features], input=text, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if re.match(r"\t[a-z]", line)]
    named = dict(zip(words, lines, strict=True))
    return re.sub(r"[ \t]*\.inst\s+(0x[0-9a-f]+)", lambda found: named[found[1]], assembly)


def loops_at_depth(loops: tuple[Loop, ...], depth: int) -> list[Loop]:
    """Return the loops that lie within `depth` - 1 others."""
    return list(loops) if depth == 1 else [each for loop in loops for each in loops_at_depth(loop.children, depth - 1)]


def kind_and_format(name: str) -> tuple[str, str] | None:
    """Return the kind of a kernel, which is a key of LOOP_DEPTH, and its format. None for other functions."""
    if HALF_TILE.search(name):
        return "gemm", "F16"
    found = KERNEL.match(name)
    return (found[1], found[2].upper()) if found else None


def kernel_loops(assembly: str) -> Iterator[tuple[str, str, HotLoop]]:
    """Yield the kind of each kernel, its format, and its loop with the most products."""
    for name, lines in functions(assembly):
        kernel = kind_and_format(name)
        if kernel is None:
            continue
        kind, format_name = kernel
        blocks = basic_blocks(lines)
        loops = [loop for loop in loops_at_depth(find_loops(blocks), LOOP_DEPTH[kind]) if own_products(blocks, loop)]
        bodies = [HotLoop(name, iteration(blocks, loop, {})) for loop in loops]
        for matrix in (False, True):  # a vec_dot may have a loop for two rows and two tokens
            chosen = [body for body in bodies if body.has_matrix_products == matrix]
            if chosen:
                yield "gemm" if matrix else kind, format_name, max(chosen, key=lambda body: body.products)


def superblocks(format_name: str, loop: HotLoop) -> float:
    """Return how many superblocks, times tokens, an iteration multiplies."""
    return loop.products / SUPERBLOCK / EXTRA_PRODUCTS.get(format_name, 1)
