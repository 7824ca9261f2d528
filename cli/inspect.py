"""`localinfer inspect`: what a model file says, what it holds, and how much memory running it takes.

The text in a file is a stranger's: whatever is printed has its control characters escaped, and no markup in
it means anything. The weights are not read.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import typer

from cli import screen
from cli.flags import ModelArgument, given, option
from cli.loading import fetched
from cli.tables import table
from localinfer.errors import Unsupported
from localinfer.files.gguf import GGUF, StringArray, Tensor, Value, open_gguf
from localinfer.options import Options, from_environment, merge
from localinfer.prompt.choice import own_keys
from localinfer.text import printable

TEMPLATE = "tokenizer.chat_template"
FIRST = 5  # values of an array that are shown
WIDEST = 100  # characters of a value that are shown

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def inspect_command(
    model: ModelArgument,
    ctx_size: Annotated[str | None, option("ctx_size")] = None,
    cache_type_k: Annotated[str | None, option("cache_type_k")] = None,
    cache_type_v: Annotated[str | None, option("cache_type_v")] = None,
    mmap: Annotated[bool | None, option("mmap")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what is in a model file, and the memory that a context takes."""
    typed: dict[str, object] = {
        "ctx_size": ctx_size, "cache_type_k": cache_type_k, "cache_type_v": cache_type_v, "mmap": mmap,
    }  # fmt: skip
    inspect(fetched(model, screen.Status()), merge(given(typed), from_environment(os.environ)), as_json)


def inspect(path: Path, options: Options, as_json: bool) -> None:
    """Print the report of a file to stdout.

    Raises LocalInferError, before anything is printed, for a file that is broken; one that only is not
    supported is shown, without the memory that it would take.
    """
    f = open_gguf(path)
    memory = memory_for(f, options)
    if as_json:
        print(json.dumps(as_object(f, memory), indent=1))
    else:
        print("\n".join(as_text(f, memory)))


@dataclass(frozen=True)
class Memory:
    """Bytes by purpose for a context of `ctx_size` tokens (0: the default one), or why there are none. At least, there
    must be room for the weights `of_a_token`: in a mapped file those that one is multiplied with, as others may stay on
    the disk."""

    ctx_size: int
    parts: dict[str, int]
    of_a_token: int = 0
    problem: str = ""

    @property
    def least(self) -> int:
        return self.total - self.parts.get("weights", 0) + self.of_a_token

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def memory_for(f: GGUF, options: Options) -> Memory:
    from localinfer.engine.program import memory_plan
    from localinfer.plan.experts import of_a_token

    try:
        plan = memory_plan(f, options)
        return Memory(options.ctx_size, plan, of_a_token(f)[1] if options.mmap else plan["weights"])
    except Unsupported as error:
        return Memory(options.ctx_size, {}, problem=printable(str(error)))


def parameters(f: GGUF) -> dict[str, int]:
    """How many there are; and of a mixture of experts, how many a token is multiplied with."""
    from localinfer.plan.experts import of_a_token

    total, active = sum(tensor.n_elements for tensor in f.tensors.values()), of_a_token(f)[0]
    return {"total": total} if active == total else {"total": total, "active": active}


@dataclass(frozen=True)
class Share:
    """All tensors of one type."""

    type_name: str
    tensors: list[Tensor]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / sum(tensor.n_elements for tensor in self.tensors)


def shares(f: GGUF) -> list[Share]:
    """The histogram of types, the one with the most bytes first."""
    by_type: dict[str, list[Tensor]] = {}
    for tensor in f.tensors.values():
        by_type.setdefault(tensor.type_name, []).append(tensor)
    return sorted((Share(*item) for item in by_type.items()), key=lambda share: -share.nbytes)


def sha256(template: str) -> str:
    return hashlib.sha256(template.encode()).hexdigest()


# ---------------------------------------------------------------------------------------- for readers


def as_text(f: GGUF, memory: Memory) -> Iterator[str]:
    """The lines of the report."""
    yield printable(str(f.path))
    files = f" in {len(f.files)} files" * (len(f.files) > 1)
    yield f"GGUF version {f.version}, {f.size:,} bytes{files}, {len(f.metadata)} keys, {len(f.tensors)} tensors"
    if f.trailing:
        yield f"{f.trailing:,} bytes behind the last tensor belong to nothing"
    yield from table("metadata", "<<", [(printable(key, WIDEST), shown(f.metadata[key])) for key in f.metadata])
    yield from table("tensors", "<<<>", map(tensor_row, f.tensors.values()))
    yield from table("types", "<>>>", map(share_row, shares(f)))
    yield from table("parameters", "<>", [(name, f"{number:,}") for name, number in parameters(f).items()])
    yield from table(memory_title(memory), "<>", memory_rows(memory))
    yield from template_lines(f)


