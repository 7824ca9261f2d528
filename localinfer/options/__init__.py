"""The options of models and runs: one table that defines the command line, the environment and the Python API.

`table.py` has the dataclass `Options` with every flag, `flag.py` the specification of a flag, `syntax.py` the parsers
of values with a syntax of their own, and `layers.py` the merge. The package imports neither numpy nor a model.

`Options` are merged from layers, each a dict of values by field name. Precedence, highest first:

    the command line, or keywords in Python       from_flags, from_keywords
    environment variables, LOCALINFER_*           from_environment
    the user's models.toml, then the built-in     from_registry
    the model file's general.sampling.* keys      from_metadata
    the defaults of `Options`

Every layer is checked when it is made, so that an error names the place where the user wrote the invalid value.
"""

from localinfer.options.flag import Flag, Section, Value, format_value
from localinfer.options.layers import (
    METADATA_KEYS,
    Layer,
    check_values,
    chosen_samplers,
    combine,
    from_environment,
    from_flags,
    from_keywords,
    from_metadata,
    from_registry,
    merge,
    scales_of_run,
    unknown_option_message,
    validate,
)
from localinfer.options.syntax import (
    DEFAULT_SAMPLERS,
    MAX_SCALE,
    NO_ADAPTERS,
    SAMPLERS,
    SPECULATION_TYPES,
    parse_adapter_scale,
    parse_bytes,
    parse_layer_range,
    parse_logit_bias,
    parse_memory,
    parse_sampler_sequence,
    parse_samplers,
    parse_scaled_file,
    parse_speculation_types,
)
from localinfer.options.table import CHUNK_SIZE, CONSTRAINT_OPTIONS, FLAGS, RANDOM_SEED, CacheType, Options, Precision

__all__ = [
    "CHUNK_SIZE", "CONSTRAINT_OPTIONS", "DEFAULT_SAMPLERS", "FLAGS", "MAX_SCALE", "METADATA_KEYS", "NO_ADAPTERS",
    "RANDOM_SEED", "SAMPLERS", "SPECULATION_TYPES", "CacheType", "Flag", "Layer", "Options", "Precision", "Section",
    "Value", "check_values", "chosen_samplers", "combine", "format_value", "from_environment", "from_flags",
    "from_keywords", "from_metadata", "from_registry", "merge", "parse_adapter_scale", "parse_bytes",
    "parse_layer_range", "parse_logit_bias", "parse_memory", "parse_sampler_sequence", "parse_samplers",
    "parse_scaled_file", "parse_speculation_types", "scales_of_run", "unknown_option_message", "validate",
]  # fmt: skip
