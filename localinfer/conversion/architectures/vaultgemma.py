"""VaultGemma, whose checkpoints are those of Gemma 2 without the norms after the branches."""

from dataclasses import replace

from localinfer.conversion.architectures.common import GATED_FFN, PRE_NORMS, SEPARATE_QKV
from localinfer.conversion.architectures.gemma import GEMMA2

VAULTGEMMA = replace(
    GEMMA2,
    name="vaultgemma",
    name_map_architecture="gemma2",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *GATED_FFN),
)
BY_CLASS = {"VaultGemmaForCausalLM": VAULTGEMMA}
