"""What `localinfer inspect` says about a speech recognition model."""

from collections.abc import Iterator, Sequence

from localinfer.architectures import SPEECH_RECOGNITION
from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF

HEADS = {"ctc": "CTC", "rnnt": "RNN-T", "tdt": "TDT (token and duration transducer)"}


def is_recognizer(f: GGUF) -> bool:
    """Return whether a file has a speech recognition model instead of a language model."""
    return f.architecture == SPEECH_RECOGNITION


def recognizer_rows(f: GGUF) -> Iterator[Sequence[str]]:
    """Yield what the file says about the model, or why it cannot run."""
    from localinfer.speech_recognition.recognition_file import SECONDS_PER_ROW, recognition_file

    try:
        found = recognition_file(f)
    except LocalInferError as error:
        yield "cannot run", printable(str(error).removeprefix(f"{printable(str(f.path))}: "), 100)
        return
    yield "head", HEADS[found.head]
    yield "tokens", f"{found.blank:,}"
    yield "encoder rows per second", f"{1 / SECONDS_PER_ROW:g}"
    if found.durations:
        yield "durations of tokens in rows", ", ".join(map(str, found.durations))
