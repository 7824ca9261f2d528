"""Object files are linked as LLVM's loader does it, and malformed ones are refused."""

import ctypes
import platform
import random
import struct

import llvmlite.binding as llvm
import pytest

from quant.jit import executable_memory, object_file
from quant.jit.cpu import selected_cpu
from quant.jit.ir import compile_ir
from quant.jit.object_file import ObjectFile, ObjectFileError

# Constants of two sections, a function of the same file, and one of the system.
PROGRAM = """
@table = private constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
declare ptr @memset(ptr, i32, i64)
define private double @look_up(i64 %number) noinline {
  %at = getelementptr [4 x double], ptr @table, i64 0, i64 %number
  %found = load double, ptr %at
  %sum = fadd double %found, 1024.75
  ret double %sum
}
define double @entry(ptr %memory, i64 %number) {
  %done = call ptr @memset(ptr %memory, i32 7, i64 3)
  %found = call double @look_up(i64 %number)
  ret double %found
}
"""
WRITES = "@counter = global i64 5\ndefine i64 @entry() {\n  %c = load volatile i64, ptr @counter\n  ret i64 %c\n}"
HERE = platform.machine().lower()


def compile_with(text: str, triple: str | None = None, **options: object) -> bytes:
    """Compile LLVM IR for this CPU or for another triple, with options of LLVM's target machine."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    cpu = selected_cpu() if triple is None else ("", "")
    target = llvm.Target.from_triple(triple or llvm.get_process_triple())
    return bytes(target.create_target_machine(*cpu, opt=3, **options).emit_object(llvm.parse_assembly(text)))


def call_entry(code: bytes) -> tuple[float, bytes]:
    """Load PROGRAM and call it. Returns its result, and the memory that it wrote."""
    parsed = ObjectFile(code, "entry")
    [image] = executable_memory.load([parsed], executable_memory.system_function)
    memory = ctypes.create_string_buffer(4)
    entry = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_int64)(image + parsed.entry)
    return entry(ctypes.addressof(memory), 2), memory.raw


@pytest.mark.parametrize(
    "options",
    [
        {"codemodel": "large", "reloc": "static"},  # absolute addresses
        {"codemodel": "small", "reloc": "pic"},  # distances, and a stub for the function of the system
        {"codemodel": "jitdefault", "reloc": "static", "jit": True},
    ],
)
def test_program_runs(options):
    assert call_entry(compile_with(PROGRAM, **options)) == (3.5 + 1024.75, b"\7\7\7\0")


def test_two_files_are_loaded_together():
    code = compile_ir(PROGRAM)
    parsed = [ObjectFile(code, "entry"), ObjectFile(code, "entry")]
    one, other = executable_memory.load(parsed, executable_memory.system_function)
    assert other - one == object_file.MAX_ALIGNMENT
    assert executable_memory.load([], executable_memory.system_function) == []


@pytest.mark.parametrize("codemodel", ["large", "small"])
def test_addresses_of_arm64(codemodel):
    """Each instruction is decoded, and must have the address of what it refers to."""
    code = compile_with(PROGRAM, "aarch64-unknown-linux-gnu", codemodel=codemodel, reloc="static", jit=True)
    if codemodel == "small":  # page addresses, which kernels do not use
        with pytest.raises(ObjectFileError, match="relocation type"):
            ObjectFile(code, "entry")
        return
    base, memset = 0x7FFF_1234_5000, 0x7000_8765_4321
    parsed = ObjectFile(code, "entry")
    image = parsed.link(base, {"memset": memset}.__getitem__)
    addresses = set()
    for each in parsed.relocations:
        [instruction] = struct.unpack_from("<I", image, each.offset)
        if each.kind in (282, 283):
            offset = (instruction & 0x3FFFFFF ^ 0x2000000) - 0x2000000
            stub = each.offset + 4 * offset
            assert stub in parsed.stubs.values() or each.symbol.offset == stub
        else:
            addresses.add((each.symbol, each.addend, (each.kind - 263) // 2, instruction >> 5 & 0xFFFF))
    for symbol, addend, part, bits in addresses:
        target = base + symbol.offset + addend if symbol.offset is not None else memset
        assert target >> 16 * part & 0xFFFF == bits
    for offset in parsed.stubs.values():
        assert bytes(image[offset + 8 : offset + 16]) == struct.pack("<Q", memset)


def test_functions_that_are_not_allowed_are_refused():
    code = compile_ir(
        "declare i32 @system(ptr)\ndefine i32 @entry(ptr %x) {\n  %r = call i32 @system(ptr %x)\n  ret i32 %r\n}"
    )
    with pytest.raises(ObjectFileError, match="calls system"):
        executable_memory.require_loadable(ObjectFile(code, "entry"))


def test_writable_data_is_refused():
    with pytest.raises(ObjectFileError, match="writable data"):
        ObjectFile(compile_ir(WRITES), "entry")


def test_code_of_another_machine_is_refused():
    triple = "aarch64-unknown-linux-gnu" if HERE in ("x86_64", "amd64") else "x86_64-unknown-linux-gnu"
    code = compile_with(PROGRAM, triple, codemodel="large", reloc="static", jit=True)
    with pytest.raises(ObjectFileError, match=f"not for {platform.machine()}"):
        executable_memory.require_loadable(ObjectFile(code, "entry"))


def test_missing_symbol_is_refused():
    with pytest.raises(ObjectFileError, match="does not define other"):
        ObjectFile(compile_ir(PROGRAM), "other")


def test_damaged_files_are_refused_or_harmless():
    """No mutant causes another exception, or an image that is larger than the file allows."""
    code, rng, refused = compile_ir(PROGRAM), random.Random(0), 0
    mutants = [code[:size] for size in range(len(code))]
    mutants += [code[:40] + b"\xff" * 8 + code[48:]]  # the offset of the sections
    for _ in range(3000):
        mutant = bytearray(code)
        for _ in range(rng.choice([1, 1, 2, 8])):
            mutant[rng.randrange(len(code))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        mutants.append(bytes(mutant))
    for mutant in mutants:
        try:
            parsed = ObjectFile(mutant, "entry")
            assert len(parsed.link(0x7FFF_0000_0000, lambda name: 0x7FFF_1000_0000)) == parsed.size
            assert parsed.size <= 100 * len(code) + 100 * object_file.MAX_ALIGNMENT
        except ObjectFileError:
            refused += 1
    assert refused > len(code)
