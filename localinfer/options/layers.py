"""Layers of option values, and their merge into one `Options`."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import asdict

from localinfer.errors import LocalInferError, UsageError
from localinfer.options.flag import Value
from localinfer.options.syntax import NO_ADAPTERS, parse_adapter_scale, parse_sampler_sequence, parse_samplers
from localinfer.options.table import CONSTRAINT_OPTIONS, FLAGS, Options

Layer = dict[str, Value]

# A layer that sets one option of a group overrides the whole group in weaker layers.
EXCLUSIVE_OPTIONS = (
    ("samplers", "sampler_seq"), ("mmproj", "mmproj_auto"), ("rope_scale", "rope_freq_scale"),
    ("diffusion_eps", "diffusion_block_length"), CONSTRAINT_OPTIONS,
)  # fmt: skip
# Names of the same options in transformers, vLLM, mlx-lm and llama-cpp-python.
KEYWORD_ALIASES = {
    "max_tokens": "n_predict",
    "max_new_tokens": "n_predict",
    "temperature": "temp",
    "repetition_penalty": "repeat_penalty",
    "num_beams": "beams",
    "n_ctx": "ctx_size",
    "n_threads": "threads",
    "kv_overrides": "override_kv",
}
METADATA_KEYS = {
    "general.sampling.sequence": "samplers",
    "general.sampling.temp": "temp",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
    "general.sampling.mirostat": "mirostat",
    "general.sampling.mirostat_tau": "mirostat_ent",
    "general.sampling.mirostat_eta": "mirostat_lr",
    "general.sampling.penalty_last_n": "repeat_last_n",
    "general.sampling.penalty_repeat": "repeat_penalty",
}


def combine(*layers: Mapping[str, Value]) -> Layer:
    """Combine layers into one; if two layers set the same option, or options of a group, the earlier layer wins."""
    values: Layer = {}
    for layer in reversed(layers):
        for group in EXCLUSIVE_OPTIONS:
            if not layer.keys().isdisjoint(group):
                for name in group:
                    values.pop(name, None)
        values.update(layer)
    return values


def merge(*layers: Mapping[str, Value]) -> Options:
    """Merge checked layers into one `Options`, as `combine` does.

    Raises UsageError if two values contradict each other.
    """
    options = Options(**combine(*layers))  # type: ignore[arg-type]  # each layer was checked when it was made
    n_min, n_max = options.spec_draft_n_min, options.spec_draft_n_max
    if n_min > n_max:
        raise UsageError(f"spec_draft_n_min: {n_min} is larger than spec_draft_n_max, which is {n_max}")
    if options.rope_scale and options.rope_freq_scale:
        raise UsageError("rope_freq_scale: sets the same as rope_scale, its inverse")
    if options.diffusion_eps and options.diffusion_block_length:
        raise UsageError("diffusion_eps: cannot be combined with diffusion_block_length, the other schedule")
    if options.memory and (options.mlock or not options.mmap):
        other = "--mlock" if options.mlock else "--no-mmap"
        raise UsageError(f"memory (--memory): cannot be combined with {other}, which keeps all weights in memory")
    least, most = options.image_min_tokens, options.image_max_tokens
    if 0 < most < least:
        raise UsageError(f"image_min_tokens: {least} is larger than image_max_tokens, which is {most}")
    return options


def validate(options: Options) -> Options:
    """Return the options in their exact types. Raises UsageError naming the flag of the first invalid one."""
    return merge(from_flags(asdict(options)))


def scales_of_run(options: Options, default: tuple[float, ...]) -> tuple[float, ...]:
    """Return the scale of each LoRA adapter in a run with these options: `default`, unless the options have any.

    Raises UsageError for an adapter that the model does not have.
    """
    given = dict(parse_adapter_scale(text) for text in options.lora_scales if text != NO_ADAPTERS)
    if unknown := given.keys() - set(range(len(default))):
        raise UsageError(f"lora_scales: there is no adapter {min(unknown)}; the model has {len(default)}")
    return tuple(given.get(number, 0.0) for number in range(len(default))) if options.lora_scales else default


def chosen_samplers(options: Options) -> tuple[str, ...]:
    """Return the names of the sampler chain, in the order in which the samplers are applied."""
    if options.sampler_seq:
        return parse_sampler_sequence(options.sampler_seq)
    return parse_samplers(options.samplers)


def from_flags(given: Mapping[str, object]) -> Layer:
    """Return the layer of the command line; None means not given. Raises UsageError naming the flag."""
    present = {name: value for name, value in given.items() if value is not None}
    return check_values(present, lambda name: FLAGS[name].long_name)


def from_keywords(given: Mapping[str, object]) -> Layer:
    """Return the layer of a call in Python, whose keywords may be `KEYWORD_ALIASES`.

    Raises UsageError naming the keyword.
    """
    layer: Layer = {}
    for keyword, value in given.items():
        name = KEYWORD_ALIASES.get(keyword, keyword)
        if name in layer:
            raise UsageError(f"{keyword}: means the same as another keyword of this call")
        layer |= check_values({name: value}, lambda _, keyword=keyword: keyword)  # type: ignore[misc]
    return layer


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Return the layer of the LOCALINFER_* variables; empty ones are ignored. Raises UsageError naming the variable."""
    layer: Layer = {}
    for name, flag in FLAGS.items():
        text = environ.get(flag.environment_variable, "")
        if text:
            layer |= check_values({name: text}, lambda name: FLAGS[name].environment_variable, texts=True)
    return layer


def from_registry(given: Mapping[str, object], where: str) -> Layer:
    """Return the layer of a model's `options` in models.toml.

    Raises UsageError naming `where` (file and model) and the option.
    """
    return check_values(given, lambda name: f"{where}: options.{name}")


def from_metadata(metadata: Mapping[str, object], path: object) -> Layer:
    """Return the layer of the model file's `general.sampling.*` keys. Raises LocalInferError naming file and key."""
    given = {name: metadata[key] for key, name in METADATA_KEYS.items() if key in metadata}
    keys = {name: key for key, name in METADATA_KEYS.items()}
    return check_values(given, lambda name: f"{path}: {keys[name]}", LocalInferError)


def check_values(given: Mapping[str, object], display_name: Callable[[str], str],
                 error: type[LocalInferError] = UsageError, *, texts: bool = False) -> Layer:
    """Return the values in the types of their options. Raises `error` for the first invalid one.

    `display_name` maps the name of a field to the name that the user sees. With `texts` the values are
    strings that are parsed first.
    """
    layer: Layer = {}
    for name, value in given.items():
        if name not in FLAGS:
            raise error(f"{display_name(name)}: {unknown_option_message(name)}")
        flag = FLAGS[name]
        try:
            layer[name] = flag.check(flag.parse(str(value)) if texts else value)
        except ValueError as problem:
            raise error(f"{display_name(name)}: {problem}") from None
    return layer


def unknown_option_message(name: str) -> str:
    near = difflib.get_close_matches(name, FLAGS, n=1)
    return "no such option" + (f"; did you mean {near[0]}?" if near else "")
