"""How functions that numba compiles become one module: as LLVM IR, which waits until a kernel is whole.

By itself numba optimizes each function, makes machine code of it and loads that, then does it all again with the copy
in each function that calls it. Kernels are wanted whole and as files: to compile them so takes half of the time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from numba.core import codegen
from numba.core.registry import cpu_target


class Library(codegen.JITCodeLibrary):
    """One function, neither optimized nor loaded, and the libraries of those that it calls."""

    _shared_module: llvm.ModuleRef | None

    def _optimize_functions(self, ll_module: llvm.ModuleRef) -> None:
        pass

    def finalize(self) -> None:
        """Leave it as it is."""
        self._finalized = True

    def linked(self) -> llvm.ModuleRef:
        """A module of its own with the function and all that it calls, however far down."""
        module, found = self._final_module.clone(), [self]
        for library in found:  # grows meanwhile
            callees = library._linking_libraries if isinstance(library, Library) else []
            found += [callee for callee in dict.fromkeys(callees) if callee not in found]
        for library in found[1:]:
            whole = not isinstance(library, Library)
            module.link_in(library._get_module_for_linking() if whole else library._final_module, preserve=True)
        return module

    def _get_module_for_linking(self) -> llvm.ModuleRef:
        """What numba links into functions that it finishes by itself: it takes each module for whole."""
        if self._shared_module is None:
            self._shared_module = module = self.linked()
            for function in module.functions:
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = "linkonce_odr"  # several callers may bring it along
        return self._shared_module


class Codegen(codegen.JITCPUCodegen):
    """Compiles for the CPU that numba itself does."""

    _library_class = Library

    def set_env(self, env_name: str, env: Any) -> None:
        """Nothing runs that would ask for it."""


@cache
def codegen_of_kernels() -> Codegen:
    """The one for all of them."""
    return Codegen("kernels")


@contextmanager
def unfinished() -> Iterator[None]:
    """What numba compiles inside stays a `Library`."""
    context = cpu_target.target_context
    context.refresh()  # numba's own functions are loaded as ever
    before, context._internal_codegen = context._internal_codegen, codegen_of_kernels()
    try:
        yield
    finally:
        context._internal_codegen = before
