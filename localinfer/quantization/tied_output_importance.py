"""An estimated importance for the output matrix of models that share it with the token embeddings.

Importance matrices do not cover the token embedding table. Where it also serves as the output matrix, its inputs
resemble its rows, because a token becomes probable by that resemblance. So the mean square of a column of the table
estimates the mean square of its inputs. For SmolLM2 this reduced the error of the output by 17 % in Q4_0, 34 % in Q4_1
and 27 % in Q5_0; measured inputs would have reduced it by 36, 57 and 43 %.
"""

from collections.abc import Mapping

import numpy as np

from localinfer.gguf.source import Source
from localinfer.quantization.noise import sample_rows
from localinfer.quantization.recipe_rules import EMBEDDINGS
from localinfer.quantization.rows import Floats, load_bytes, matrices
from quant import FORMATS

TABLE = EMBEDDINGS[0]
MAX_ROWS = 1024  # of the table in the sample, at most


def with_tied_output_importance(source: Source, importance: Mapping[str, Floats], effort: str) -> dict[str, Floats]:
    """Return the importance with an estimate for the token embeddings if they also serve as the output matrix.

    It is returned unchanged if the effort is "fast", or if the importance of that matrix is known.
    Values are float32 (matrices, n). Raises LocalInferError if the table has a value that is not finite.
    """
    table = source.tensors.get(TABLE)
    if effort == "fast" or TABLE in importance or "output.weight" in source.tensors:
        return dict(importance)
    if table is None or table.type not in FORMATS:
        return dict(importance)
    [matrix] = matrices(table, table.type)
    rows = sample_rows(source, matrix, load_bytes(source, table), MAX_ROWS)
    squares = np.square(rows, dtype=np.float64).mean(axis=0, keepdims=True)
    return {**importance, TABLE: squares.astype(np.float32)}
