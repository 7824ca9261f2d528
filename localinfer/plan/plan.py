"""A forward pass, recorded once: a flat list of ops over memory that is reserved before the first token.

Recording allocates nothing and compiles nothing, so that a plan can also be asked what it would need. `Plan.ready`
then takes the memory and writes the op records that the executor (`localinfer.ops.execute`) runs through.
Knows kernels by name only, and nothing of models, tokens or threads' lives.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.files.gguf import Tensor
from localinfer.plan.work import NOTHING_TO_DO, Amount, Work
from quant import FORMATS
from quant.jit.cpu import target
from quant.jit.kernel import Constants, Kernel, kernel_of
from quant.jit.record import HEADER_WORDS, NEXT, RECORD_WORDS
from quant.products.layout import flat_bytes, matmul_scratch_bytes, tiled_bytes

ALIGNMENT = 64
MOST_ROUNDS = 8  # parts of a thread's share: the others wait for no more than the last one of a slow thread
PART_BYTES = 1 << 16  # a part of a matrix for few tokens has at least so many bytes: some 3 us
PART_PANELS = 2  # and for many tokens, panels of rows: some 10 us
FEW = 2  # the most tokens that are decoded row by row; more are worth unpacking the weights for


@dataclass(eq=False)
class Region:
    """Memory that a plan needs: counted when recorded, taken when the plan is made ready."""

    nbytes: int
    array: NDArray[np.uint8] | None = None
    _views: dict[type[np.generic], NDArray[Any]] = field(default_factory=dict)

    def allocate(self) -> None:
        """Take zeroed memory, aligned to a cache line; the system gives pages when they are first touched."""
        raw = np.zeros(self.nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self.array = raw[start : start + self.nbytes]

    @property
    def address(self) -> int:
        """Where it lies."""
        assert self.array is not None, "the plan is not ready"
        return self.array.ctypes.data

    def view(self, dtype: type[np.generic]) -> NDArray[Any]:
        """Its contents as numbers."""
        if dtype not in self._views:
            assert self.array is not None, "the plan is not ready"
            self._views[dtype] = self.array.view(dtype)
        return self._views[dtype]


@dataclass(eq=False)
class Twin:
    """A buffer in another form; at address 0, which tells its maker not to bother, unless somebody reads it."""

    nbytes: int
    region: Region | None = None


@dataclass(eq=False)
class Buffer:
    """Activations, float32 [tokens][n], and their twins: quantized by their maker, rounded to bfloat16 by an op."""

    floats: Region
    n: int
    quantized: Twin
    rounded: Twin
    rows: Region  # where the number of its tokens stands
    is_rounded: bool = False  # by an op that is recorded behind its maker


COUNTED_AS = {"quantized": "dots", "f32": "fmas", "bf16": "pairs"}  # products, by what they take

NOTHING: Constants = {}
Argument = int | float | Region | Twin | Buffer | Tensor
Rounds = tuple[int, int]  # the parts of an op for each thread, for few tokens and for many; 0: too small to share


@dataclass(frozen=True)
class Op:
    """One kernel call: `few` and `many` are the same work for few and for many tokens."""

    name: str
    few: Kernel
    many: Kernel
    tokens: Region
    arguments: tuple[Argument, ...]
    rounds: Rounds
    meet: bool  # whether what follows needs this to be finished
    work: Work


@dataclass(frozen=True)
class Product:
    """A matrix product: the number of the op that begins its stage, the weight, and what that is multiplied with."""

    stage: int
    weight: Tensor
    x: Buffer


@dataclass(eq=False)
class Plan:
    """The recorder. `batch` tokens go through at most at a time, `outputs` rows of logits come out; `threads` share the
    work on a few tokens, `threads_batch` that on many.

    Activations are rounded to 8 bits and multiplied in one pass, or to 15 and multiplied in two, where weights are not
    numbers already.
    """

    batch: int
    outputs: int
    threads: int
    threads_batch: int
    passes: int
    ops: list[Op] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    scratch_bytes: int = 0

    def __post_init__(self) -> None:
        self.tokens, self.picked, self.stop = (self.region(8) for _ in range(3))
        self.scratch = Region(0)
        self._made: list[Buffer] = []
        self._spare: dict[tuple[int, Region], list[Buffer]] = defaultdict(list)

    def region(self, nbytes: int) -> Region:
        """Memory that every run of the plan can use."""
        self.regions.append(Region(nbytes))
        return self.regions[-1]

    def buffer(self, n: int, tokens: Region | None = None) -> Buffer:
        """Room for activations of n values, for as many tokens as `tokens` can count."""
        counted = self.tokens if tokens is None else tokens
        spare = self._spare[n, counted]
        self._made.append(spare.pop(0) if spare else self._new_buffer(n, counted))
        self._made[-1].is_rounded = False
        return self._made[-1]

    def _new_buffer(self, n: int, counted: Region) -> Buffer:
        capacity = self.outputs if counted is self.picked else self.batch
        few = min(capacity, FEW)
        padded = -(-capacity // target().tokens) * target().tokens
        quantized = max(padded * tiled_bytes(n, self.passes), few * flat_bytes(n, self.passes))
        return Buffer(self.region(4 * n * capacity), n, Twin(quantized), Twin(2 * n * capacity), counted)

    @property
    def layouts(self) -> tuple[Constants, Constants]:
        """The constants of a kernel that leaves quantized activations: flat for a few tokens, tiled for many."""
        return {"tile": 0, "passes": self.passes}, {"tile": target().tokens, "passes": self.passes}

    @contextmanager
    def recycling(self) -> Iterator[None]:
        """Buffers made inside are free for others afterwards."""
        before, self._made = self._made, []
        yield
        for buffer in self._made:
            self._spare[buffer.n, buffer.rows].append(buffer)
        self._made = before

    def need_scratch(self, nbytes: int) -> None:
        """Make sure that every thread has that much memory to itself."""
        self.scratch_bytes = max(self.scratch_bytes, -(-nbytes // ALIGNMENT) * ALIGNMENT)

    def op(
        self,
        name: str,
        function: str | tuple[str, str],
        tokens: Region,
        arguments: Mapping[str, Argument],
        *,
        constants: Constants | tuple[Constants, Constants] = NOTHING,
        rounds: Rounds = (0, 1),
        meet: bool = True,
        work: Work | None = None,
    ) -> None:
        """Record a kernel `module:function`, or a pair of them, for few and for many tokens; constants likewise.

        `rounds` says how finely it is shared; ops that do not `meet` must be shared alike, or not at all. Its work is
        to read the tensors among its arguments, unless `work` says otherwise.
        """
        functions = (function, function) if isinstance(function, str) else function
        compiled_in = (constants, constants) if isinstance(constants, Mapping) else constants
        floats = frozenset(key for key, value in arguments.items() if isinstance(value, float))
        few, many = (
            kernel_of(path, tuple(arguments), floats, inside)
            for path, inside in zip(functions, compiled_in, strict=True)
        )
        read = sum(argument.nbytes for argument in arguments.values() if isinstance(argument, Tensor))
        done = work or Work(Amount(read))
        self.ops.append(Op(name, few, many, tokens, tuple(arguments.values()), rounds, meet, done))

    def matmul(self, x: Buffer, weight: Tensor, *, add_to: Buffer | None = None, meet: bool = True) -> Buffer:
        """Record y = weight . x, or add_to += weight . x; weight is (n_out, n_in)."""
        n_out, n_in = weight.shape
        fmt = FORMATS[weight.type]
        y = add_to or self.buffer(n_out, x.rows)
        takes = fmt.takes(self.passes)
        self.need_scratch(matmul_scratch_bytes(n_in))
        arguments: dict[str, Argument] = {
            "tokens": x.rows,
            "x": self._source(x, weight, takes),
            "w": weight,
            "row_bytes": weight.nbytes // n_out,
            "n_in": n_in,
            "n_out": n_out,
            "y": y,
            "y_stride": 4 * y.n,
            "add": int(add_to is not None),
            "stop": self.stop,
        }
        work = Work(Amount(weight.nbytes), Amount(**{COUNTED_AS[takes]: weight.n_elements}))
        few, many = PART_BYTES * self.threads, PART_PANELS * target().rows * self.threads_batch
        rounds = rounds_of(weight.nbytes // few, self.threads), rounds_of(n_out // many, self.threads_batch)
        stage = next((number for number in range(len(self.ops), 0, -1) if self.ops[number - 1].meet), 0)
        self.products.append(Product(stage, weight, x))
        self.op(
            weight.name,
            fmt.products,
            x.rows,
            arguments,
            constants=fmt.constants(self.passes),
            rounds=rounds,
            meet=meet,
            work=work,
        )
        return y

    def _source(self, x: Buffer, weight: Tensor, takes: str) -> Argument:
        """What a product with that weight reads of x."""
        if takes == "f32":
            return x
        twin = x.quantized if takes == "quantized" else x.rounded
        twin.region = twin.region or self.region(twin.nbytes)
        if twin is x.rounded and not x.is_rounded:
            self._round(x, ".".join([*weight.name.split(".")[:-2], "rounded"]))
        return twin

    def _round(self, x: Buffer, name: str) -> None:
        """Record the op that makes the twin in bfloat16. Nobody shares it among few tokens, unless it stands between
        products that run side by side: those must be shared alike."""
        before, x.is_rounded = self.ops[-1], True
        few = 0 if before.meet else min(before.rounds[0], 1)
        arguments: dict[str, Argument] = {"tokens": x.rows, "x": x, "n": x.n, "y": x.rounded}
        self.op(name, "quant.formats.floats:to_bf16", x.rows, arguments, rounds=(few, 4))

    # --- after recording ---

    @property
    def kernels(self) -> list[Kernel]:
        """Everything that has to be compiled: without the kernels for many tokens where there are never many."""
        return [kernel for op in self.ops for kernel in ((op.few, op.many) if self.batch > FEW else (op.few,))]

    @property
    def nbytes(self) -> int:
        """The memory of everything but the weights."""
        return sum(region.nbytes for region in self.regions) + self.scratch_bytes * self.members

    def amounts(self, tokens: int, past: int, outputs: int) -> list[Amount]:
        """What each op does for a batch of tokens behind `past` others, with logits after `outputs` of them."""
        return [op.work.amount(outputs if op.tokens is self.picked else tokens, past) for op in self.ops]

    def amount(self, tokens: int, past: int, outputs: int) -> Amount:
        """What all ops do together."""
        return sum(self.amounts(tokens, past, outputs), NOTHING_TO_DO)

    @property
    def members(self) -> int:
        """The threads that there must be."""
        return max(self.threads, self.threads_batch)

    @property
    def scratches(self) -> list[int]:
        """Where the memory lies that each thread has to itself."""
        return [self.scratch.address + self.scratch_bytes * member for member in range(self.members)]

    def ready(self, addresses: Mapping[Kernel, int]) -> NDArray[np.int64]:
        """Take the memory; the op records, one row each."""
        self.scratch.nbytes = self.scratch_bytes * self.members
        for region in [*self.regions, self.scratch]:
            region.allocate()
        program = np.zeros((len(self.ops), RECORD_WORDS), np.int64)
        for record, op in zip(program, self.ops, strict=True):
            record[: NEXT // 8] = addresses[op.few], addresses.get(op.many, 0), *op.rounds, op.tokens.address
            words = [self._word(argument) for argument in op.arguments]
            record[HEADER_WORDS : HEADER_WORDS + len(words)] = words
        program[:, NEXT // 8] = self._next_stages()
        return program

    def _next_stages(self) -> NDArray[np.int64]:
        """For each op, the number of the one that begins the next stage: the one after the next that meets."""
        ends = [number + 1 for number, op in enumerate(self.ops) if op.meet]
        return np.array(ends)[np.searchsorted(ends, np.arange(len(self.ops)), "right")]

    def _word(self, argument: Argument) -> int:
        """An argument as it stands in an op record."""
        if isinstance(argument, float):
            return int.from_bytes(struct.pack("<d", argument), "little", signed=True)
        if isinstance(argument, Region):
            return argument.address
        if isinstance(argument, Twin):
            return argument.region.address if argument.region else 0
        if isinstance(argument, Buffer):
            return argument.floats.address
        if isinstance(argument, Tensor):
            return argument.data.ctypes.data
        return argument


def rounds_of(parts: int, threads: int) -> int:
    """Into how many parts a thread's share is cut, if so many are large enough: several, so that others can take some
    from a thread that is slow."""
    return max(1, min(parts, MOST_ROUNDS)) if threads > 1 else 1
