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

import numpy as np
from numpy.typing import NDArray

from localinfer.files.gguf import Tensor
from localinfer.ops.calls import EXPERTS, PRODUCT, QUANTIZE, TO_BF16, Call
from localinfer.plan.buffers import ALIGNMENT, Buffer, Form, Region, Rows
from localinfer.plan.work import NOTHING_TO_DO, Amount, Work
from quant import FORMATS
from quant.jit.cpu import target
from quant.jit.kernel import Constants, Kernel, kernel_of
from quant.jit.record import HEADER_WORDS, NEXT, RECORD_WORDS
from quant.products.layout import flat_bytes, matmul_scratch_bytes, tiled_bytes

MOST_ROUNDS = 8  # parts of a thread's share: the others wait for no more than the last one of a slow thread
PART_BYTES = 1 << 16  # a part of a matrix for few tokens has at least so many bytes: some 3 us
PART_PANELS = 2  # and for many tokens, panels of rows: some 10 us
FEW = 4  # the most tokens that are decoded row by row; more are worth unpacking the weights for

COUNTED_AS = {"quantized": "dots", "f32": "fmas", "bf16": "pairs"}  # products, by what they take

NOTHING: Constants = {}
Argument = int | float | Region | Rows | Form | Buffer | Tensor
Rounds = tuple[int, int]  # the parts of an op for each thread, for few tokens and for many; 0: too small to share


@dataclass(frozen=True)
class Op:
    """One kernel call: `few` and `many` are the same work for few and for many rows. It writes `writes`."""

    name: str
    few: Kernel
    many: Kernel
    rows: Rows
    arguments: tuple[Argument, ...]
    writes: tuple[Argument, ...]
    rounds: Rounds
    meet: bool  # whether what follows needs this to be finished
    work: Work


@dataclass(frozen=True)
class Product:
    """A matrix product: the number of the op that begins its stage, the weight, and what that is multiplied with; of
    many matrices, with the runs of rows that meet each (`quant.products.experts`)."""

    stage: int
    weight: Tensor
    x: Buffer
    runs: Region | None = None


