"""Saves the engine's logits for some tokens as an .npy file: logits.py MODEL OUT COMPILER ID...

The tokens are evaluated once as a prompt and once one by one. Both results must be the same to the last bit. COMPILER
is an executable that answers kernels as `python -m quant.jit.compiler` does: compiling takes long under emulation.
"""

import sys
from pathlib import Path

import numpy as np

from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from quant.jit import compiler_pool

path, out, sys.executable, *ids = sys.argv[1:]
compiler_pool.usable_cores = lambda: 1  # several compilers would each compile the functions that kernels share
tokens = [int(each) for each in ids]
engine = Engine.load(open_gguf(Path(path)), Options(threads=2, ctx_size=32, precision="high"))
prompt = engine.logits(tokens)
engine.rewind(0)
alone = np.concatenate([engine.logits([token]) for token in tokens])
engine.close()
np.testing.assert_array_equal(alone, prompt)
np.save(out, prompt)
