"""Links the functions of a kernel into one LLVM module and leaves optimization for the end.

By default numba optimizes each function, generates machine code and loads it, and then repeats this for the copy in
each caller. Kernels are needed only as one whole object file. Delaying optimization until then halves the compile time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, codegen
from numba.core.registry import cpu_target


class UnoptimizedLibrary(codegen.JITCodeLibrary):
    """The IR of one function as text, neither optimized nor loaded, with the libraries of its callees."""

    _shared_module: llvm.ModuleRef | None

    text = ""

    def add_ir_module(self, ir_module: ir.Module) -> None:
        """Keep the text of the function's IR. numba then adds wrappers for other callers, which kernels do not need."""
        self.text = self.text or cgutils.normalize_ir_text(str(ir_module))

    def finalize(self) -> None:
        """Mark the library as final without optimizing it."""
        self._finalized = True

    def linked(self) -> llvm.ModuleRef:
        """Return a new module with the function and, transitively, all of its callees."""
        module, found = llvm.parse_assembly(self.text), [self]
        for library in found:  # the loop extends this list
            callees = library._linking_libraries if isinstance(library, UnoptimizedLibrary) else []
            found += [callee for callee in dict.fromkeys(callees) if callee not in found]
        for library in found[1:]:
            whole = not isinstance(library, UnoptimizedLibrary)
            other = library._get_module_for_linking() if whole else llvm.parse_assembly(library.text)
            module.link_in(other, preserve=whole)
        return module

    def _get_module_for_linking(self) -> llvm.ModuleRef:
        """Return the module that numba links into functions it finalizes itself. numba expects it to contain all
        callees.
        """
        if self._shared_module is None:
            self._shared_module = module = self.linked()
            for function in module.functions:
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = "linkonce_odr"  # several callers may link the same function
        return self._shared_module


class KernelCodegen(codegen.JITCPUCodegen):
    """A code generator for the same CPU as numba's, whose libraries are not optimized."""

    _library_class = UnoptimizedLibrary

    def set_env(self, env_name: str, env: Any) -> None:
        """Do nothing. Only code that uses Python objects needs the environment."""


@cache
def kernel_codegen() -> KernelCodegen:
    """Return the code generator shared by all kernels."""
    return KernelCodegen("kernels")


@contextmanager
def unoptimized_libraries() -> Iterator[None]:
    """Make numba compile functions to an `UnoptimizedLibrary` inside the with block."""
    context = cpu_target.target_context
    context.refresh()  # numba's own functions are still loaded the usual way
    before, context._internal_codegen = context._internal_codegen, kernel_codegen()
    try:
        yield
    finally:
        context._internal_codegen = before
