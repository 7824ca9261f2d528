"""What running a model needs: the kernels to compile, and memory."""

from localinfer.errors import NotEnoughMemoryError
from localinfer.gguf.reader import GGUF
from localinfer.kernels.bpe_signatures import tokenizer_kernels
from localinfer.machine import resources
from localinfer.options import Options
from localinfer.runtime.graph_building import NO_EXTENSIONS, Extensions, build_graph
from localinfer.runtime.thread_pool import POOL_KERNELS
from quant.jit.kernel import Kernel


def required_kernels(f: GGUF, options: Options, extensions: Extensions = NO_EXTENSIONS) -> list[Kernel]:
    """Return the kernels that running this file needs, without duplicates."""
    graph = build_graph(f, options, extensions).graph
    kernels = *graph.kernels(large_batch=False), *graph.kernels(large_batch=True)
    return list(dict.fromkeys([*POOL_KERNELS, *kernels_of_tokenizer(f), *kernels]))


def kernels_of_tokenizer(f: GGUF) -> tuple[Kernel, ...]:
    """Return the kernels of the model's tokenizer, which are compiled side by side with those of its graph."""
    return tokenizer_kernels(f.get("tokenizer.ggml.model", str, ""))


def memory_requirements(f: GGUF, options: Options) -> dict[str, int]:
    """Return the bytes that running this file takes: weights (mapped or read), KV cache and scratch memory."""
    model_graph = build_graph(f, options)
    kv = model_graph.cache_bytes
    weights = sum(tensor.nbytes for tensor in f.tensors.values()) if options.mmap else f.size
    return {"weights": weights, "kv": kv, "scratch": model_graph.graph.nbytes - kv}


def require_memory(f: GGUF, needed: int, n_ctx: int) -> None:
    """Raise NotEnoughMemoryError before memory is allocated that the machine does not have."""
    available = resources.available_memory()
    if needed > available:
        what = f"{n_ctx} tokens need {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available"
        raise f.error("context", f"{what}; ctx_size (--ctx-size) sets a smaller one", NotEnoughMemoryError)
