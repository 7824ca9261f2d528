"""Calibration data: a text in chunks of tokens, and the metadata that describes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localinfer import tokenizer
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import Field
from localinfer.options import CHUNK_SIZE
from localinfer.quantization.plan import IMATRIX_CHUNKS, IMATRIX_DATASET
from localinfer.tokenizer.chunks import Chunks, split_text


@dataclass(frozen=True, slots=True)
class CalibrationData:
    """The chunks of a text, int32 (n_chunks, CHUNK_SIZE), and the metadata that describes it.

    The keys of the metadata are those of llama.cpp for importance matrices.
    """

    chunks: Chunks
    fields: Mapping[str, Field]


def read_calibration_data(model: Path, text: str, name: str, max_chunks: int) -> CalibrationData:
    """Split a text into at most `max_chunks` chunks of the model's tokens. `name` is the file of the text.

    Raises UsageError if the text is too short.
    """
    chunks = split_text(
        tokenizer.from_gguf(open_gguf(model)), text, CHUNK_SIZE, max_chunks=max_chunks, option="--calibrate", hint=""
    )
    fields = {
        IMATRIX_DATASET: Field.text(name.encode("utf-8", "surrogateescape")),
        IMATRIX_CHUNKS: Field.uint32(len(chunks)),
    }
    return CalibrationData(chunks, fields)
