"""The kernel signatures match the kernels: the same arguments in the same order."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest
from tiny import tiny_gemma3, tiny_llama

from localinfer.gguf.reader import open_gguf
from localinfer.graph.compute_graph import ComputeGraph
from localinfer.kernels import signatures
from localinfer.options import Options
from localinfer.runtime.compiled_graph import build_graph
from quant.jit.kernel import Kernel

COMMON_PARAMETERS = ["chunk_index", "n_chunks", "scratch"]  # parameters of every kernel, after its own


def arguments_of(kernel: Kernel) -> list[str]:
    body = getattr(import_module(kernel.module), kernel.function)(**dict(kernel.constants))
    return list(inspect.signature(body).parameters)


@pytest.mark.parametrize("types", ["Q4_K", "BF16"])
@pytest.mark.parametrize("tiny", [tiny_llama, tiny_gemma3])
def test_ops_have_the_arguments_of_their_kernels(tiny, types: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    graph = build_graph(open_gguf(tiny(tmp_path / "m.gguf", type=types)), Options(precision="fast")).graph
    for kernel in set(graph.kernels):
        assert [*kernel.parameters, *COMMON_PARAMETERS] == arguments_of(kernel)


OTHERS = [
    (signatures.LAYER_NORM, {"tile": 0, "passes": 1}),
    (signatures.ADD_BIAS, {}),
    (signatures.ADD, {}),
    (signatures.SOFT_CAP, {}),
    (signatures.QUANTIZE, {"tile": 0, "passes": 1}),
]


@pytest.mark.parametrize(("signature", "constants"), OTHERS, ids=lambda each: getattr(each, "small_batch", ""))
def test_signatures_of_rarely_used_kernels_match(
    signature: signatures.KernelSignature, constants: dict[str, int]
) -> None:
    module, function = signature.small_batch.split(":")
    assert [*signature.parameters, *COMMON_PARAMETERS] == arguments_of(
        Kernel(module, function, constants=tuple(constants.items()))
    )


def test_missing_or_extra_argument_is_an_error() -> None:
    graph = ComputeGraph(1, 1, 1, 1, passes=1)
    x = graph.buffer(32)
    with pytest.raises(AssertionError, match=r"add: .*factor"):
        graph.op("add", signatures.ADD, x.rows, branch=x, n=32, x=x)
    with pytest.raises(AssertionError, match=r"add: .*more"):
        graph.op("add", signatures.ADD, x.rows, branch=x, factor=1.0, n=32, x=x, more=1)


def test_writing_a_buffer_invalidates_its_converted_activations() -> None:
    graph = ComputeGraph(1, 1, 1, 1, passes=1)
    x, y = graph.buffer(256), graph.buffer(256)
    few = {"tile": 0, "passes": 1}
    graph.op("norm", signatures.RMS_NORM, x.rows, constants=few, x=x, weight=0, n=256, eps=1e-5, y=y, q=y.quantized)
    assert y.quantized.is_written
    assert graph.ops[-1].writes == (y, y.quantized)
    graph.op("add", signatures.ADD, x.rows, branch=x, factor=1.0, n=256, x=y)
    assert not y.quantized.is_written
