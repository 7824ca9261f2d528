"""Compiles LLVM IR that tests emit, for the selected CPU, without numba, whose import takes long under emulation."""

import ctypes
import itertools
from collections.abc import Callable, Sequence
from functools import cache

import llvmlite.binding as llvm
from llvmlite import ir

from quant.jit.cpu import selected_cpu
from quant.jit.emit import I64

Emit = Callable[[ir.IRBuilder, Sequence[ir.Value]], object]
NUMBERS = itertools.count()


def target_machine() -> llvm.TargetMachine:
    """Return a code generator for the selected CPU."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = selected_cpu()
    return llvm.Target.from_default_triple().create_target_machine(name, features, opt=3, jit=True)


@cache
def execution_engine() -> llvm.ExecutionEngine:
    """Return the execution engine of all tests."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())


def compile_emitted(emit: Emit, arguments: int = 3) -> Callable[..., None]:
    """Return a function of addresses, compiled with all optimizations from the IR that `emit` writes."""
    module, name = ir.Module(), f"emitted_{next(NUMBERS)}"
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * arguments), name)
    builder = ir.IRBuilder(function.append_basic_block())
    emit(builder, function.args)
    builder.ret_void()
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(target_machine(), llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    execution_engine().add_module(parsed)
    execution_engine().finalize_object()
    address = execution_engine().get_function_address(name)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)(address)
