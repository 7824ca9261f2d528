"""Verifies the encoders of a projector file or of a speech recognition model: runs them, and checks every op."""

from collections.abc import Sequence

from localinfer.architectures import SPEECH_RECOGNITION
from localinfer.errors import UnsupportedInputError
from localinfer.evaluation.verification.encoder_inputs import (
    EncoderInput,
    generate_sound,
    projector_inputs,
    recognition_inputs,
)
from localinfer.evaluation.verification.encoder_verifier import EncoderVerifier
from localinfer.evaluation.verification.host_checks import interpolation_checks
from localinfer.evaluation.verification.operation_check import OperationCheck
from localinfer.evaluation.verification.verification import OnOperation, Verification
from localinfer.gguf.reader import GGUF
from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder, write_input
from localinfer.multimodal.media import Image, Sound
from localinfer.multimodal.projector_file import ARCHITECTURE, open_projector
from localinfer.options import Options
from localinfer.speech_recognition.recognition_file import recognition_file
from quant.jit.loader import Progress

ARCHITECTURES = ARCHITECTURE, SPEECH_RECOGNITION  # of files with encoders and no language model
OPTIONS = {"threads", "threads_batch", "precision"}  # that encoders have


def encoder_inputs(
    f: GGUF, options: Options, image: Image | None, sound: Sound | None, model: GGUF | None = None
) -> Sequence[EncoderInput]:
    """Return what the encoders of a file read: of an image and a sound, which are generated if they are not given.
    A projector must fit the language `model`, if there is one.

    Raises LocalInferError for an invalid file, UnsupportedError for an encoder that cannot run and for an image or a
    sound that the file does not encode, UsageError for a projector of another model.
    """
    if f.architecture != SPEECH_RECOGNITION or model is not None:
        return projector_inputs(open_projector(f.path, model), image, sound, options)
    if image:
        raise f.error("general.architecture", f"{SPEECH_RECOGNITION} does not encode images", UnsupportedInputError)
    return [*recognition_inputs(recognition_file(f), sound or generate_sound(), options)]


def verify_inputs(
    f: GGUF, inputs: Sequence[EncoderInput], progress: Progress | None = None, on_operation: OnOperation | None = None
) -> Verification:
    """Run the encoders of a file with these inputs, and check each op. Raises NotEnoughMemoryError, and LocalInferError
    if the file has changed."""
    checks, not_finite, precision = list[OperationCheck](), dict[str, None](), "fast"
    total = sum(len(each.build()[0].graph.ops) for each in inputs)
    done = 0
    for each in inputs:
        g, output = each.build()
        g.graph.separate_ops()
        checks += [*each.checks, *interpolation_checks(g)]
        precision = "high" if g.graph.passes > 1 else "fast"
        with CompiledEncoder(g, output, progress) as encoder:
            f.check_unchanged()
            write_input(g, each.patches)
            verifier = EncoderVerifier(g, encoder)
            for end, found in verifier.verify():
                checks += found
                if on_operation:
                    on_operation(done + end, total)
            not_finite.update(verifier.not_finite)
            done += len(g.graph.ops)
    return Verification(checks, [*not_finite], [], precision, [each.description for each in inputs])
