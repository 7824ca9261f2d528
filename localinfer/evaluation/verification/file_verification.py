"""Verifies all that a model file and its projector compute."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import UnsupportedInputError, UsageError
from localinfer.evaluation.verification import encoder_verification, verification
from localinfer.evaluation.verification.verification import N_TOKENS, OnOperation, Verification
from localinfer.gguf.reader import GGUF
from localinfer.graph.properties.adapters import Adapters
from localinfer.multimodal.media import Image, Sound
from localinfer.options import Layer, Options
from quant.jit.loader import Progress


class Inputs(NamedTuple):
    """What is evaluated: the first tokens of a text, an image and a sound. What is not given is made."""

    text: str | None = None
    n_tokens: int = N_TOKENS
    image: Image | None = None
    sound: Sound | None = None


class Files(NamedTuple):
    """An open model file, its projector, and the adapters that change it."""

    model: GGUF
    projector: GGUF | None = None
    adapters: Adapters | None = None


def verify(
    files: Files, options: Options, inputs: Inputs, progress: Progress | None = None,
    on_operation: OnOperation | None = None,
) -> Iterator[tuple[Path, Verification]]:  # fmt: skip
    """Yield what was found in each file: in a language model and its projector, or in a projector or a speech
    recognition model alone, whose encoders are verified.

    Raises UsageError for a projector of another model, UnsupportedError for an image or a sound that the model or its
    projector does not encode, NotEnoughMemoryError, and the errors of opening the files.
    """
    f, projector = files.model, files.projector
    if has_only_encoders(f):
        of_encoder = encoder_verification.encoder_inputs(f, options, inputs.image, inputs.sound)
        yield f.path, encoder_verification.verify_inputs(f, of_encoder, progress, on_operation)
        return
    if projector is None:
        if inputs.image or inputs.sound:
            name = "image" if inputs.image else "audio"
            problem = f"{f.path} reads text only; its projector (--mmproj) encodes images and sounds"
            raise UnsupportedInputError(f"{name}: {problem}")
        of_encoder = []
    else:  # one that does not fit is refused before anything is computed
        of_encoder = encoder_verification.encoder_inputs(projector, options, inputs.image, inputs.sound, f)
    text, n_tokens = inputs.text, inputs.n_tokens
    yield f.path, verification.verify(f, options, text, n_tokens, progress, on_operation, files.adapters)
    if projector is not None:
        yield projector.path, encoder_verification.verify_inputs(projector, of_encoder, progress, on_operation)


def has_only_encoders(f: GGUF) -> bool:
    """Return whether a file has no language model."""
    return f.architecture in encoder_verification.ARCHITECTURES


def reject_text(f: GGUF, given: Layer, inputs: Inputs) -> None:
    """Raise UsageError for a text and for options that were set explicitly, if the file has only encoders, to which
    they do not belong."""
    names = [name for name in given if name not in encoder_verification.OPTIONS]
    if has_only_encoders(f) and (names or inputs.text is not None):
        name = names[0] if names else "prompt"
        raise UsageError(f"{name}: {f.path} has no language model, to which this belongs")
