"""What a checkpoint calls its tensors -> what GGUF does.

The `gguf` package has the tables of all architectures; here is what they leave out. It is imported when it is needed:
it imports much else.
"""

import re
from collections.abc import Callable, Mapping

from localinfer.checkpoint import ahead
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.numbers import Numbers
from localinfer.checkpoint.stored.weights import Stacked, Stored
from localinfer.errors import LocalInferError, Unsupported

FACTORS = (".scale", ".input_scale")  # numbers beside a matrix
ENDINGS = (".weight", ".bias", ".weight_scale", *FACTORS)
GGUF_ENDINGS = (*ENDINGS, ".scales", ".blocks")  # other names end in ".weight", unless they are bare
# A text model within a larger one has the same names behind another prefix; what sees and hears is left out.
PREFIXES = (("model.language_model.", "model."), ("language_model.", ""))
OTHER_MODELS = re.compile(
    r"(model\.)?(vision_tower|audio_tower|visual|multi_modal_projector|embed_vision|embed_audio|mtp)\."
)
OLD_NORMS = {"gamma": "weight", "beta": "bias"}
# Old checkpoints store what follows from config.json: frequencies, and masks of what may be seen.
COMPUTED = re.compile(r".*\.(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias)")
LERPS = "rwkvag"  # what RWKV mixes neighbouring tokens for, in GGUF's order
ONE_OF_MANY = re.compile(  # a norm for each head, a matrix for each expert, or for each of several residual streams
    r"(?P<all>.*_layernorm\.norms|.*altup\w*_projections)\.(?P<number>\d+)\.weight"
    r"|(?P<lerps>.*\.attn\.x_)(?P<letter>[rwkvag])"
    r"|(?P<experts>.*\.experts)\.(?P<expert>\d+)\.(?P<kind>.+)\.(?P<ending>weight|scale|input_scale)"
)
IN_BLOCK = re.compile(r".*?\.?(?P<block>\d+)\.(?P<name>.+?)(?P<ending>\.weight|\.bias|\.scale|\.input_scale|)")


def present(architecture: Architecture, numbers: Numbers, stored: Mapping[str, Stored]) -> dict[str, Stored | Stacked]:
    """The text model's tensors by GGUF's names.

    Raises Unsupported naming a tensor that has none.
    """
    blocks = numbers.n_layer + numbers.n_ahead
    known = names_of(architecture.like or architecture.name, blocks)
    own = {**architecture.names, **(ahead.NAMES if architecture.predicts_further else {})}
    found: dict[str, Stored | Stacked] = {}
    for name, tensor in stacked(text_model(used(architecture, stored))).items():
        if architecture.predicts_further and (block := IN_BLOCK.fullmatch(name)) and int(block["block"]) >= blocks:
            continue
        renamed = own_name(name, own) or known(name)
        if renamed is None:
            raise foreign(tensor, architecture)
        whole = renamed.endswith(GGUF_ENDINGS) or renamed.rpartition(".")[2] in architecture.bare
        found[renamed if whole else f"{renamed}.weight"] = tensor
    return found


def used(architecture: Architecture, stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """Without the architecture's prefix, and without what it leaves out. Norms had other names once."""
    found = {}
    for stored_name, tensor in stored.items():
        name = stored_name.removeprefix(architecture.prefix)
        name = re.sub(r"LayerNorm\.(gamma|beta)$", lambda old: f"LayerNorm.{OLD_NORMS[old[1]]}", name)
        if not (architecture.left_out and re.fullmatch(architecture.left_out, name)):
            found[name] = tensor
    return found


def foreign(tensor: Stored | Stacked, architecture: Architecture) -> LocalInferError:
    return tensor.error(f"is not part of the {architecture.name} architecture as it is supported", Unsupported)


def names_of(architecture: str, n_layer: int) -> Callable[[str], str | None]:
    """GGUF's name of a tensor, None where it has none."""
    import gguf

    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(number, n_layer)
    return lambda name: table.get_name(name, try_suffixes=ENDINGS)


def own_name(name: str, own: Mapping[str, str]) -> str | None:
    if name in own:
        return own[name]
    found = IN_BLOCK.fullmatch(name)
    if found and found["name"] + found["ending"] in own:
        return f"blk.{found['block']}.{own[found['name'] + found['ending']]}"
    return f"blk.{found['block']}.{own[found['name']]}{found['ending']}" if found and found["name"] in own else None


def text_model(stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """Its tensors, by the names that they have where it stands alone."""
    found = {}
    for name, tensor in stored.items():
        if OTHER_MODELS.match(name) or COMPUTED.fullmatch(name):
            continue
        prefix, replacement = next((pair for pair in PREFIXES if name.startswith(pair[0])), ("", ""))
        found[replacement + name.removeprefix(prefix).replace(".dt_bias", ".dt_proj.bias")] = tensor
    return found


def number_of(one: re.Match[str]) -> int:
    """Which one of many."""
    return LERPS.index(one["letter"]) if one["letter"] else int(one["number"] or one["expert"])


def stacked(tensors: Mapping[str, Stored]) -> dict[str, Stored | Stacked]:
    """Tensors that there are one for each head, expert or stream, as one with a dimension more, in the order of
    numbers."""
    parts: dict[str, dict[int, Stored]] = {}
    for name, tensor in tensors.items():
        one = ONE_OF_MANY.fullmatch(name)
        all = one and (one["all"] or one["lerps"] or f"{one['experts']}.{one['kind']}").removesuffix(".norms")
        number = number_of(one) if one else 0
        ending = (one and one["ending"]) or "weight"
        parts.setdefault(f"{all}.{ending}" if all else name, {})[number] = tensor
    return {
        name: each[0] if name in tensors else Stacked(tuple(each[number] for number in sorted(each)))
        for name, each in parts.items()
    }
