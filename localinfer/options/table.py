"""The options of models and runs, for all commands and the Python API.

Each field of `Options` has a flag, valid values and a help text. The modules in `cli/` declare the options that only
one command has, such as its output file.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from localinfer.options.flag import Flag, option
from localinfer.options.metadata_values import OVERRIDE_SEPARATOR, parse_override
from localinfer.options.syntax import (
    DEFAULT_SAMPLERS,
    SAMPLERS,
    check_adapter_scale,
    parse_layer_range,
    parse_logit_bias,
    parse_memory,
    parse_sampler_sequence,
    parse_samplers,
    parse_scaled_file,
    parse_speculation_types,
)

Policy = Literal["stop", "drop-turns", "ring"]
Precision = Literal["auto", "fast", "high"]
Think = Literal["auto", "on", "off"]
ReasoningFormat = Literal["auto", "deepseek", "none"]
RopeScaling = Literal["auto", "none", "linear", "yarn"]
CacheType = Literal["f32", "f16", "q8_0", "q4_0"]
DiffusionAlgorithm = Literal["confidence", "entropy", "margin", "random", "origin", "0", "1", "2", "3", "4"]

INT32_MAX = 2**31 - 1
RANDOM_SEED = -1
CHUNK_SIZE = 512  # default of ctx_size for evaluation: tokens in a chunk, as in llama-perplexity and llama-imatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a model and its runs, with the flags and defaults of llama.cpp where it has the same option."""

    ctx_size: int = option(
        0, "-c", "--ctx-size", section="model", minimum=0, maximum=INT32_MAX,
        help="Size of the context in tokens (0: the model's training context, at most 32768, as far as memory "
        "allows; 2048 for diffusion language models).")
    ctx_policy: Policy = option(
        "drop-turns", "--ctx-policy", section="model", choices=get_args(Policy),
        help="What to do when the context is full: stop, drop the oldest turns of a chat (drop-turns), or overwrite "
        "the oldest tokens but the first --keep (ring).")
    keep: int = option(
        4, "--keep", section="model", minimum=0, maximum=INT32_MAX,
        help="Number of tokens at the start of the context that --ctx-policy ring never overwrites; rounded up to "
        "a multiple of 64.")
    cache_type_k: CacheType = option(
        "f16", "-ctk", "--cache-type-k", section="model", choices=get_args(CacheType),
        help="Data type of the KV cache for K: 32 or 16 bits per value, or quantized to 8.5 or 4.5 bits per value.")
    cache_type_v: CacheType = option(
        "f16", "-ctv", "--cache-type-v", section="model", choices=get_args(CacheType),
        help="Data type of the KV cache for V.")
    threads: int = option(
        0, "-t", "--threads", section="model", minimum=0, maximum=512,
        help="Number of threads for decode (0: the physical performance cores available to this process).")
    threads_batch: int = option(
        0, "-tb", "--threads-batch", section="model", minimum=0, maximum=512,
        help="Number of threads for prefill (0: same as --threads).")
    mmap: bool = option(
        True, "--mmap", section="model",
        help="Memory-map the model file; --no-mmap reads the whole file into huge pages first, which may speed up "
        "decode.")
    mlock: bool = option(
        False, "--mlock", section="model",
        help="Read the whole model at start-up, and lock it in RAM.")
    memory: str = option(
        "", "--memory", section="model", metavar="SIZE", validate=parse_memory,
        help="Memory for a mixture of experts that is larger than memory, such as 8G: it keeps the weights that all "
        "tokens use, the KV cache and the experts used last; other experts are read from the disk when they are "
        "needed (default: the available memory, if the model does not fit).")
    tune: bool = option(
        True, "--tune", section="model",
        help="Measure on first use which way of reading the weights is fastest on this machine; --no-tune uses the "
        "default.")
    prefix_store: bool = option(
        True, "--prefix-store", section="model",
        help="Keep evaluated prompts of 512 tokens or more on disk, so that a later run of any command continues "
        "them; --no-prefix-store neither reads nor writes them.")
    prefix_store_size: float = option(
        8.0, "--prefix-store-size", section="model", minimum=0, maximum=1e6,
        help="Size of the prefix store in GiB, of all models together. The least recently used prompts are removed.")
    batch_size: int = option(
        2048, "-b", "--batch-size", section="model", minimum=1, maximum=INT32_MAX,
        help="Logical maximum batch size; values above --ubatch-size have no further effect.")
    parallel: int = option(
        1, "-np", "--parallel", section="model", minimum=1, maximum=256,
        help="Number of server slots, or of parallel sequences of a batch, each with a context of --ctx-size tokens.")
    ubatch_size: int = option(
        512, "-ub", "--ubatch-size", section="model", minimum=1, maximum=16384,
        help="Physical maximum batch size of prefill in tokens; larger values use more memory.")
    architecture: str = option(
        "", "--architecture", section="model", metavar="FILE",
        help="Python file that defines the model's compute graph, instead of the built-in architecture.")
    precision: Precision = option(
        "auto", "--precision", section="model", choices=get_args(Precision),
        help="Quantize activations to 8 bits as llama.cpp does (fast), or to 15 bits (high); auto: high for "
        "encoders.")

    override_kv: tuple[str, ...] = option(
        (), "--override-kv", section="model", metavar="KEY=TYPE:VALUE", separator=OVERRIDE_SEPARATOR,
        validate=parse_override,
        help="Override a key of the model's metadata. TYPE is int, float, bool or str; repeatable, and "
        "comma-separated.")
    check_tensors: bool = option(
        False, "--check-tensors", section="model",
        help="Read all weights when the model is loaded, and refuse values that are not finite.")
    rope_scaling: RopeScaling = option(
        "auto", "--rope-scaling", section="model", choices=get_args(RopeScaling),
        help="RoPE scaling method (auto: that of the model file, or linear).")
    rope_scale: float = option(
        0.0, "--rope-scale", section="model", minimum=0, maximum=1e6,
        help="Factor by which RoPE scaling extends the context (0: that of the model file).")
    rope_freq_base: float = option(
        0.0, "--rope-freq-base", section="model", minimum=0, maximum=1e15,
        help="RoPE base frequency (0: that of the model file).")
    rope_freq_scale: float = option(
        0.0, "--rope-freq-scale", section="model", minimum=0, maximum=1e6,
        help="RoPE frequency scale, 1/N for --rope-scale N (0: that of the model file).")
    yarn_orig_ctx: int = option(
        0, "--yarn-orig-ctx", section="model", minimum=0, maximum=INT32_MAX,
        help="YaRN: the context size that the model was trained on before it was extended (0: that of the model "
        "file).")
    yarn_ext_factor: float = option(
        -1.0, "--yarn-ext-factor", section="model", minimum=-1, maximum=1e6,
        help="YaRN: how much fast pairs extrapolate (0: not at all, negative: that of the model file, or 1 for yarn).")
    yarn_attn_factor: float = option(
        -1.0, "--yarn-attn-factor", section="model", minimum=-1, maximum=1e6,
        help="YaRN: factor of the attention magnitude with --yarn-ext-factor 0 (negative: 1).")
    yarn_beta_slow: float = option(
        -1.0, "--yarn-beta-slow", section="model", minimum=-1, maximum=1e6,
        help="YaRN: rotations within the original context below which a pair is slowed (negative: that of the model "
        "file, or 1).")
    yarn_beta_fast: float = option(
        -1.0, "--yarn-beta-fast", section="model", minimum=-1, maximum=1e6,
        help="YaRN: rotations within the original context above which a pair keeps its frequency (negative: that of "
        "the model file, or 32).")

    temp: float = option(
        0.8, "--temp", section="sampling", minimum=0, maximum=1e6,
        help="Temperature (0: greedy decoding).")
    top_k: int = option(
        40, "--top-k", section="sampling", minimum=0, maximum=INT32_MAX,
        help="Top-k sampling (0 = disabled).")
    top_p: float = option(
        0.95, "--top-p", section="sampling", minimum=0, maximum=1,
        help="Top-p sampling (1.0 = disabled).")
    min_p: float = option(
        0.05, "--min-p", section="sampling", minimum=0, maximum=1,
        help="Min-p sampling (0.0 = disabled).")
    typical_p: float = option(
        1.0, "--typical", "--typical-p", section="sampling", minimum=0, maximum=1,
        help="Locally typical sampling, parameter p (1.0 = disabled).")
    top_n_sigma: float = option(
        -1.0, "--top-nsigma", "--top-n-sigma", section="sampling", minimum=-1e6, maximum=1e6,
        help="Top-n-sigma sampling (-1.0 = disabled).")
    xtc_probability: float = option(
        0.0, "--xtc-probability", section="sampling", minimum=0, maximum=1,
        help="XTC probability (0.0 = disabled).")
    xtc_threshold: float = option(
        0.1, "--xtc-threshold", section="sampling", minimum=0, maximum=1,
        help="XTC threshold (above 0.5 = disabled).")
    min_keep: int = option(
        0, "--min-keep", section="sampling", minimum=0, maximum=INT32_MAX,
        help="Minimum number of candidates that top-p, min-p, typical and XTC sampling keep.")
    dynatemp_range: float = option(
        0.0, "--dynatemp-range", section="sampling", minimum=0, maximum=1e6,
        help="Dynamic temperature range (0.0 = disabled).")
    dynatemp_exp: float = option(
        1.0, "--dynatemp-exp", section="sampling", minimum=0, maximum=1e6,
        help="Dynamic temperature exponent.")
    repeat_penalty: float = option(
        1.0, "--repeat-penalty", section="sampling", minimum=math.nextafter(0, 1), maximum=1e6,
        help="Penalty on repeated tokens (1.0 = disabled).")
    repeat_last_n: int = option(
        64, "--repeat-last-n", section="sampling", minimum=-1, maximum=INT32_MAX,
        help="Number of last tokens to consider for penalties (0 = disabled, -1 = context size).")
    presence_penalty: float = option(
        0.0, "--presence-penalty", section="sampling", minimum=-1e6, maximum=1e6,
        help="Presence penalty (0.0 = disabled).")
    frequency_penalty: float = option(
        0.0, "--frequency-penalty", section="sampling", minimum=-1e6, maximum=1e6,
        help="Frequency penalty (0.0 = disabled).")
    dry_multiplier: float = option(
        0.0, "--dry-multiplier", section="sampling", minimum=-1e6, maximum=1e6,
        help="DRY sampling multiplier (0.0 = disabled).")
    dry_base: float = option(
        1.75, "--dry-base", section="sampling", minimum=0, maximum=1e6,
        help="DRY sampling base value.")
    dry_allowed_length: int = option(
        2, "--dry-allowed-length", section="sampling", minimum=0, maximum=INT32_MAX,
        help="Length of a repetition that DRY sampling does not penalize, in tokens.")
    dry_penalty_last_n: int = option(
        64, "--dry-penalty-last-n", section="sampling", minimum=-1, maximum=INT32_MAX,
        help="DRY penalty for the last n tokens (0 = disabled, -1 = context size).")
    dry_sequence_breaker: tuple[str, ...] = option(
        ("\n", ":", '"', "*"), "--dry-sequence-breaker", section="sampling",
        help="Sequence breaker of DRY sampling; repeatable, and replaces the default newline, colon, quotation mark "
        "and asterisk (none: no breakers).")
    mirostat: int = option(
        0, "--mirostat", section="sampling", minimum=0, maximum=2,
        help="Mirostat sampling: 0 = disabled, 1 = Mirostat, 2 = Mirostat 2.0; replaces the truncation samplers.")
    mirostat_ent: float = option(
        5.0, "--mirostat-ent", section="sampling", minimum=0, maximum=1e6,
        help="Mirostat target entropy, parameter tau, in bits per token.")
    mirostat_lr: float = option(
        0.1, "--mirostat-lr", section="sampling", minimum=0, maximum=1e6,
        help="Mirostat learning rate, parameter eta.")
    adaptive_target: float = option(
        -1.0, "--adaptive-target", section="sampling", minimum=-1e6, maximum=1,
        help="Adaptive-p sampling: select tokens near this probability (negative = disabled).")
    adaptive_decay: float = option(
        0.9, "--adaptive-decay", section="sampling", minimum=0, maximum=1,
        help="Adaptive-p sampling: decay rate of the adaptation over time.")
    samplers: str = option(
        ";".join(DEFAULT_SAMPLERS), "--samplers", section="sampling", validate=parse_samplers,
        help="Samplers of the sampler chain in their order, separated by ';'; adaptive_p is also available.")
    sampler_seq: str = option(
        "", "--sampling-seq", "--sampler-seq", section="sampling", validate=parse_sampler_sequence,
        help="Sampler chain as letters, one per sampler, such as "
        f"{''.join(SAMPLERS[name] for name in DEFAULT_SAMPLERS)}.")
    logit_bias: tuple[str, ...] = option(
        (), "-l", "--logit-bias", section="sampling", validate=parse_logit_bias,
        help="Bias of a token's logit: TOKEN_ID+BIAS or TOKEN_ID-BIAS, such as 15043+1 or 15043-inf; repeatable.")
    seed: int = option(
        RANDOM_SEED, "-s", "--seed", section="sampling", minimum=RANDOM_SEED, maximum=2**64 - 1,
        help="Random number seed (-1 = random).")

    n_predict: int = option(
        -1, "-n", "--predict", "--n-predict", section="generation", minimum=-1, maximum=INT32_MAX, excluded=0,
        help="Maximum number of tokens to predict (-1: no limit).")
    stop: tuple[str, ...] = option(
        (), "-r", "--reverse-prompt", "--stop", section="generation",
        help="Stop string: generation halts before this text; repeatable.")
    beams: int = option(
        1, "--beams", section="generation", minimum=1, maximum=64,
        help="Number of beams of a beam search, which replaces sampling and takes at least this many times as long "
        "(1 = disabled).")
    logprobs: int = option(
        0, "--logprobs", section="generation", minimum=0, maximum=1000,
        help="Report the log probability of each token, and of this many alternatives (0 = disabled).")
    ignore_eos: bool = option(
        False, "--ignore-eos", section="generation",
        help="Ignore end-of-generation tokens, and continue generating.")

    cache_prompt: bool = option(
        True, "--cache-prompt", section="generation",
        help="Reuse what the KV cache already has of the prompt; --no-cache-prompt evaluates the whole prompt.")

    reasoning_budget: int = option(
        -1, "--reasoning-budget", section="generation", minimum=-1, maximum=INT32_MAX,
        help="Maximum number of reasoning tokens before the answer (0: none, -1: no limit).")
    reasoning_format: ReasoningFormat = option(
        "auto", "--reasoning-format", section="generation", choices=get_args(ReasoningFormat),
        help="Separate the reasoning content from the answer (auto, deepseek), or leave it in the answer with its "
        "tags (none).")
    diffusion_steps: int = option(
        128, "--diffusion-steps", section="diffusion", minimum=1, maximum=65536,
        help="Number of denoising steps of a diffusion language model; more steps than tokens have no effect with "
        "blocks.")
    diffusion_algorithm: DiffusionAlgorithm = option(
        "confidence", "--diffusion-algorithm", section="diffusion", choices=get_args(DiffusionAlgorithm),
        help="Which masked tokens a step unmasks: those with the largest probability (confidence, 4), the largest "
        "margin above the second token (margin, 2), the smallest entropy (entropy, 1), or random ones (random, 3; "
        "origin, 0: each by itself).")
    diffusion_alg_temp: float = option(
        0.0, "--diffusion-alg-temp", section="diffusion", minimum=0, maximum=1e6,
        help="Temperature of the choice of tokens to unmask (0: always those of --diffusion-algorithm).")
    diffusion_eps: float = option(
        0.0, "--diffusion-eps", section="diffusion", minimum=0, maximum=0.999,
        help="Unmask tokens by timesteps from 1 to this one, as Dream does (0: the model's schedule, with 0.001 for "
        "Dream and RND1).")
    diffusion_block_length: int = option(
        0, "--diffusion-block-length", section="diffusion", minimum=0, maximum=INT32_MAX,
        help="Unmask blocks of this many tokens one after the other, as LLaDA does (0: the model's schedule, with 32 "
        "for LLaDA).")
    diffusion_cfg_scale: float = option(
        0.0, "--diffusion-cfg-scale", section="diffusion", minimum=0, maximum=1e6,
        help="Scale of classifier-free guidance, which follows the prompt more closely and takes twice the time (0 = "
        "disabled).")
    diffusion_add_gumbel_noise: bool = option(
        False, "--diffusion-add-gumbel-noise", section="diffusion",
        help="Draw tokens by adding Gumbel noise to their logits, as LLaDA does, if --temp is above 0.")
    diffusion_visual: bool = option(
        True, "--diffusion-visual", section="diffusion",
        help="Show the text of a diffusion language model in the terminal while it is unmasked.")

    json_schema: str = option(
        "", "-j", "--json-schema", section="structured", metavar="JSON",
        help="JSON schema to constrain the output.")
    json_schema_file: str = option(
        "", "-jf", "--json-schema-file", section="structured", metavar="FILE",
        help="File with a JSON schema to constrain the output.")
    json_mode: bool = option(
        False, "--json-mode", section="structured",
        help="Constrain the output to any JSON object.")
    grammar: str = option(
        "", "--grammar", section="structured",
        help="GBNF grammar to constrain the output.")
    grammar_file: str = option(
        "", "--grammar-file", section="structured", metavar="FILE",
        help="File with a GBNF grammar to constrain the output.")
    regex: str = option(
        "", "--regex", section="structured",
        help="Regular expression that the whole output must match.")
    choice: tuple[str, ...] = option(
        (), "--choice", section="structured", separator=",",
        help="Constrain the output to one of these comma-separated texts; repeatable.")
    close_at_limit: bool = option(
        True, "--close-at-limit", section="structured",
        help="Complete a constrained output with a few tokens before it reaches --predict or the end of the context; "
        "--no-close-at-limit cuts it off there.")

    spec_type: str = option(
        "ngram,draft-simple,draft-mtp,draft-eagle3,draft-dflash,draft-dspark", "--spec-type", section="speculative",
        validate=parse_speculation_types,
        help="Types of speculative decoding, comma-separated; the output stays the same: n-gram lookup in the "
        "context (ngram), a draft model (draft-simple), the model's own MTP head or an assistant of Gemma 4 "
        "(draft-mtp), an EAGLE-3 head (draft-eagle3), a DFlash or DSpark head (draft-dflash, "
        "draft-dspark), or none.")
    spec_draft_n_max: int = option(
        48, "--spec-draft-n-max", section="speculative", minimum=0, maximum=1024,
        help="Maximum number of draft tokens per step; fewer are used where that is faster.")
    spec_draft_n_min: int = option(
        0, "--spec-draft-n-min", section="speculative", minimum=0, maximum=1024,
        help="Minimum number of draft tokens per step, if there are any.")

    spec_draft_p_min: float = option(
        0.0, "--draft-p-min", "--spec-draft-p-min", section="speculative", minimum=0, maximum=1,
        help="Minimum probability of a draft token of the draft model, or of a DSpark head's confidence in it.")

    spec_draft_model: str = option(
        "", "-md", "--model-draft", "--spec-draft-model", section="draft", metavar="MODEL",
        help="Draft model with the same vocabulary, or draft head of the model (EAGLE-3, DFlash, DSpark, assistant "
        "of Gemma 4): a path or a name.")
    ctx_size_draft: int = option(
        0, "-cd", "--ctx-size-draft", section="draft", minimum=0, maximum=INT32_MAX,
        help="Size of the draft model's context in tokens; it drafts nothing beyond it (0: same as the model).")
    spec_draft_threads: int = option(
        0, "-td", "--threads-draft", "--spec-draft-threads", section="draft", minimum=0, maximum=512,
        help="Number of threads for the draft model's decode (0: same as --threads).")
    spec_draft_threads_batch: int = option(
        0, "-tbd", "--threads-batch-draft", "--spec-draft-threads-batch", section="draft", minimum=0, maximum=512,
        help="Number of threads for the draft model's prefill (0: same as --spec-draft-threads).")
    spec_draft_type_k: CacheType = option(
        "f16", "-ctkd", "--cache-type-k-draft", "--spec-draft-type-k", section="draft", choices=get_args(CacheType),
        help="Data type of the draft model's KV cache for K.")
    spec_draft_type_v: CacheType = option(
        "f16", "-ctvd", "--cache-type-v-draft", "--spec-draft-type-v", section="draft", choices=get_args(CacheType),
        help="Data type of the draft model's KV cache for V.")

    mmproj: str = option(
        "", "-mm", "--mmproj", section="media", metavar="FILE",
        help="Projector of the model, with which it reads images or sounds: a GGUF file (mmproj), or a name.")
    mmproj_auto: bool = option(
        True, "--mmproj-auto", section="media", negative="--no-mmproj",
        help="Find the projector beside the model, in its repository or in its store; --no-mmproj reads text only.")
    image_min_tokens: int = option(
        0, "--image-min-tokens", section="media", minimum=0, maximum=INT32_MAX,
        help="Minimum number of tokens of an image, for models whose images differ in size (0: that of the model).")
    image_max_tokens: int = option(
        0, "--image-max-tokens", section="media", minimum=0, maximum=INT32_MAX,
        help="Maximum number of tokens of an image, for models whose images differ in size (0: that of the model).")
    video_fps: float = option(
        0.0, "--video-fps", section="media", minimum=0, maximum=1000,
        help="Frames per second of a video that the model reads (0: that of the model).")
    video_max_frames: int = option(
        0, "--video-max-frames", section="media", minimum=0, maximum=4096,
        help="Maximum number of frames of a video (0: that of the model, and so few that they take at most half of "
        "the context).")

    lora: tuple[str, ...] = option(
        (), "--lora", section="adapters", metavar="FILE", separator=",",
        help="LoRA adapter of the model: a GGUF file, or PEFT's folder; repeatable, and comma-separated.")
    lora_scaled: tuple[str, ...] = option(
        (), "--lora-scaled", section="adapters", metavar="FILE:SCALE", separator=",", validate=parse_scaled_file,
        help="LoRA adapter with a scale, FILE:SCALE; repeatable, and comma-separated.")
    lora_init_without_apply: bool = option(
        False, "--lora-init-without-apply", section="adapters",
        help="Load LoRA adapters with the scale 0; a run, or a request to the server, sets others.")
    lora_scales: tuple[str, ...] = option(
        (), "--lora-scales", section="generation", validate=check_adapter_scale,
        help="Scale of a LoRA adapter in this run, as its number and the scale, such as 0=0.5; repeatable. Those that "
        "are not named have 0 (none: all of them).")
    control_vector: tuple[str, ...] = option(
        (), "--control-vector", section="adapters", metavar="FILE", separator=",",
        help="Control vector, a GGUF file that is added to the residual stream; repeatable, and comma-separated.")
    control_vector_scaled: tuple[str, ...] = option(
        (), "--control-vector-scaled", section="adapters", metavar="FILE:SCALE", separator=",",
        validate=parse_scaled_file,
        help="Control vector with a scale, FILE:SCALE; repeatable, and comma-separated.")
    control_vector_layer_range: str = option(
        "", "--control-vector-layer-range", section="adapters", metavar="START,END", validate=parse_layer_range,
        help="First and last layer that control vectors are added to, START,END or START END (empty: all layers).")

    system_prompt: str = option(
        "", "-sys", "--system-prompt", section="chat",
        help="System prompt of the conversation.")
    chat_template: str = option(
        "", "--chat-template", section="chat",
        help="Jinja chat template, or the name of a built-in one, such as chatml, instead of the model's own.")
    chat_template_file: str = option(
        "", "--chat-template-file", section="chat", metavar="FILE",
        help="File with a Jinja chat template, instead of the model's own.")
    chat_template_kwargs: str = option(
        "", "--chat-template-kwargs", section="chat", metavar="JSON",
        help='Additional variables of the chat template, as a JSON object: {"enable_thinking": false}.')

    think: Think = option(
        "auto", "-rea", "--reasoning", "--think", section="chat", choices=get_args(Think),
        help="Enable or disable reasoning, if the chat template supports it (auto: enable it by `enable_thinking`, or "
        "else the default of the template).")
    reasoning_effort: str = option(
        "", "--reasoning-effort", section="chat",
        help="Reasoning effort for chat templates that support it: low, medium, high, or another value of the "
        "template.")


FLAGS: dict[str, Flag] = {each.name: each.metadata["flag"] for each in fields(Options)}
CONSTRAINT_OPTIONS = tuple(
    name for name, flag in FLAGS.items() if flag.section == "structured" and name != "close_at_limit"
)
