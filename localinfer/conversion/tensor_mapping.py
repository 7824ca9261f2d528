"""Tensor mapping: a checkpoint's tensor names -> GGUF's.

The `gguf` package has the tables of all architectures; this module adds missing names. The package is imported late
because its import is slow.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.draft_heads import mtp
from localinfer.conversion.hparams import HParams
from localinfer.conversion.tensor_formats.safetensors_file import JoinedTensor, StackedTensor, StoredTensor
from localinfer.errors import LocalInferError, UnsupportedError

SCALE_ENDINGS = (".scale", ".input_scale")  # scales of a matrix
ENDINGS = (".weight", ".bias", ".weight_scale", *SCALE_ENDINGS)
GGUF_ENDINGS = (*ENDINGS, ".scales", ".blocks")  # other names end in ".weight", with exceptions
# A multimodal model's text model has another prefix; vision and audio tensors are ignored.
PREFIXES = (("model.language_model.", "model."), ("language_model.", ""), ("lfm.", "model."), ("thinker.", ""))
OTHER_MODELS = re.compile(
    r"(model\.|thinker\.)?(vision_tower|vision_embedder|audio_tower|visual|multi_modal_projector|mm_projector|mtp)\."
    r"|model\.embed_(vision|audio)\."
    r"|(vision_model|mlp1|sound_encoder|sound_projection)\."
    r"|(talker|token2wav)\."
    r"|(conformer|audio_adapter|audio_embedding|depthformer|depth_embeddings|depth_linear)\."
    r"|codebook_offsets|audio_loss_weights"
)
OUTPUT_NAMES = {"lm_head.weight": "output.weight"}  # also of architectures whose output layer is usually the embedding
OLD_NORMS = {"gamma": "weight", "beta": "bias"}
# Old checkpoints store values that follow from config.json: rope frequencies and attention masks.
COMPUTED = re.compile(r".*\.(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias)")
# Token-shift interpolations of RWKV-7 and RWKV-6, in GGUF's order
LERP_LETTERS, SHARE_LETTERS = "rwkvag", "wkvrg"
STACK_MEMBER = re.compile(  # one norm per head, or one matrix per expert or residual stream, or rows of a matrix
    r"(?P<all>.*_layernorm\.norms|.*altup\w*_projections)\.(?P<number>\d+)\.weight"
    r"|(?P<lerps>.*\.(attn|time_mixer)\.x_)(?P<letter>[rwkvag])"
    r"|(?P<shares>.*\.(attention|self_attn)\.time_maa_)(?P<share>[wkvrg])"
    r"|(?P<rows>.*\.ngram_embedding)\.shard_(?P<shard>\d+)\.weight"
    r"|(?P<experts>.*\.(?:chunk_)?experts)\.(?P<expert>\d+)\.(?P<kind>.+)\.(?P<ending>weight|scale|input_scale)"
)
MODULE_TENSOR = re.compile(r"model\.(?P<module>\w+)\.layers\.(?P<block>\d{1,9})\.(?P<name>.+)")
BLOCK_TENSOR = re.compile(r".*?\.?(?P<block>\d+)\.(?P<name>.+?)(?P<ending>\.weight|\.bias|\.scale|\.input_scale|)")


def map_tensors(
    architecture: Architecture, hparams: HParams, stored: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor | StackedTensor]:
    """Return the text model's tensors by GGUF's names.

    Raises UnsupportedError naming a tensor that has none.
    """
    blocks = hparams.n_layer + hparams.n_mtp_layers
    longest = max(blocks, hparams.n_decoder_layers)
    known = gguf_name_map(architecture.name_map_architecture or architecture.name, longest)
    architecture_names = {**(mtp.TENSOR_NAMES if architecture.has_mtp else {}), **architecture.tensor_names}
    by_name: dict[str, StoredTensor | StackedTensor] = {}
    has_more = architecture.has_mtp or architecture.ignores_mtp
    of_text_model = text_model_tensors(select_tensors(architecture, stored))
    for name, tensor in stack_members(architecture.adapt_tensors(of_text_model, hparams)).items():
        if has_more and (block := BLOCK_TENSOR.fullmatch(name)) and int(block["block"]) >= blocks:
            continue
        name = name_in_model(name, architecture.layer_modules, blocks)
        renamed = architecture_name(name, architecture_names) or known(name) or OUTPUT_NAMES.get(name)
        if renamed is None:
            raise unexpected_tensor(tensor, architecture)
        kinds = {renamed, renamed.rpartition(".")[2]}
        whole = renamed.endswith(GGUF_ENDINGS) or not kinds.isdisjoint(architecture.no_weight_suffix)
        by_name[renamed if whole else f"{renamed}.weight"] = tensor
    return by_name


def name_in_model(name: str, modules: Sequence[str], n_layer: int) -> str:
    """Return the name of a tensor with the number of its layer in the model, whose modules have layers of their own: ""
    if a module has more of them than others."""
    match = MODULE_TENSOR.fullmatch(name)
    if not match or match["module"] not in modules:
        return name
    number, size = int(match["block"]), n_layer // len(modules)
    return f"model.layers.{modules.index(match['module']) * size + number}.{match['name']}" if number < size else ""


def select_tensors(architecture: Architecture, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors without the architecture's prefix and ignored names; old norm names are modernized."""
    selected = {}
    for stored_name, tensor in stored.items():
        name = stored_name.removeprefix(architecture.tensor_prefix)
        name = re.sub(r"LayerNorm\.(gamma|beta)$", lambda old: f"LayerNorm.{OLD_NORMS[old[1]]}", name)
        if not (architecture.ignored_tensors and re.fullmatch(architecture.ignored_tensors, name)):
            selected[name] = tensor
    return selected


