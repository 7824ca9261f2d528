"""How numba compiles the functions of kernels: fewer passes, and each function once.

Most of a kernel's compile time is spent in numba, before LLVM. `KernelPipeline` skips passes that kernels do not need,
because after each pass numba rescans the whole function, even if the pass changed nothing. The wrappers for Python and
C callers are not generated either.
"""

from typing import Any

from numba import njit
from numba.core import extending, typed_passes, untyped_passes
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager

from quant.jit.templates import TemplateCompiler, exact_key

SKIPPED_PASSES = {
    untyped_passes.WithLifting,
    untyped_passes.InlineClosureLikes,
    untyped_passes.RewriteDynamicRaises,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.InlineInlinables,
    untyped_passes.FindLiterallyCalls,
    untyped_passes.LiteralUnroll,
    untyped_passes.LiteralPropagationSubPipelinePass,
    typed_passes.InlineOverloads,
    typed_passes.NopythonRewrites,
    typed_passes.NoPythonSupportedFeatureValidation,
    typed_passes.AnnotateTypes,
    typed_passes.DumpParforDiagnostics,
}


class KernelPipeline(CompilerBase):
    """numba's nopython pipeline without the passes in `SKIPPED_PASSES`."""

    def define_pipelines(self) -> list[PassManager]:
        """Return the only pipeline. Kernels use no Python objects, so there is no object mode."""
        whole, needed = DefaultPassBuilder.define_nopython_pipeline(self.state), PassManager("kernels")
        needed.passes = [each for each in whole.passes if each[0] not in SKIPPED_PASSES]
        needed.finalize()
        return [needed]


def cached_by_code(make: Any) -> Any:
    """Return the decorator `make` with a cache: functions with equal code and equal captured constants share one
    result.

    Inlined functions are closures that every kernel creates anew. Without this cache, none would reuse the code
    compiled for another kernel.
    """
    made: dict[Any, Any] = {}

    def decorate(function: Any) -> Any:
        try:
            inside = [cell.cell_contents for cell in function.__closure__ or ()]
            key = function.__code__, id(function.__globals__), *map(exact_key, (*inside, function.__defaults__))
            if key not in made:
                made[key] = make(function)
            return made[key]
        except (TypeError, ValueError):  # a constant is not hashable, or its cell is still empty
            return make(function)

    return decorate


NO_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

# Decorators: `jit_function` for functions that exist once, such as a kernel's body, `inline` for functions that kernels
# inline, and `intrinsic` for functions that emit LLVM IR.
numba_function: Any = njit(forceinline=True, error_model="numpy", pipeline_class=KernelPipeline, **NO_WRAPPERS)


def jit_function(function: Any) -> Any:
    """Return numba's dispatcher of a function, which compiles from templates."""
    made = numba_function(function)
    default = made._compiler
    made._compiler = TemplateCompiler(
        function, default.targetdescr, default.targetoptions, default.locals, default.pipeline_class
    )
    return made


inline, intrinsic = cached_by_code(jit_function), cached_by_code(extending.intrinsic)
