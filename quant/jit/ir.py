"""Compiles LLVM IR to object files, without numba."""

import llvmlite.binding as llvm

from quant.jit.cpu import elf_triple, selected_cpu


def compile_ir(text: str) -> bytes:
    """Return the object file of a module of LLVM IR, which may be loaded anywhere in memory. Raises RuntimeError if the
    module is invalid."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = selected_cpu()
    target = llvm.Target.from_triple(elf_triple())
    machine = target.create_target_machine(name, features, opt=3, reloc="static", jit=True)
    return bytes(machine.emit_object(llvm.parse_assembly(text)))
