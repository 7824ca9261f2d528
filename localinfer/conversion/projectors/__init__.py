"""The supported encoders and projectors as tables, one module per family, by the class of the model."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.projectors import (
    cogvlm,
    exaone,
    gemma,
    glm,
    granite,
    idefics,
    internvl,
    kimi,
    lfm,
    llama,
    llava,
    minicpm,
    minimax,
    muse,
    nemotron,
    ocr,
    pixtral,
    qwen,
    whisper,
)
from localinfer.conversion.projectors.projector_architecture import ProjectorArchitecture
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable

FAMILIES = (
    gemma, idefics, qwen, pixtral, llava, lfm, internvl, llama, glm, kimi, minicpm, minimax, muse, nemotron, ocr,
    whisper, granite, cogvlm, exaone,
)  # fmt: skip
Found = ProjectorArchitecture | tuple[ProjectorArchitecture, ...]
BY_CLASS: Mapping[str, Found | Callable[[JsonObject], Found]] = {
    name: found for family in FAMILIES for name, found in family.BY_CLASS.items()
}


def find_projectors(config: JsonObject) -> Sequence[ProjectorArchitecture]:
    """Return the architectures of the encoders that belong to a class: of images, of sounds, or of both. Raises
    UnsupportedError."""
    classes = config.get("architectures", list)
    name = classes[0] if classes else None
    if not isinstance(name, str) or name not in BY_CLASS:
        nearest = get_close_matches(str(name), BY_CLASS, n=1, cutoff=0.0)[0]
        known = f"the most similar class with one is {nearest}"
        what = f"{printable(repr(name), 80)} has no encoder of images or sounds that is supported; {known}"
        raise config.error("architectures", what, UnsupportedError)
    entry = BY_CLASS[name]
    found = entry if isinstance(entry, ProjectorArchitecture | tuple) else entry(config)
    return found if isinstance(found, tuple) else (found,)
