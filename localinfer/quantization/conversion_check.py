"""The check of a converted checkpoint: a file that localinfer would refuse to run is never left behind.

The converter decides from config.json what it can write, and the loader from the file what it can run. Where the two
disagree, the conversion fails, before the file gets its name.
"""

import gc
import sys
from pathlib import Path

from localinfer import tokenizer
from localinfer.architectures import DRAFT_HEADS, SPEECH_RECOGNITION
from localinfer.errors import LocalInferError
from localinfer.gguf.atomic_file import display_path
from localinfer.gguf.mapped_file import MappedFile
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.options import Options
from localinfer.runtime.graph_building import build_graph
from localinfer.speech_recognition.recognition_file import recognition_file

ENCODER = "clip"


def require_runnable(file: Path, checkpoint: Path, architecture_file: str = "") -> None:
    """Open a converted file, record its graph and read its tokenizer; nothing is compiled. `architecture_file` is the
    user's Python file of its compute graph, if it is not a built-in one.

    Raises LocalInferError that names the checkpoint and the key or tensor of the converted file, UnsupportedError for
    a model that cannot be run.
    """
    try:
        record(open_gguf(file, _ConvertedFile), Options(architecture=architecture_file))
    except LocalInferError as error:
        raise type(error)(f"{display_path(checkpoint)}: the converted file cannot be run: {error}") from None
    finally:
        if sys.platform == "win32":  # it does not rename a mapped file
            gc.collect()


def record(f: GGUF, options: Options) -> None:
    """Record the graph of a model without using it, and read its tokenizer. A file of an encoder has neither."""
    if f.get("general.architecture", str) == ENCODER:
        return
    if f.get("general.architecture", str) == SPEECH_RECOGNITION:
        recognition_file(f)
        return
    if f.get("general.architecture", str) not in DRAFT_HEADS:  # their graphs are parts of those of their models
        build_graph(f, options)
    tokenizer.from_gguf(f)


class _ConvertedFile(MappedFile):
    """A file that has no name yet: errors name only its keys and tensors."""

    def error(self, field: str, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        return kind(": ".join(text for text in (field, problem) if text))
