"""The kernels of a forward pass, except the matrix products, and of byte-pair encoding. They are compiled on demand and
never imported at run time.

Each function here that returns a `Body` makes the body of a kernel for `quant.jit.kernel.Kernel`; its own arguments are
compile-time constants. `tile` is 0 for small batches, else the tokens per tile; it selects the layout of the quantized
activations for the next matrix product (`quant.matmul.activations`). Arguments of kernels are addresses and counts;
`tokens` is the address of the number of tokens. Functions `make_*` return inlined functions.
"""

from localinfer import paths
from quant.jit import cpu_record

cpu_record.keep_in(paths.jit_dir)  # before any kernel is selected
