"""`generation_settings`: the options of a generation under the names of llama.cpp's server."""

import math
from typing import TYPE_CHECKING, Any

from localinfer.options import Options, chosen_samplers, parse_logit_bias, scales_of_run

if TYPE_CHECKING:
    from localinfer.model import Model

SAME_NAMES = (
    "seed", "dynatemp_range", "top_k", "top_p", "min_p", "top_n_sigma", "xtc_probability", "xtc_threshold",
    "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty", "dry_multiplier",
    "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "adaptive_target", "adaptive_decay",
    "min_keep", "ignore_eos", "grammar", "cache_prompt",
)  # fmt: skip
OTHER_NAMES = {  # llama.cpp's name: field of Options
    "temperature": "temp",
    "dynatemp_exponent": "dynatemp_exp",
    "mirostat_tau": "mirostat_ent",
    "mirostat_eta": "mirostat_lr",
    "n_predict": "n_predict",
    "max_tokens": "n_predict",
    "n_keep": "keep",
    "n_probs": "logprobs",
    "reasoning_format": "reasoning_format",
    "speculative.n_max": "spec_draft_n_max",
    "speculative.n_min": "spec_draft_n_min",
    "speculative.p_min": "spec_draft_p_min",
    "speculative.types": "spec_type",
}


def generation_settings(options: Options, model: "Model") -> dict[str, Any]:
    """Return the settings of a generation of this model with these options."""
    return {
        **{name: getattr(options, name) for name in SAME_NAMES},
        **{name: getattr(options, field) for name, field in OTHER_NAMES.items()},
        "dry_sequence_breakers": list(options.dry_sequence_breaker),
        "stop": list(options.stop),
        "samplers": list(chosen_samplers(options)),
        "logit_bias": logit_biases(options, model),
        "json_schema": options.json_schema,
        "lora": [
            {"id": number, "scale": scale} for number, scale in enumerate(scales_of_run(options, model.lora_scales))
        ],
    }


def logit_biases(options: Options, model: "Model") -> list[dict[str, Any]]:
    """Return the biases of tokens, among them those that exclude the end of the text. None stands for -inf."""
    pairs = [parse_logit_bias(text) for text in options.logit_bias]
    pairs += [(id, -math.inf) for id in sorted(model.tokenizer.eog) if options.ignore_eos]
    return [{"token": id, "bias": bias if math.isfinite(bias) else None} for id, bias in pairs]