def shown(value: Value) -> str:
    """A metadata value as one short line."""
    if isinstance(value, StringArray):
        first = ", ".join(f'"{printable(text, WIDEST // FIRST)}"' for text in islice(value, FIRST))
        return f"{len(value):,} string{'s' * (len(value) != 1)}: {first}{', ...' * (len(value) > FIRST)}"
    if isinstance(value, np.ndarray):
        first = ", ".join(f"{number:.7g}" for number in value[:FIRST].tolist())
        return f"{len(value):,} {value.dtype.name}: {first}{', ...' * (len(value) > FIRST)}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return printable(value, WIDEST)
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def tensor_row(tensor: Tensor) -> Sequence[str]:
    shape = " x ".join(map(str, tensor.shape))
    return printable(tensor.name), shape, tensor.type_name, f"{tensor.nbytes:,} bytes"


def share_row(share: Share) -> Sequence[str]:
    count, bits = len(share.tensors), share.bits_per_weight
    return share.type_name, f"{count:,} tensors", f"{share.nbytes:,} bytes", f"{bits:.2f} bits a weight"


def memory_title(memory: Memory) -> str:
    tokens = f"a context of {memory.ctx_size:,} tokens" if memory.ctx_size else "the default context"
    return f"memory for {tokens}"


def memory_rows(memory: Memory) -> Iterator[Sequence[str]]:
    if memory.problem:
        yield "not known", memory.problem
        return
    for name, n_bytes in memory.parts.items():
        yield name, f"{n_bytes:,} bytes"
    yield "together", f"{memory.total:,} bytes"
    if memory.least < memory.total:
        yield "at least", f"{memory.least:,} bytes"


def template_lines(f: GGUF) -> Iterator[str]:
    """The chat template as it is written; what could move a cursor is escaped line by line."""
    for name, key in own_keys(f).items():
        template = f.get(key, str)
        yield from ("", f"chat template{'' if name == 'default' else f' {printable(name)}'}, sha256 {sha256(template)}")
        yield from (f"  {printable(line)}" for line in template.split("\n"))


# --------------------------------------------------------------------------------------- for machines


def as_object(f: GGUF, memory: Memory) -> dict[str, Json]:
    """The report for JSON: sizes in bytes, shapes as numpy has them, arrays by length and first values."""
    template = f.get(TEMPLATE, str, "")
    return {
        "path": valid_text(str(f.path)),
        "files": [valid_text(str(file.path)) for file in f.files],
        "version": f.version,
        "size": f.size,
        "alignment": f.alignment,
        "data_offset": f.data_offset,
        "trailing": f.trailing,
        "metadata": {key: as_json_value(value) for key, value in f.metadata.items()},
        "chat_template_sha256": sha256(template) if template else None,
        "tensors": [tensor_object(tensor) for tensor in f.tensors.values()],
        "types": {share.type_name: share_object(share) for share in shares(f)},
        "parameters": {**parameters(f)},
        "memory": None if memory.problem else memory_object(memory),
        "memory_problem": memory.problem or None,
    }


def memory_object(memory: Memory) -> Json:
    return {"ctx_size": memory.ctx_size, **memory.parts, "total": memory.total, "least": memory.least}


def as_json_value(value: Value) -> Json:
    if isinstance(value, StringArray):
        strings: list[Json] = [text.decode("utf-8", "backslashreplace") for text in islice(value, FIRST)]
        return {"array": "string", "length": len(value), "first": strings}
    if isinstance(value, np.ndarray):
        numbers: list[Json] = [finite(number) for number in value[:FIRST].tolist()]
        return {"array": value.dtype.name, "length": len(value), "first": numbers}
    return valid_text(value) if isinstance(value, str) else finite(value)


def tensor_object(tensor: Tensor) -> Json:
    shape: list[Json] = [*tensor.shape]
    return {
        "name": tensor.name,
        "shape": shape,
        "type": tensor.type_name,
        "bytes": tensor.nbytes,
        "file": tensor.part,
        "offset": tensor.offset,
    }


def share_object(share: Share) -> Json:
    return {"tensors": len(share.tensors), "bytes": share.nbytes, "bits_per_weight": share.bits_per_weight}


def finite(number: float) -> int | float | str:
    """JSON has no NaN and no infinity: they become texts."""
    return number if math.isfinite(number) else str(number)


def valid_text(text: str) -> str:
    """Bytes that were not UTF-8 become `\\xff`; JSON escapes the rest."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
