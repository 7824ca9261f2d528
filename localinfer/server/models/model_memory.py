"""The memory that a model needs, before it is loaded."""

import os
from dataclasses import replace

from localinfer.adapters import open_adapters
from localinfer.architectures import DRAFT_HEADS
from localinfer.gguf.overrides import open_overridden
from localinfer.gguf.reader import open_gguf
from localinfer.hub import resolve
from localinfer.options import Layer, from_environment, from_keywords, from_metadata, merge, parse_memory


def required_bytes(source: str, given: Layer) -> int:
    """Return the bytes of the weights, the KV cache and the scratch memory of a model, its adapters and its draft
    model.

    `given` are the keywords of `localinfer.load`. Raises what `load` raises for an invalid file.
    """
    from localinfer.runtime.memory_limit import has_experts
    from localinfer.runtime.requirements import memory_requirements

    layers = from_keywords(given), from_environment(os.environ), resolve.default_options(source)
    f = open_overridden(resolve.find(source), merge(*layers))
    options = merge(*layers, from_metadata(f.metadata, f.path))
    needed, adapters = sum(memory_requirements(f, options).values()), open_adapters(f, options)
    if options.memory and has_experts(f):
        needed = min(needed, parse_memory(options.memory))
    needed += adapters.nbytes if adapters else 0
    if options.spec_draft_model:
        draft = open_gguf(resolve.find(options.spec_draft_model))
        is_head = draft.architecture in DRAFT_HEADS
        own = replace(options, ctx_size=options.ctx_size_draft or options.ctx_size)
        needed += draft.size if is_head else sum(memory_requirements(draft, own).values())
    return needed
