"""The functions that kernels consist of: how numba compiles them, each of them once.

Most of the time of compiling a kernel goes into what numba does with its functions before LLVM sees them. So it does
less with each: nothing is made that only Python or C would call, and passes are left out that have nothing to do here.
After each pass numba looks through the whole function again: one that changes nothing takes as long as any.
"""

from typing import Any

from numba import njit
from numba.core import extending, typed_passes, untyped_passes
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager

IDLE = {
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


class Pipeline(CompilerBase):
    """numba's passes, but for the idle ones."""

    def define_pipelines(self) -> list[PassManager]:
        """The one way there is: kernels know nothing of Python's objects."""
        whole, needed = DefaultPassBuilder.define_nopython_pipeline(self.state), PassManager("kernels")
        needed.passes = [each for each in whole.passes if each[0] not in IDLE]
        needed.finalize()
        return [needed]


def once(make: Any) -> Any:
    """The decorator `make`, which now gives functions of the same code and constants what it made of the first.

    Words are closures, which every kernel makes anew: as they are, none would find what was compiled for another.
    """
    made: dict[Any, Any] = {}

    def decorate(function: Any) -> Any:
        try:
            inside = [cell.cell_contents for cell in function.__closure__ or ()]
            constants = [(type(each), each) for each in (*inside, function.__defaults__)]
            key = function.__code__, id(function.__globals__), *constants
            if key not in made:
                made[key] = make(function)
            return made[key]
        except (TypeError, ValueError):  # a constant that cannot be compared, or that is not there yet
            return make(function)

    return decorate


NOT_CALLED: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # by Python or C

# Of a function of which there is only one, such as a kernel's body; of those that words are; and of words of LLVM's.
alone: Any = njit(forceinline=True, error_model="numpy", pipeline_class=Pipeline, **NOT_CALLED)
inline, intrinsic = once(alone), once(extending.intrinsic)
