"""The inner loops of attention keep their accumulators in registers: a spilled one is stored and loaded in every step,
which makes prefill half as fast."""

import re

import pytest

from localinfer.kernels.layout import tile_rows
from localinfer.kernels.signatures import ATTENTION
from quant.jit import compiler
from quant.jit.cpu import target
from quant.jit.kernel import make_kernel

SPILL = re.compile(r"%zmm\d+, -?\d*\(%r[sb]p\)")  # a store to the stack


def loops(assembly: str) -> list[str]:
    """Return the basic blocks that jump to their own beginning."""
    parts = re.split(r"^(\.L\w+):.*$", assembly, flags=re.MULTILINE)
    return [
        body for label, body in zip(parts[1::2], parts[2::2], strict=True) if re.search(rf"\sj\w+\s+{label}\b", body)
    ]


@pytest.mark.skipif(not target().isa.startswith("avx512"), reason="other CPUs have too few registers for all loops")
def test_accumulators_of_a_large_tile_stay_in_registers():
    rows = tile_rows(3, large_batch=True)
    constants = {
        "k_type": "f16", "v_type": "f16", "values_in_keys": 0, "capped": 0, "sloped": 0, "biased": 0, "selected": 0,
        "rows": rows, "single": rows,
    }  # fmt: skip
    kernel = make_kernel(
        ATTENTION.large_batch,
        ATTENTION.parameters,
        ATTENTION.floats,
        constants | {"tile": target().tokens, "passes": 1},
    )
    assembly = str(compiler.target_machine().emit_assembly(compiler.compile_module(kernel)))
    products = [loop for loop in loops(assembly) if loop.count("vfmadd") >= target().accumulators]
    assert len(products) >= 3  # scores, and values
    assert [len(SPILL.findall(loop)) for loop in products] == [0] * len(products)
