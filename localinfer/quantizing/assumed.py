"""What is assumed of the columns of a matrix whose importance nobody has measured.

Of one matrix something is known: of the table of tokens where it is the output matrix, too. Importance matrices leave
it out. What it is multiplied with resembles its own rows, because a token becomes probable by that; so the mean square
of a column of the table stands for that of its inputs. Of SmolLM2's output it took 17 % of the error in Q4_0 away, 34 %
in Q4_1 and 27 % in Q5_0, where inputs that were measured would have taken 36, 57 and 43 %.
"""

from collections.abc import Mapping

import numpy as np

from localinfer.files.source import Source
from localinfer.quantizing.noise import sample
from localinfer.quantizing.recipe_rules import EMBEDDINGS
from localinfer.quantizing.rows import Floats, load, matrices
from quant import FORMATS

TABLE = EMBEDDINGS[0]
ROWS = 1024  # of the table that are looked at, at most


def with_assumed(source: Source, importance: Mapping[str, Floats], effort: str) -> dict[str, Floats]:
    """The importance, float32 (matrices, n), of tensors for which it is known, or with some effort assumed.

    Raises LocalInferError for a value that is no finite number.
    """
    table = source.tensors.get(TABLE)
    if effort == "fast" or TABLE in importance or "output.weight" in source.tensors:
        return dict(importance)
    if table is None or table.type not in FORMATS:
        return dict(importance)
    [matrix] = matrices(table, table.type)
    rows = sample(source, matrix, load(source, table), ROWS)
    squares = np.square(rows, dtype=np.float64).mean(axis=0, keepdims=True)
    return {**importance, TABLE: squares.astype(np.float32)}
