"""Kimi K3: Kimi Linear with attention residuals, gates in latent attention, and experts that process latent vectors."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import EXPERTS
from localinfer.conversion.architectures.delta_attention import KDA, KIMI_LINEAR, kimi_linear, with_gates
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.metadata.recurrent_metadata import kda_hparams, kda_metadata, read_decay_bound
from localinfer.conversion.tensor_formats.dequantized_matrix import dequantized
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.conversion.tensor_formats.values import Floats, to_float32
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import MAXIMA

NORM, PROJECTION, PRODUCT = "_res_norm.weight", "_res_proj.weight", "_res.weight"
SCORES = ("attn_res_score", "ffn_res_score")
GATES = {"linear_attention": "ssm_g", "full_attention": "attn_gate"}
LATENT = {"down_proj": "down", "norm": "norm", "up_proj": "up"}  # matrices and norm of the latent vectors


def read_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of Kimi Delta Attention, and the length of the latent vectors that experts process."""
    hp = kda_hparams(config, hp)
    latent = config.positive_int("routed_expert_hidden_size", MAXIMA["embedding_length"])
    return replace(hp, sizes={**hp.sizes, "n_latent": latent})


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of Kimi Delta Attention, whose decays may have a limit, of attention residuals, of experts,
    and of SiTU, their activation function."""
    kda, key = config.child("linear_attn_config"), "gate_lower_bound"
    betas = {name: config.positive_float(f"activation_situ_{name}") for name in ("beta", "linear_beta")}
    return kda_metadata(config, hp) | {
        "attention.value_length": Field.uint32(hp.sizes["kv_rank"]),
        "attn_res.block_size": Field.uint32(config.positive_int("attn_res_block_size", MAXIMA["block_count"])),
        "expert_latent_length": Field.uint32(hp.sizes["n_latent"]),
        "expert_weights_norm": Field.flag(True),
        **{f"activation.situ_{name}": Field.float32(beta) for name, beta in betas.items()},
        **({f"kda.{key}": read_decay_bound(kda, key)} if kda.values.get(key) is not None else {}),
    }


def adapt_tensors(stored: Mapping[str, StoredTensor], hp: HParams) -> dict[str, StoredTensor]:
    """Return the tensors with the products of the norms and the projections that score residual streams, and without
    the padding of the decay rates of heads: published files have as many as a head has values."""
    adapted = {}
    for name, tensor in stored.items():
        if name.endswith(".A_log") and tensor.shape == (hp.sizes["n_key"],):
            adapted[name] = dequantized(tensor.name, (hp.n_head,), tensor, partial(first_values, tensor, hp.n_head))
        elif name.endswith(NORM):
            projection = partner(stored, name, NORM, PROJECTION)
            require_shape(tensor, (hp.n_embd,))
            require_shape(projection, (1, hp.n_embd))
            product = name.removesuffix(NORM) + PRODUCT
            adapted[product] = dequantized(product, (hp.n_embd,), tensor, partial(multiplied, tensor, projection))
        elif name.endswith(PROJECTION):
            partner(stored, name, PROJECTION, NORM)
        else:
            adapted[name] = tensor
    return adapted


def partner(stored: Mapping[str, StoredTensor], name: str, ending: str, other: str) -> StoredTensor:
    """Return the tensor whose name has another ending. Raises LocalInferError if it is missing."""
    if found := stored.get(name.removesuffix(ending) + other):
        return found
    lacking = printable(stored[name].name.removesuffix(ending) + other, 80)
    raise stored[name].file.error(f"tensor {lacking}", "is missing")


def require_shape(tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    """Raise LocalInferError if a tensor has another shape."""
    if tensor.shape != shape:
        raise tensor.error(f"has shape {list(tensor.shape)}, not {list(shape)}")


def multiplied(norm: StoredTensor, projection: StoredTensor) -> Floats:
    """Return the products of the values of two tensors."""
    return to_float32(norm).reshape(-1) * to_float32(projection).reshape(-1)


def first_values(tensor: StoredTensor, count: int) -> Floats:
    """Return the first values of a vector."""
    return to_float32(tensor).reshape(-1)[:count]


KIMI_K3 = replace(
    KIMI_LINEAR,
    name="kimi-k3",
    name_map_architecture=KIMI_LINEAR.name,
    layer_tensors=(*KIMI_LINEAR.layer_tensors, *SCORES),
    model_tensors=("output_res_score",),
    moe_tensors=(*KIMI_LINEAR.moe_tensors, *(f"ffn_routed_{name}" for name in LATENT.values())),
    layer_type_tensors={
        "linear_attention": (*(kind for kind in KDA if kind != "ssm_g_a"), "ssm_f_b", "ssm_g"),
        "full_attention": ("attn_gate",),
    },
    shapes={
        **KIMI_LINEAR.shapes,
        **dict.fromkeys((*SCORES, "output_res_score"), ("n_embd",)),
        **dict.fromkeys(EXPERTS[1:3], ("n_expert", "n_ff_expert", "n_latent")),
        EXPERTS[3]: ("n_expert", "n_latent", "n_ff_expert"),
        "ffn_routed_down": ("n_latent", "n_embd"),
        "ffn_routed_norm": ("n_latent",),
        "ffn_routed_up": ("n_embd", "n_latent"),
        "ssm_a": ("n_heads",),
        "ssm_g": ("n_keys", "n_embd"),
        "attn_gate": ("n_q_values", "n_embd"),
    },
    adapt_tensors=adapt_tensors,
    tensor_names={
        **KIMI_LINEAR.tensor_names,
        **{f"block_sparse_moe.routed_expert_{old}": f"ffn_routed_{new}" for old, new in LATENT.items()},
        **dict(zip(("self_attention_res", "mlp_res"), SCORES, strict=True)),
        "model.output_attn_res.weight": "output_res_score.weight",
    },
    activations=("situ",),
    chat_template="kimi-k3",
    end_of_turn="<|end_of_msg|>",
    read_hparams=read_hparams,
    metadata=metadata,
    required_values={**KIMI_LINEAR.required_values, "mla_use_output_gate": True, "latent_moe_use_norm": True},
)


def kimi_k3(config: JsonObject) -> Architecture:
    """Return the architecture with the layers of the text model that config.json describes."""
    whole = kimi_linear(config.child("text_config"), KIMI_K3)
    return with_gates(whole, whole.defaults["layer_types"], "self_attn", GATES)


BY_CLASS = {"KimiK3ForConditionalGeneration": kimi_k3}
