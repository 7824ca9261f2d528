"""Write tests/data/evaluation_*.json: llama.cpp's perplexity and importance matrix of a model on data/varied.txt.

    python tests/making/make_evaluation_fixtures.py evaluation_smollm2 path/to/smollm2.gguf

Needs the dependency groups `test` and `bench`. The text is split as in llama-perplexity and llama-imatrix, into
chunks of 512 tokens. The values are those of the first two chunks, [perplexity, error], without and with flash
attention; their difference shows the effect of rounding in llama.cpp itself. For the importance matrix the inputs of
all matrix products are taken from ggml's graph; the file has the sum over all columns, one number per matrix.
"""

import argparse
import ctypes
import json
import math
import sys
from pathlib import Path

import llama_cpp as C
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from locations import DATA, PYTHONPATH

sys.path[:0] = PYTHONPATH

from llama_cpp_engine import Llama  # noqa: E402

N_CTX, CHUNKS = 512, 2
F32 = 0


class GgmlTensor(ctypes.Structure):
    """The fields of struct ggml_tensor up to its name."""

    _fields_ = [
        ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10), ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64),
    ]  # fmt: skip


class Sums:
    """Sums of squares of the inputs of matrix products; a callback for ggml's scheduler."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}

    def __call__(self, address: int, ask: bool, _: object) -> bool:
        tensor = GgmlTensor.from_address(address)
        if not tensor.src[0] or not tensor.src[1]:
            return False
        weight, x = GgmlTensor.from_address(tensor.src[0]), GgmlTensor.from_address(tensor.src[1])
        name = weight.name.decode()
        product = name.endswith(".weight") and weight.ne[1] > 1 and tensor.ne[0] == weight.ne[1] and x.type == F32
        if not ask and product:
            rows = x.ne[1] * x.ne[2] * x.ne[3]
            pointer = ctypes.cast(x.data, ctypes.POINTER(ctypes.c_float))
            values = np.ctypeslib.as_array(pointer, (rows, x.nb[1] // 4))[:, : x.ne[0]]
            self.totals[name] = self.totals.get(name, 0.0) + float(np.square(values.astype(np.float64)).sum())
        return product


def perplexity(path: Path, flash_attn: str, sums: Sums) -> tuple[float, float]:
    """Return perplexity and its standard error. Sums are accumulated only without flash attention."""
    surprises: list[float] = []
    with Llama(
        path, threads=2, n_ctx=N_CTX, flash_attn=flash_attn, watch=sums if flash_attn == "off" else None
    ) as llama:
        text = (DATA / "varied.txt").read_text(encoding="utf-8").removesuffix("\n")
        tokens = np.array(llama.tokenize(text))[: CHUNKS * N_CTX].reshape(CHUNKS, N_CTX)
        if C.llama_vocab_get_add_bos(llama.vocab):
            tokens[:, 0] = C.llama_vocab_bos(llama.vocab)
        for chunk in tokens.tolist():
            llama.rewind(0)
            logits = llama.logits(chunk).astype(np.float64)
            log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            surprises += [-log_p[at, chunk[at + 1]] for at in range(N_CTX // 2, N_CTX - 1)]
    mean, deviation = float(np.mean(surprises)), float(np.std(surprises, ddof=1))
    return math.exp(mean), math.exp(mean) * deviation / math.sqrt(len(surprises))


def main() -> None:
    """Compute and write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("model", type=Path)
    arguments = parser.parse_args()
    sums = Sums()
    perplexities = {name: perplexity(arguments.model, name, sums) for name in ("off", "on")}
    actual = {"chunks": CHUNKS, "n_ctx": N_CTX, "perplexity": perplexities, "imatrix": sums.totals}
    target = DATA / f"{arguments.name}.json"
    target.write_text(json.dumps(actual, indent=1) + "\n")
    print(target)


if __name__ == "__main__":
    main()
