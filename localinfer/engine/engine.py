"""The engine: token ids in, logits out. Knows no text.

It feeds a sequence through the model's program, a batch of its tokens at a time.
"""

import os
import threading
from collections import abc
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from localinfer.engine import machine, reading
from localinfer.engine.program import Floats, Program
from localinfer.engine.sequence import Sequence
from localinfer.engine.team import Watch
from localinfer.errors import ContextOverflow, LocalInferError, NotEnoughMemory, Unsupported, UsageError
from localinfer.files.gguf import GGUF
from localinfer.ops.layout import EVERYTHING
from localinfer.options import Options
from localinfer.plan.memory.pages import NoRoom
from localinfer.plan.plan import Plan
from localinfer.plan.work import NOTHING_TO_DO, Amount
from localinfer.text import printable
from quant.jit.loader import Progress

Ids = NDArray[np.int32]
Logits = NDArray[np.float32]
Tokens = abc.Sequence[int] | abc.Iterator[int] | Ids

LIBRARIES_BYTES = 192 << 20  # of address space: LLVM, and what cuts texts into tokens
LAST_POSITION = EVERYTHING  # further ones would not fit in what kernels count with
NO_ROWS = np.zeros(0, np.int32)
AnyInteger = TypeVar("AnyInteger", np.int32, np.int64)


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that go through a batch behind those that their sequence remembers."""

    sequence: Sequence
    ids: Ids


@dataclass(frozen=True, eq=False)
class Look:
    """A token at a position of a sequence that is not computed yet, behind which a head shall look. `before` is what
    the head has made of the token before, if that is not computed either."""

    sequence: Sequence
    id: int
    position: int
    before: Floats | None = None

    @property
    def state(self) -> Floats | float:
        """What the token before has become."""
        return self.sequence.state(self.position - 1) if self.before is None else self.before


class Ask(NamedTuple):
    """Tokens that are to be computed next; nobody wants logits of the first `skip` of them."""

    ids: list[int]
    skip: int = 0


class Course(Protocol):
    """What is computed step by step, where each step is chosen by the logits of the one before."""

    def ask(self) -> Ask:
        """The next tokens."""

    def take(self, logits: Logits) -> bool:
        """Choose by the logits of these, float32 (len(ids) - skip, n_vocab), which are valid until this ends; whether
        it is certain that there is a next step."""


class Engine:
    """A model ready to run: a program, and the sequence that goes through it. A `head` in a file of its own may look
    further ahead for it (`localinfer.plan.eagle3`). Raises what `Program` raises, and `reading.as_asked`.

    Further sequences are made with `begin`, and computed together with `compute`.

    One thread at a time computes: it holds `lock`, and others wait. Who needs the sequence to stay as it is for longer
    than a call holds it, too. `tables` is held, for no longer than that takes, by who changes what any sequence
    remembers.
    """

    def __init__(
        self, f: GGUF, options: Options, progress: Progress | None = None, head: GGUF | None = None
    ) -> None:
        self.file = f = reading.as_asked(f, options, progress)
        head = reading.as_asked(head, options, progress) if head else None
        self.lock, self.tables = threading.RLock(), threading.RLock()
        self.wraps = options.ctx_policy == "ring"
        self.forget: abc.Callable[[], bool] = lambda: False  # something that nobody needs; whether there was anything
        self._closed, self._process = False, os.getpid()
        self.program = Program(f, options, progress, head)
        self.sequence = Sequence(self.program.recorder.memories())
        self.n_ctx, self.n_vocab, self.warnings = self.program.n_ctx, self.program.n_vocab, self.program.warnings
        if options.mlock:
            problems = {printable(str(each.path)): each.lock() for file in self.program.files for each in file.files}
            self.warnings = [*self.warnings, *(f"{path}: {problem}" for path, problem in problems.items() if problem)]

    @property
    def n_past(self) -> int:
        """How many tokens are remembered."""
        return len(self.sequence)

    @property
    def plan(self) -> Plan:
        """The recorded forward pass, to look at."""
        return self.program.plan

    # --- tokens in, logits out ---

    def evaluate(self, tokens: Tokens, progress: Progress | None = None, *, keep: int = 0) -> Logits:
        """The logits after the last of `tokens`, float32 (n_vocab,); valid until the next call.

        The tokens are appended to the sequence. What is remembered can be rewound to where the last `keep` of them
        begin: where it could not be rewound otherwise, these go through in a batch of their own. Raises ContextOverflow
        when the tokens do not fit, unless the ring wraps; KeyboardInterrupt leaves in the sequence what was whole
        batches, or as much as it can be rewound to, and `n_past` says how much that is.
        """
        with self.lock:
            self.require_predictions()
            ids, done = self.checked(tokens), 0
            cut = 0 if self.sequence.rewinds else max(0, len(ids) - keep) if keep else 0
            *whole, last = [*self.batches(ids[:cut]), *self.batches(ids[cut:])]
            for batch in whole:
                self._feed(batch, watch=self._watch(progress, done, len(batch), len(ids)))
                done += len(batch)
                if done == cut:
                    self.keep()
            row = np.array([len(last) - 1], np.int32)
            logits = self._feed(last, row, self._watch(progress, done, len(last), len(ids)))
            if progress:
                progress("prefill", len(ids), len(ids))
            return logits.reshape(-1)

    @property
    def at_once(self) -> int:
        """How many tokens `evaluate_guesses` takes at most."""
        return min(self.plan.batch, self.plan.outputs)

    def evaluate_guesses(self, tokens: Tokens, skip: int = 0) -> Logits:
        """The logits after each of a few tokens but the first `skip`, computed in one pass: float32 (len(tokens) -
        skip, n_vocab); valid until the next call. They are the same bits as if the tokens had come one by one.
        Otherwise as `evaluate`.

        All behind the first of these are guesses: `rewind` is due, and goes back to any of them, or to fewer tokens
        where states are too large to be kept after each; never to fewer than were sure.
        """
        with self.lock:
            self.require_predictions()
            ids = self.checked(tokens)
            assert len(ids) <= self.at_once
            if len(ids) > skip + 1:
                self.sequence.guess(skip + 1)
            return self._feed(ids, np.arange(skip, len(ids), dtype=np.int32))

    def follow(self, course: Course) -> None:
        """Take a step of a course, as `evaluate_guesses` does."""
        course.take(self.evaluate_guesses(*course.ask()))

    @property
    def looks_further(self) -> bool:
        """Whether there is a head that predicts the token behind the next one."""
        return self.program.recorder.ahead is not None

    def evaluate_further(self, id: int, position: int, before: Floats | None = None) -> tuple[Logits, Floats]:
        """The logits after a token at a position that is not computed yet, as the head that looks further ahead
        expects them, float32 (n_vocab,), valid until the next call; and what the token has become there.

        `before` is the same of the token before, if that is not computed either. Nothing is remembered.
        """
        logits, states = self.look_further([Look(self.sequence, id, position, before)])
        return logits[0], states[0]

    def look_further(self, looks: abc.Sequence[Look]) -> tuple[Logits, Floats]:
        """The same of several sequences, at most `plan.sequences`, in one pass: (len(looks), n_vocab), (len(looks),
        n). Each has the same bits as alone."""

        def place() -> None:
            for at, look in enumerate(looks):
                look.sequence.place_ahead(look.position, at)

        with self.lock:
            with self.tables:
                self._with_room(place)
                ids, positions = ([each.id for each in looks], [each.position for each in looks])
                self.program.place(np.array(ids, np.int32), np.array(positions))
            logits, states = self.program.further([each.state for each in looks])
            return logits, states.copy()

    def logits(self, tokens: Tokens) -> Logits:
        """The logits after each of `tokens`, float32 (len(tokens), n_vocab); appends them to the sequence."""
        with self.lock:
            ids = self.checked(tokens)
            result = np.empty((len(ids), self.n_vocab), np.float32)
            row = 0
            for part in self.logits_in_parts(ids):
                result[row : row + len(part)] = part
                row += len(part)
            return result

    def logits_in_parts(self, tokens: Tokens, skip: int = 0) -> abc.Iterator[Logits]:
        """The logits after each of `tokens` but the first `skip`, some rows at a time: each part until the next one.

        Appends all tokens to the sequence, provided that all parts are taken.
        """
        self.require_predictions()
        for batch in self.batches(self.checked(tokens)):
            self._feed(batch)
            for rows in self.rows_of(len(batch), skip):
                logits = self.program.pick(rows)
                self.run(*self.program.head, len(rows))
                yield logits
            skip = max(0, skip - len(batch))

    def amount(self, tokens: int, past: int) -> Amount:
        """What `evaluate` has to do for so many tokens behind `past` others."""
        batch = self.plan.batch
        batches = [(first, min(batch, tokens - first)) for first in range(0, tokens, batch)]
        each = (self.plan.amount(count, past + first, first + count == tokens) for first, count in batches)
        return sum(each, NOTHING_TO_DO)

    # --- batches ---

    def checked(self, tokens: Tokens) -> Ids:
        """The ids as an array: at least one, each within the vocabulary, and room for all."""
        self.require_open()
        ids = np.asarray(list(tokens) if isinstance(tokens, abc.Iterator) else tokens)  # numpy takes no iterators
        if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
            raise UsageError("tokens: at least one token id is needed, as a flat list of integers")
        numbers = ids.tolist()  # numpy takes longer to look at a single one
        if min(numbers) < 0 or max(numbers) >= self.n_vocab:
            raise UsageError(f"tokens: an id is outside of the vocabulary, 0 to {self.n_vocab - 1}")
        self.require_fit(self.sequence, len(ids))
        return ids.astype(np.int32)

    def require_fit(self, sequence: Sequence, count: int) -> None:
        """Raise ContextOverflow unless so many more tokens fit."""
        n_past = len(sequence)
        if not self.wraps and n_past + count > self.n_ctx:
            raise ContextOverflow(
                f"context is full: {n_past} + {count} tokens do not fit in {self.n_ctx}; "
                "--ctx-size sets a larger one, --ctx-policy ring forgets the oldest"
            )
        if n_past + count > LAST_POSITION:
            raise ContextOverflow(f"context is full: positions end at {LAST_POSITION}")

    def batches(self, ids: Ids) -> list[Ids]:
        """Tokens as many at a time as go through the program."""
        return [ids[first : first + self.plan.batch] for first in range(0, len(ids), self.plan.batch)]

    def rows_of(self, count: int, skip: int = 0) -> abc.Iterator[Ids]:
        """The numbers of a batch's tokens but the first `skip`, as many at a time as the output layer takes."""
        for start in range(skip, count, self.plan.outputs):
            yield np.arange(start, min(start + self.plan.outputs, count), dtype=np.int32)

    def place(self, ids: Ids) -> None:
        """Put a batch where the ops find it, behind the tokens that are remembered."""
        self._place([Segment(self.sequence, ids)])

    def _place(self, segments: abc.Sequence[Segment]) -> None:
        """Put the tokens of a batch where the ops find them, each behind those that its sequence remembers."""
        positions = [np.arange(len(each.sequence), len(each.sequence) + len(each.ids)) for each in segments]
        self.program.place(joined([each.ids for each in segments]), joined(positions))
        at = 0
        for each in segments:
            each.sequence.place(len(each.ids), at)
            at += len(each.ids)

    def run(self, first: int, end: int, tokens: int, watch: Watch | None = None) -> None:
        """Run some of the ops, for so many tokens; `watch` is told at which op that is, a few times a second."""
        with self.lock:
            self.require_open()
            self.program.run(first, end, tokens, watch)

    def _watch(self, progress: Progress | None, done: int, count: int, total: int) -> Watch | None:
        """Tells how many of `total` tokens are read, by the op that a batch of `count` is at: all layers are alike."""
        if progress is None:
            return None
        ops = len(self.plan.ops)

        def watch(op: int) -> None:
            progress("prefill", done + count * op // ops, total)

        watch(0)
        return watch

    def _feed(self, ids: Ids, rows: Ids = NO_ROWS, watch: Watch | None = None) -> Logits:
        """Run one batch through all layers; and through the output layer too, for these of its tokens, if any."""
        return self._run_batch([Segment(self.sequence, ids)], rows, watch)

    def _run_batch(self, segments: abc.Sequence[Segment], rows: Ids, watch: Watch | None = None) -> Logits:
        with self.tables:
            for each in segments:
                self.reserve(each.sequence, len(each.ids))
            self._place(segments)
        logits = self.program.pick(rows)
        tokens = sum(len(each.ids) for each in segments)
        try:
            for first, end in self.program.ways(logits=len(rows) > 0):
                self.run(first, end, tokens, watch)
        except BaseException:
            with self.tables:
                for each in segments:  # what the run has begun to change is changed back, or forgotten
                    each.sequence.rewind(len(each.sequence))
            raise
        with self.tables:
            for each in segments:
                each.sequence.commit(each.ids.tolist())
        return logits

    # --- several sequences ---

    def reserve(self, sequence: Sequence, count: int) -> None:
        """Room for so many more tokens of a sequence. Raises NotEnoughMemory."""
        self._with_room(lambda: sequence.reserve(count))

    def _with_room(self, work: abc.Callable[[], None]) -> None:
        """Do what takes pages; for want of them, have others forgotten."""
        while True:
            try:
                return work()
            except NoRoom:
                if not self.forget():
                    raise NotEnoughMemory("the context: all of its pages are in use") from None

    def begin(self) -> Sequence:
        """A sequence that remembers nothing yet, beside the engine's own. Who needs it no more shall `reset` it: its
        room is for others then."""
        return Sequence(self.program.recorder.memories())

    def compute(self, segments: abc.Sequence[Segment], rows: Ids = NO_ROWS) -> Logits:
        """The logits after these of the tokens of several sequences, counted through all segments, float32 (len(rows),
        n_vocab); valid until the next call.

        They go through in one batch: at most `plan.batch` tokens of at most `plan.sequences` different sequences, with
        at most `plan.outputs` rows. Each sequence computes the same bits as alone. Raises NotEnoughMemory when there
        are not pages enough, and ContextOverflow as `evaluate`; then nothing that is remembered is changed.
        """
        with self.lock:
            self.require_predictions()
            for each in segments:
                self.require_fit(each.sequence, len(each.ids))
            return self._run_batch(segments, rows)

    # --- what is remembered ---

    @property
    def rewinds(self) -> bool:
        """Whether any number of the last tokens can be forgotten, at least of those of one batch."""
        return self.sequence.rewinds

    def rewind(self, n: int) -> int:
        """Forget all but the first n tokens; how many are kept: 0 where a window no longer holds what n needs, and
        fewer where a state can only go back to where it was kept."""
        return self.sequence.rewind(n)

    def recall(self, tokens: abc.Sequence[int], most: int, progress: Progress | None = None) -> int:  # noqa: ARG002
        """Forget all but what these tokens begin with, but `most` of them at most; how many are kept."""
        return self.rewind(min(common_prefix(self.sequence.tokens, tokens), most))

    def keep(self) -> None:
        """Stay able to rewind to what is remembered now, for some time."""
        with self.lock:
            self.sequence.keep()

    def pause(self) -> None:
        """Nobody shall wait for its next token, which may take a while. Only lanes wait for each other."""

    def reset(self) -> None:
        """Forget all tokens."""
        self.sequence.reset()

    @property
    def kv_bytes(self) -> int:
        """The memory of all that is remembered."""
        return self.program.recorder.cache_bytes

    @property
    def scratch_bytes(self) -> int:
        """The memory of everything else but the weights."""
        return self.plan.nbytes - self.kv_bytes

    # --- texts, one behind the other ---

    def pack(self, texts: abc.Sequence[Ids], types: abc.Sequence[Ids] = ()) -> None:
        """Compute texts that do not see each other in one batch; `program.states` tells then what their tokens have
        become. Nothing is remembered of them, nor of what was before. `types`: the parts of pairs that tokens are of.
        """
        with self.lock:
            self.require_open()
            lengths = [len(text) for text in texts]
            with self.tables:
                self._with_room(lambda: self.sequence.pack(lengths))
            positions = np.concatenate([np.arange(length) for length in lengths])
            self.program.place(np.concatenate(texts), positions, np.concatenate(types) if types else 0)
            self.run(0, self.program.head[0], len(positions))

    def append(self, tokens: Ids) -> None:
        """Compute a batch of tokens behind those that are remembered, without logits."""
        with self.lock:
            self._feed(tokens)

    def require_predictions(self) -> None:
        """Raise Unsupported for an encoder."""
        if not self.program.predicts:
            what = f"{self.file.get('general.architecture', str)} is an encoder, which expects no next token"
            raise self.file.error("", f"{what}; `localinfer embed` makes vectors with it", Unsupported)

    # --- the end ---

    def require_open(self) -> None:
        """Raise LocalInferError after `close`, and in a process that was forked off, where no threads are."""
        if self._closed:
            raise LocalInferError("the model is closed")
        if os.getpid() != self._process:
            raise LocalInferError("the model was loaded by another process, which this one was forked from")

    def close(self) -> None:
        """End the threads. Nothing can be computed any more; what another thread computes ends after this batch."""
        self._closed = True
        with self.lock:
            self.program.close()


def common_prefix(a: abc.Sequence[int], b: abc.Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    pairs = zip(a, b, strict=False)
    return next((n for n, (left, right) in enumerate(pairs) if left != right), min(len(a), len(b)))


def joined(parts: abc.Sequence[NDArray[AnyInteger]]) -> NDArray[AnyInteger]:
    """One behind the other."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def require_room_to_load(f: GGUF) -> None:
    """Raise NotEnoughMemory where libraries would find no place: one of them would end the process."""
    left = machine.address_space()
    if left < LIBRARIES_BYTES:
        what = f"loading it takes {LIBRARIES_BYTES >> 20} MiB of address space, {left >> 20} MiB are left (ulimit -v)"
        raise f.error("", what, NotEnoughMemory)
