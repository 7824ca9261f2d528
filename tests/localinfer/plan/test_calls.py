"""The plan's calls against the kernels themselves: the same arguments in the same order."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest
from tiny import tiny_gemma3, tiny_llama

from localinfer.engine.program import record
from localinfer.files.gguf import open_gguf
from localinfer.ops import calls
from localinfer.options import Options
from localinfer.plan.plan import Plan
from quant.jit.kernel import Kernel

BEHIND = ["part", "parts", "scratch"]  # what every kernel takes after its own arguments


def arguments_of(kernel: Kernel) -> list[str]:
    body = getattr(import_module(kernel.module), kernel.function)(**dict(kernel.constants))
    return list(inspect.signature(body).parameters)


@pytest.mark.parametrize("types", ["Q4_K", "BF16"])
@pytest.mark.parametrize("tiny", [tiny_llama, tiny_gemma3])
def test_ops_have_the_arguments_of_their_kernels(tiny, types: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan = record(open_gguf(tiny(tmp_path / "m.gguf", type=types)), Options(precision="fast")).plan
    for kernel in set(plan.kernels):
        assert [*kernel.parameters, *BEHIND] == arguments_of(kernel)


OTHERS = [
    (calls.LAYER_NORM, {"tile": 0, "passes": 1}),
    (calls.ADD_BIAS, {}),
    (calls.ADD, {}),
    (calls.SOFT_CAP, {}),
    (calls.QUANTIZE, {"tile": 0, "passes": 1}),
]


@pytest.mark.parametrize(("call", "constants"), OTHERS, ids=lambda each: getattr(each, "few", ""))
def test_so_have_those_that_few_architectures_use(call: calls.Call, constants: dict[str, int]) -> None:
    module, function = call.few.split(":")
    assert [*call.parameters, *BEHIND] == arguments_of(Kernel(module, function, constants=tuple(constants.items())))


def test_an_argument_too_many_or_too_few_is_an_error() -> None:
    plan = Plan(1, 1, 1, 1, passes=1)
    x = plan.buffer(32)
    with pytest.raises(AssertionError, match=r"add: .*factor"):
        plan.op("add", calls.ADD, x.rows, branch=x, n=32, x=x)
    with pytest.raises(AssertionError, match=r"add: .*more"):
        plan.op("add", calls.ADD, x.rows, branch=x, factor=1.0, n=32, x=x, more=1)


def test_what_an_op_writes_makes_other_forms_stale() -> None:
    plan = Plan(1, 1, 1, 1, passes=1)
    x, y = plan.buffer(256), plan.buffer(256)
    few = {"tile": 0, "passes": 1}
    plan.op("norm", calls.RMS_NORM, x.rows, constants=few, x=x, weight=0, n=256, eps=1e-5, y=y, q=y.quantized)
    assert y.quantized.is_written
    assert plan.ops[-1].writes == (y, y.quantized)
    plan.op("add", calls.ADD, x.rows, branch=x, factor=1.0, n=256, x=y)
    assert not y.quantized.is_written
