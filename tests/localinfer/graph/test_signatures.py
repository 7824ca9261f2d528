"""The kernel signatures match the kernels: each kernel reads the arguments of its signature."""

import ast
import inspect
from importlib import import_module

import pytest

from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.kernels import signatures
from localinfer.kernels.signatures import KernelSignature
from quant import FORMATS
from quant.matmul.product_arguments import PRODUCT_PARAMETERS

# Some kernels need no number of tokens or are too fast to be stopped; of two recurrences, each has its own argument.
IGNORED = {"tokens", "stop", "rate", "skip"}

SIGNATURES = {
    each.small_batch: each
    for each in (*vars(signatures).values(), *signatures.RECUR.values())
    if isinstance(each, KernelSignature) and each.small_batch
}
for fmt in FORMATS.values():
    SIGNATURES[fmt.get_rows_kernel] = signatures.GET_ROWS
    SIGNATURES |= dict.fromkeys(fmt.matmul_kernels, signatures.PRODUCT)
    SIGNATURES |= dict.fromkeys(fmt.expert_matmul_kernels, signatures.EXPERTS)


def read_fields(node: ast.AST) -> set[str]:
    """Return the arguments that code reads: the attributes of `args`."""
    attributes = (each for each in ast.walk(node) if isinstance(each, ast.Attribute))
    return {each.attr for each in attributes if isinstance(each.value, ast.Name) and each.value.id == "args"}


def parse_module(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(inspect.getsource(import_module(module)))


@pytest.mark.parametrize("path", sorted(SIGNATURES))
def test_kernel_reads_the_arguments_of_its_signature(path: str) -> None:
    module, kernel = path.split(":")
    kernels = {other.split(":")[1] for other in SIGNATURES if other.startswith(f"{module}:")}
    tree, parameters = parse_module(module), set(SIGNATURES[path].parameters)
    functions = {node.name: read_fields(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    helpers = set().union(*(fields for name, fields in functions.items() if name not in kernels))
    if SIGNATURES[path] in (signatures.ATTENTION, signatures.COMBINE):
        helpers |= read_fields(parse_module("localinfer.kernels.attention.output"))
        helpers |= read_fields(parse_module("localinfer.kernels.attention.shape"))
    if module == "localinfer.kernels.attention.block_indexer":
        helpers |= read_fields(parse_module("localinfer.kernels.attention.indexer"))
    if kernel.startswith("recur_"):
        helpers |= read_fields(parse_module("localinfer.kernels.recurrent.state_matrix"))
    if parameters == set(PRODUCT_PARAMETERS):
        helpers |= read_fields(parse_module("quant.matmul.output_init"))
        helpers |= read_fields(parse_module("quant.matmul.work_division"))
        helpers |= {"access"}  # matmul reads whole panels
    assert functions[kernel] <= parameters
    assert parameters - IGNORED <= functions[kernel] | helpers


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
    small = {"tile": 0, "passes": 1}
    graph.op("norm", signatures.RMS_NORM, x.rows, constants=small, x=x, weight=0, n=256, eps=1e-5, y=y, q=y.quantized)
    assert y.quantized.is_written
    assert graph.ops[-1].writes == (y, y.quantized)
    graph.op("add", signatures.ADD, x.rows, branch=x, factor=1.0, n=256, x=y)
    assert not y.quantized.is_written
