"""The architectures, as tables: a file for each kin, where one more is an Architecture and a row in BY_CLASS.

An Architecture says what is its own; what several have in common is in common.py. Classes whose names end in
ForConditionalGeneration see pictures too: their text model is read, and the rest left out.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from localinfer.checkpoint import eagle3
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures import (
    bitnet,
    cohere,
    eagle,
    encoders,
    experts,
    falcon,
    gemma,
    glm,
    gpt,
    granite,
    latent,
    lfm,
    llama,
    mamba,
    nemotron,
    phi,
    qwen,
    rwkv,
)
from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.spelling import spelled
from localinfer.errors import Unsupported
from localinfer.text import printable

KINS = (
    llama, bitnet, gemma, qwen, phi, glm, granite, experts, latent, mamba, rwkv, lfm, nemotron, falcon, gpt, cohere,
    encoders,
)  # fmt: skip
BY_CLASS: Mapping[str, Architecture | Callable[[Table], Architecture]] = {
    name: architecture for kin in KINS for name, architecture in kin.BY_CLASS.items()
}
BY_TEXT_MODEL = {("Mistral3ForConditionalGeneration", "mistral4"): latent.MISTRAL4}  # classes that have several


def find(config: Table) -> tuple[Architecture, Table]:
    """The architecture that config.json names, and the table of its numbers, with defaults.

    Raises Unsupported naming the architecture, and one that is known and has a similar name.
    """
    if eagle3.is_head(config):  # whatever it calls its class
        return eagle.EAGLE3, eagle3.flat(config)
    classes = config.get("architectures", list)
    name = classes[0] if classes else None
    if not isinstance(name, str) or name not in BY_CLASS:
        nearest = get_close_matches(str(name), BY_CLASS, n=1, cutoff=0.0)[0]
        what = f"{printable(repr(name), 80)} is not supported; the nearest that is: {nearest}"
        raise config.error("architectures", what, Unsupported)
    text_model = config.table("text_config").get("model_type", str, "")
    found = BY_TEXT_MODEL.get((name, text_model), BY_CLASS[name])
    architecture = found if isinstance(found, Architecture) else found(config)
    return architecture, spelled(config, architecture.spellings, architecture.defaults)