@dataclass(eq=False)
class Plan:
    """The recorder. `batch` tokens of up to so many `sequences` go through at most at a time, `outputs` rows of logits
    come out; `threads` share the work on a few tokens, `threads_batch` that on many.

    Activations are rounded to 8 bits and multiplied in one pass, or to 15 and multiplied in two, where weights are not
    numbers already.
    """

    batch: int
    outputs: int
    threads: int
    threads_batch: int
    passes: int
    sequences: int = 1
    ops: list[Op] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    scratch_bytes: int = 0

    def __post_init__(self) -> None:
        self.tokens, self.picked = self.rows(self.batch), self.rows(self.outputs)
        self.stop, self.scratch = self.region(8), Region(0)
        self._made: list[Buffer] = []
        self._spare: dict[tuple[int, Rows], list[Buffer]] = defaultdict(list)

    def region(self, nbytes: int) -> Region:
        """Memory that every run of the plan can use."""
        self.regions.append(Region(nbytes))
        return self.regions[-1]

    def rows(self, capacity: int, few: int = FEW, tokens: Rows | None = None) -> Rows:
        """A number of rows that is known when the plan runs, at most `capacity`, and `few` when there are few `tokens`,
        which are these rows themselves if not said otherwise."""
        region = self.region(8)
        return Rows(region, capacity, min(few, capacity), tokens.region if tokens else region)

    def buffer(self, n: int, rows: Rows | None = None) -> Buffer:
        """Room for n activations for each of `rows`: of all tokens, if not said otherwise."""
        counted = rows or self.tokens
        spare = self._spare[n, counted]
        self._made.append(spare.pop(0) if spare else self._new_buffer(n, counted))
        return self._made[-1]

    def _new_buffer(self, n: int, rows: Rows) -> Buffer:
        padded = -(-rows.capacity // target().tokens) * target().tokens
        quantized = max(padded * tiled_bytes(n, self.passes), rows.few * flat_bytes(n, self.passes))
        return Buffer(self.region(4 * n * rows.capacity), n, rows, Form(quantized), Form(2 * n * rows.capacity))

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
        call: Call,
        rows: Rows,
        *,
        constants: Constants | tuple[Constants, Constants] = NOTHING,
        rounds: Rounds = (0, 1),
        meet: bool = True,
        work: Work | None = None,
        **arguments: Argument,
    ) -> None:
        """Record a kernel call with these arguments, `tokens` being the number of rows. What is compiled into it may be
        a pair, for few and for many rows.

        `rounds` says how finely it is shared; ops that do not `meet` must be shared alike, or not at all. Its work is
        to read the tensors among its arguments, unless `work` says otherwise.
        """
        given = {"tokens": rows, **arguments}
        assert given.keys() == set(call.parameters), f"{name}: {set(call.parameters) ^ given.keys()}"
        inside = (constants, constants) if isinstance(constants, Mapping) else constants
        few, many = (
            kernel_of(path, call.parameters, call.floats, each)
            for path, each in zip((call.few, call.many), inside, strict=True)
        )
        read = sum(argument.nbytes for argument in arguments.values() if isinstance(argument, Tensor))
        ordered, written = (tuple(given[key] for key in keys) for keys in (call.parameters, call.writes))
        self.ops.append(Op(name, few, many, rows, ordered, written, rounds, meet, work or Work(Amount(read))))
        for buffer in written:
            if isinstance(buffer, Buffer):
                buffer.quantized.is_written = buffer.rounded.is_written = False
        for form in written:
            if isinstance(form, Form):
                form.is_written = True

    def matmul(
        self, x: Buffer, weight: Tensor, *, add_to: Buffer | None = None, bias: Tensor | None = None, meet: bool = True
    ) -> Buffer:
        """Record y = weight . x (+ bias), or add_to += weight . x; weight is (n_out, n_in), bias (n_out,)."""
        assert not (add_to and bias)
        n_out, n_in = weight.shape
        fmt, base = FORMATS[weight.type], add_to or bias
        y = add_to or self.buffer(n_out, x.rows)
        takes = fmt.takes(self.passes)
        self.need_scratch(matmul_scratch_bytes(n_in))
        work = Work(Amount(weight.nbytes), Amount(**{COUNTED_AS[takes]: weight.n_elements}))
        few, many = PART_BYTES * self.threads, PART_PANELS * target().rows * self.threads_batch
        source = self._source(x, weight, takes)
        self.products.append(Product(self._stage, weight, x))
        self.op(
            weight.name,
            PRODUCT.by(*fmt.products),
            x.rows,
            constants=fmt.constants(self.passes),
            rounds=(rounds_of(weight.nbytes // few, self.threads), rounds_of(n_out // many, self.threads_batch)),
            meet=meet,
            work=work,
            x=source,
            w=weight,
            row_bytes=weight.nbytes // n_out,
            n_in=n_in,
            n_out=n_out,
            base=base or 0,
            base_stride=4 * y.n if add_to else 0,
            y=y,
            y_stride=4 * y.n,
            stop=self.stop,
        )
        return y

    def expert_matmul(
        self, x: Buffer, weights: Tensor, runs: Region, used: int, bias: Tensor | None, *, tiled: bool, meet: bool
    ) -> Buffer:
        """Record y[row] = weights[expert of the row] . x[row] (+ bias[expert]); weights are (n_expert, n_out, n_in).

        `used` experts see each token. Rows are `tiled` for any number of tokens, or flat: then there may be others of
        the same tensor, and the work of these counts for all.
        """
        fmt, y, row = FORMATS[weights.type], self.buffer(weights.shape[1], x.rows), 4 * weights.shape[1]
        kernel = fmt.expert_products[tiled]
        places = {"y_row": row, "y_matrix": 0, "y_stride": row}
        self._products(x, weights, runs, used, bias, y, places, (kernel, kernel), counted=not tiled, meet=meet)
        return y

    def head_matmul(self, x: Buffer, weights: Tensor, runs: Region) -> Buffer:
        """Record y[token][head] = weights[head] . the head's rows of x; weights are (heads, n_out, n_in)."""
        fmt, (heads, n_out, _) = FORMATS[weights.type], weights.shape
        y = self.buffer(heads * n_out)
        places = {"y_row": 0, "y_matrix": 4 * n_out, "y_stride": 4 * y.n}
        self._products(x, weights, runs, heads, None, y, places, fmt.expert_products, counted=True, meet=True)
        return y

    def _products(
        self, x: Buffer, weights: Tensor, runs: Region, used: int, bias: Tensor | None, y: Buffer,
        places: Mapping[str, int], kernels: tuple[str, str], *, counted: bool, meet: bool,
    ) -> None:  # fmt: skip
        """Rows of x meet one of many matrices each, `used` of these for a token; `places` say where results go."""
        n_expert, n_out, n_in = weights.shape
        fmt = FORMATS[weights.type]
        takes, each = fmt.takes(self.passes), weights.nbytes // n_expert
        self.need_scratch(matmul_scratch_bytes(n_in))
        few, many = PART_BYTES * self.threads, PART_PANELS * target().rows * self.threads_batch
        rounds = rounds_of(used * each // few, self.threads), rounds_of(n_out // many, self.threads_batch)
        amount = Amount(used * each, **{COUNTED_AS[takes]: used * n_out * n_in})
        work = Work(token=amount, most_bytes=weights.nbytes) if counted else Work()
        source = self._source(x, weights, takes)
        self.products.append(Product(self._stage, weights, x, runs))
        self.op(
            weights.name,
            EXPERTS.by(*kernels),
            x.rows,
            constants=fmt.expert_constants(self.passes),
            rounds=rounds,
            meet=meet,
            work=work,
            runs=runs,
            x=source,
            w=weights,
            row_bytes=each // n_out,
            n_in=n_in,
            n_out=n_out,
            bias=bias or 0,
            y=y,
            stop=self.stop,
            **places,
        )

    @property
    def _stage(self) -> int:
        """The number of the op that begins the stage of the one that is recorded next."""
        return next((number for number in range(len(self.ops), 0, -1) if self.ops[number - 1].meet), 0)

    def _source(self, x: Buffer, weight: Tensor, takes: str) -> Argument:
        """What a product with that weight reads of x."""
        if takes == "f32":
            return x
        form = x.quantized if takes == "quantized" else x.rounded
        form.region = form.region or self.region(form.nbytes)
        if not form.is_written:
            self._convert(x, takes, weight.name.rpartition(".")[0])
        return form

    def _convert(self, x: Buffer, takes: str, product: str) -> None:
        """Record the op that makes another form of x, for a product and those behind it. Nobody shares it among few
        tokens, unless it stands between products that run side by side: those must be shared alike."""
        before = self.ops[-1]
        few = 0 if before.meet else min(before.rounds[0], 1)
        if takes == "bf16":
            self.op(f"{product}.rounded", TO_BF16, x.rows, rounds=(few, 4), x=x, n=x.n, y=x.rounded)
        else:
            self.op(
                f"{product}.quantized", QUANTIZE, x.rows, constants=self.layouts, rounds=(few, 4), x=x, n=x.n,
                out=x.quantized,
            )  # fmt: skip

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
        return [op.work.amount(outputs if op.rows is self.picked else tokens, past) for op in self.ops]

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
            record[: NEXT // 8] = addresses[op.few], addresses.get(op.many, 0), *op.rounds, op.rows.tokens.address
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
        if isinstance(argument, Rows):
            return argument.region.address
        if isinstance(argument, Form):
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
