"""The types of keyword arguments that set options: made by tests/making/make_option_keywords.py, do not edit.

`RunKeywords` are accepted by every method that generates, `LoadKeywords` by `load` and `Model`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict


class OptionKeywords(TypedDict, total=False):
    """Options of runs."""

    temp: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    dynatemp_range: float
    dynatemp_exp: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breaker: str | Sequence[str]
    mirostat: int
    mirostat_ent: float
    mirostat_lr: float
    adaptive_target: float
    adaptive_decay: float
    samplers: str
    sampler_seq: str
    logit_bias: Sequence[str] | Mapping[int, float]
    seed: int
    n_predict: int
    stop: str | Sequence[str]
    beams: int
    logprobs: int
    ignore_eos: bool
    cache_prompt: bool
    reasoning_budget: int
    reasoning_format: Literal["auto", "deepseek", "none"]
    diffusion_steps: int
    diffusion_algorithm: Literal["confidence", "entropy", "margin", "random", "origin", "0", "1", "2", "3", "4"]
    diffusion_alg_temp: float
    diffusion_eps: float
    diffusion_block_length: int
    diffusion_cfg_scale: float
    diffusion_add_gumbel_noise: bool
    diffusion_visual: bool
    json_schema: str
    json_schema_file: str
    json_mode: bool
    grammar: str
    grammar_file: str
    regex: str
    choice: str | Sequence[str]
    close_at_limit: bool
    spec_type: str
    spec_draft_n_max: int
    spec_draft_n_min: int
    spec_draft_p_min: float
    lora_scales: Sequence[str] | Mapping[int, float]
    system_prompt: str
    chat_template: str
    chat_template_file: str
    chat_template_kwargs: str
    think: Literal["auto", "on", "off"]
    reasoning_effort: str

    max_tokens: int  # n_predict
    max_new_tokens: int  # n_predict
    temperature: float  # temp
    repetition_penalty: float  # repeat_penalty
    num_beams: int  # beams


class RunKeywords(OptionKeywords, total=False):
    """Options of one run."""

    schema: object  # a JSON schema as a dict or text, a pydantic model or a type adapter


class LoadKeywords(OptionKeywords, total=False):
    """Options of a model, and defaults of its runs."""

    ctx_size: int
    ctx_policy: Literal["stop", "drop-turns", "ring"]
    keep: int
    cache_type_k: Literal["f32", "f16", "q8_0", "q4_0"]
    cache_type_v: Literal["f32", "f16", "q8_0", "q4_0"]
    threads: int
    threads_batch: int
    mmap: bool
    mlock: bool
    memory: str
    tune: bool
    prefix_store: bool
    prefix_store_size: float
    batch_size: int
    parallel: int
    ubatch_size: int
    architecture: str
    precision: Literal["auto", "fast", "high"]
    override_kv: str | Sequence[str] | Mapping[str, bool | int | float | str]
    check_tensors: bool
    rope_scaling: Literal["auto", "none", "linear", "yarn"]
    rope_scale: float
    rope_freq_base: float
    rope_freq_scale: float
    yarn_orig_ctx: int
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_slow: float
    yarn_beta_fast: float
    spec_draft_model: str
    ctx_size_draft: int
    spec_draft_threads: int
    spec_draft_threads_batch: int
    spec_draft_type_k: Literal["f32", "f16", "q8_0", "q4_0"]
    spec_draft_type_v: Literal["f32", "f16", "q8_0", "q4_0"]
    mmproj: str
    mmproj_auto: bool
    image_min_tokens: int
    image_max_tokens: int
    video_fps: float
    video_max_frames: int
    lora: str | Sequence[str]
    lora_scaled: str | Sequence[str]
    lora_init_without_apply: bool
    control_vector: str | Sequence[str]
    control_vector_scaled: str | Sequence[str]
    control_vector_layer_range: str

    n_ctx: int  # ctx_size
    n_threads: int  # threads
    kv_overrides: str | Sequence[str] | Mapping[str, bool | int | float | str]  # override_kv