def unexpected_tensor(tensor: StoredTensor | StackedTensor, architecture: Architecture) -> LocalInferError:
    """Return an error about a tensor that the architecture does not have."""
    return tensor.error(f"is not part of the supported {architecture.name} architecture", UnsupportedError)


def gguf_name_map(architecture: str, n_layer: int) -> Callable[[str], str | None]:
    """Return a function that maps a tensor name to GGUF's, or to None: always None for an architecture that the `gguf`
    package lacks."""
    import gguf

    number = next((number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), None)
    if number is None:
        return lambda _: None
    table = gguf.get_tensor_name_map(number, n_layer)
    return lambda name: table.get_name(name, try_suffixes=ENDINGS)


def architecture_name(name: str, table: Mapping[str, str]) -> str | None:
    """Return GGUF's name of a tensor from the architecture's table, or None."""
    if name in table:
        return table[name]
    match = BLOCK_TENSOR.fullmatch(name)
    if match and match["name"] + match["ending"] in table:
        return f"blk.{match['block']}.{table[match['name'] + match['ending']]}"
    return f"blk.{match['block']}.{table[match['name']]}{match['ending']}" if match and match["name"] in table else None


def text_model_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the text model's tensors, by the names they have in a text-only checkpoint."""
    renamed = {}
    for name, tensor in stored.items():
        if OTHER_MODELS.match(name) or COMPUTED.fullmatch(name):
            continue
        renamed[name_in_text_model(name).replace(".dt_bias", ".dt_proj.bias")] = tensor
    return renamed


def name_in_text_model(name: str) -> str:
    """Return the name that a tensor has in a text-only checkpoint."""
    prefix, replacement = next((pair for pair in PREFIXES if name.startswith(pair[0])), ("", ""))
    return replacement + name.removeprefix(prefix)


def member_index(match: re.Match[str]) -> int:
    """Return the index of a tensor among those that are stacked."""
    if match["letter"]:
        return LERP_LETTERS.index(match["letter"])
    if match["share"]:
        return SHARE_LETTERS.index(match["share"])
    return int(match["number"] or match["shard"] or match["expert"])


def stack_members(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor | StackedTensor]:
    """Combine tensors that exist once per head, expert or residual stream into one stacked tensor each, ordered by
    index, and those with some rows of a matrix into this matrix.
    """
    members: dict[str, dict[int, StoredTensor]] = {}
    matrices: set[str] = set()
    for name, tensor in tensors.items():
        match = STACK_MEMBER.fullmatch(name)
        whole = match and (match["all"] or match["lerps"] or match["shares"] or match["rows"])
        stacked_name = match and (whole or f"{match['experts']}.{match['kind']}")
        stacked_name = stacked_name and stacked_name.removesuffix(".norms")
        number = member_index(match) if match else 0
        ending = (match and match["ending"]) or "weight"
        full_name = f"{stacked_name}.{ending}" if stacked_name else name
        members.setdefault(full_name, {})[number] = tensor
        matrices |= {full_name} if match and match["rows"] else set()

    def combined(name: str, parts: Mapping[int, StoredTensor]) -> StoredTensor | StackedTensor:
        if name in tensors:
            return parts[0]
        return (JoinedTensor if name in matrices else StackedTensor)(tuple(parts[number] for number in sorted(parts)))

    return {name: combined(name, parts) for name, parts in members.items()}
