"""Ranks the known architectures by their distance from a checkpoint."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from localinfer.architectures import DRAFT_HEADS, SPEECH_RECOGNITION
from localinfer.conversion import speech_recognition
from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures import BY_CLASS, FAMILIES, find_architecture
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.draft_heads import eagle3
from localinfer.conversion.new_architecture.comparison import Comparison, compare
from localinfer.conversion.new_architecture.survey import Survey

PREFERRED = ("qwen3moe", "qwen3", "llama")  # preferred at equal distance, the last one most


class Candidate(NamedTuple):
    """A known architecture: its module in `localinfer.conversion.architectures`, its name there, and how a checkpoint
    compares with it."""

    module: str
    variable: str
    comparison: Comparison


def rank(survey: Survey, own_name: str, without: str = "") -> Sequence[Candidate]:
    """Return the known decoders, the nearest first: of several with the same GGUF name the nearest one. Those named
    `without` are left out."""
    found: dict[str, Candidate] = {}
    for module, variable, architecture in decoders():
        if architecture.name != without:
            candidate = Candidate(module, variable, compare(survey, architecture, own_name))
            other = found.get(architecture.name)
            if other is None or candidate.comparison.distance < other.comparison.distance:
                found[architecture.name] = candidate
    return sorted(found.values(), key=order)


def order(candidate: Candidate) -> tuple[float, int]:
    """Return the sort key of a candidate."""
    name = candidate.comparison.architecture.name
    return candidate.comparison.distance, -PREFERRED.index(name) if name in PREFERRED else 1


def decoders() -> Iterator[tuple[str, str, Architecture]]:
    """Yield the known architectures that predict next tokens and are no draft heads, with the modules that have a class
    of them, or else define them, and their names there."""
    found: dict[int, tuple[str, str, Architecture]] = {}
    for family in FAMILIES:
        module, of_classes = family.__name__.rpartition(".")[2], [*family.BY_CLASS.values()]
        for variable, architecture in vars(family).items():
            if not isinstance(architecture, Architecture) or architecture.name in DRAFT_HEADS:
                continue
            if architecture.is_encoder or architecture.is_diffusion:
                continue
            if architecture in of_classes or id(architecture) not in found:
                found[id(architecture)] = module, variable, architecture
    yield from found.values()


def known_names() -> set[str]:
    """Return GGUF's names of all architectures that can be converted."""
    known = {each.name for family in FAMILIES for each in vars(family).values() if isinstance(each, Architecture)}
    return {*known, SPEECH_RECOGNITION}


def known_architecture(config: JsonObject) -> str:
    """Return the architecture of a checkpoint that can be converted; "" if its class is unknown.

    Raises UnsupportedError for a known class whose configuration is not supported.
    """
    names = config.get("architectures", list, [])
    if speech_recognition.is_speech_recognition(config):
        return SPEECH_RECOGNITION
    if eagle3.is_eagle3(config) or (names and names[0] in BY_CLASS):
        return find_architecture(config)[0].name
    return ""
