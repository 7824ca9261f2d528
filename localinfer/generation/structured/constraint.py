"""The constraint of a run: the mask of allowed next tokens, and whether the output is complete."""

import json
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import astuple
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import ConstraintError, IncompleteOutputError, InvalidOutputError, LocalInferError
from localinfer.escaping import printable

from .constraint_end import LimitWatch
from .constraint_source import ConstraintSource
from .constraint_start import AfterMarker
from .frames import (
    BEGIN,
    CHECK,
    CLOSE,
    CLOSING,
    COMPILE,
    CONSUMED,
    INCOMPLETE,
    NO_TOKEN_ALLOWED,
    STOPPED,
    TEXT,
    TOKEN,
    UNKNOWN,
)
from .vocabulary import Vocabulary

Logits = NDArray[np.float32]
Mask = NDArray[np.bool_]  # (n_vocab,)
T = TypeVar("T")
MAX_LISTED = 3  # keywords that a warning names


class Constraint:
    """The constraint of one run. It begins at once, or where `start` says.

    With `reasoning`, its opening token is allowed in place of the first constrained token; the constraint then begins
    after its closing tag.

    `is_complete` is set once only the end is allowed, `is_closing` once the answer is being closed at its limit.
    `unmasked` are JSON pointers to keywords of the schema that no mask enforces, which a warning names; `restart`
    begins another attempt if they make the answer invalid.

    A worker process computes the next mask while the model runs. While a thread waits for it, `on_wait` is called
    several times a second; it may raise.

    Raises ConstraintError with the flag, the JSON pointer in a schema and the problem.
    """

    def __init__(
        self,
        source: ConstraintSource,
        vocabulary: Vocabulary,
        start: AfterMarker | None = None,
        reasoning: tuple[int, AfterMarker] | None = None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self.source = source
        self._vocabulary, self._on_wait = vocabulary, on_wait
        self._initial = start, reasoning
        self.n_discarded = 0  # tokens at the end of an invalid answer that another attempt replaces
        self._worker, self._is_closed = vocabulary.workers.acquire(), False
        problem, self.unmasked = json.loads(self._ask(COMPILE, json.dumps(astuple(source)).encode()))
        if problem:
            self.close()
            raise ConstraintError(problem)
        if self.unmasked:
            warnings.warn(f"{source.flag}: checked only at the end: {listed(self.unmasked)}", stacklevel=2)
        self.restart()

    def restart(self) -> None:
        """Begin an answer, or another attempt at it."""
        self._start, self._reasoning = deepcopy(self._initial)
        self.is_complete = False
        self._ids: list[int] | None = None if self._start else []  # the constrained tokens
        self._begun = b""  # the text before them that is constrained, too
        self.is_closing = False
        self._closing = deque[int]()  # its tokens that follow
        self._limit = LimitWatch()
        self._failure = ""  # an error of llguidance
        self._allowed: Mask | None = None  # the next mask, if it has been received
        self._worker.request(BEGIN)  # the status says nothing before the first token
        self._mask = self._worker.next_frames(2)

    def mask_logits(self, logits: Logits) -> Logits:
        """Return the logits (n_vocab,) with -inf for tokens that violate the constraint.

        Raises LocalInferError if no token is allowed, ConstraintError if the constraint exceeds llguidance's limits.
        """
        if self._ids is None:
            return logits
        allowed = self._next_mask()
        if self._failure not in ("", NO_TOKEN_ALLOWED):
            raise self._too_complex()
        if self._failure or not allowed.any():
            raise LocalInferError(f"{self.source.name}: no token of this model's vocabulary is allowed here")
        if self._reasoning and not self._ids:
            allowed = allowed.copy()
            allowed[self._reasoning[0]] = True
        return np.where(allowed, logits, -np.inf)

    @property
    def closing_token(self) -> int | None:
        """The only token that may come next, if the closing has begun."""
        return self._closing[0] if self._closing else None

    def accept(self, id: int, n_left: int | None = None) -> int:
        """Advance by a token, and return it.

        At most `n_left` tokens may follow it; None stands for no limit. If they cannot complete the answer, but the
        tokens of a closing can, then the first of these takes its place.
        """
        if self._ids is None:
            if self._start and (rest := self._start.accept(id, self._vocabulary)) is not None:
                self._begin(rest if self.source.is_optional else rest.lstrip())
            return id
        if self._reasoning and not self._ids and id == self._reasoning[0]:
            (_, self._start), self._reasoning, self._ids = self._reasoning, None, None
            return id
        return self._advance(id, n_left)

    def _begin(self, text: bytes) -> None:
        """Begin the constrained text with what is already there. A violated optional constraint is dropped."""
        self._ids, self._begun, self._start = [], text, None
        if not text:
            return
        self._next_mask()
        status = self._wait(self._worker.request(TEXT, text))
        if status[0] & CONSUMED:
            self._receive(status)
        elif self.source.is_optional:
            self._ids = None
        else:
            shown = printable(text, 60)
            raise LocalInferError(f"{self.source.name}: the beginning of the answer violates the constraint: {shown}")

    def _advance(self, id: int, n_left: int | None) -> int:
        assert self._ids is not None
        is_allowed = self._next_mask()[id]
        if self._closing:
            assert id == self._closing.popleft()
        elif is_allowed and n_left is not None and id not in self._vocabulary.eog:
            id = self._close_if_needed(id, n_left)
        is_end = id in self._vocabulary.eog
        content = (self._vocabulary.eos_token_id if is_end else id).to_bytes(4, "little")
        status = self._wait(self._worker.request(TOKEN, content))
        if not status[0] & CONSUMED:
            if self.source.is_optional and not is_allowed:  # a sampler that ignores the mask
                self._ids = None
                return id
            self._failure = status[1:].decode("utf-8", "replace")
            if is_allowed:
                raise self._too_complex()
            raise LocalInferError(f"{self.source.name}: token {id} violates the constraint")
        if not is_end:
            self._ids.append(id)
        self._receive(status)
        self.is_complete = self.is_complete or (self.is_closing and not self._closing)
        return id

    def _close_if_needed(self, id: int, n_left: int) -> int:
        """Return the token, or the first one of a closing that takes its place."""
        if self.source.is_optional or not self._limit.is_near(n_left):
            return id
        request = self._worker.request(CLOSE, array("I", [id, n_left]).tobytes())
        reply = self._wait(request)
        kind, ids = reply[:1], array("I", reply[1:])
        self._limit.update(n_left, None if kind == UNKNOWN else len(ids))
        if kind != CLOSING:
            return id
        self.is_closing, self._closing = True, deque(ids)
        return self._closing.popleft()

    def _receive(self, status: bytes) -> None:
        """Request the mask of what may follow."""
        self.is_complete = bool(status[0] & STOPPED)
        if not self.is_complete:
            self._allowed = None
            self._mask = self._worker.next_frames(2)

    def require_complete(self, text: str, *, is_truncated: bool) -> None:
        """Raise IncompleteOutputError unless the answer, or the text after the reasoning, is complete, and
        InvalidOutputError if it violates a keyword of its JSON schema that a grammar cannot express."""
        if self.source.is_optional:
            return
        ids = self._ids or []
        constrained_text = self._begun.decode("utf-8", "replace") + self._vocabulary.text_of(ids)
        has_control_tokens = any(not self._vocabulary.text_of([id]) for id in ids)
        content = json.dumps([constrained_text, ids if has_control_tokens and not self._begun else []])
        problem, offset = INCOMPLETE, 0
        if text.endswith(constrained_text):
            problem, offset = json.loads(self._ask(CHECK, content.encode()))
        if problem == INCOMPLETE:
            limit = "n_predict (--predict) sets the maximum number of tokens"
            reason = f"cut off, {limit}" if is_truncated else problem
            raise IncompleteOutputError(f"the answer does not satisfy {self.source.name}: {reason}")
        if problem:
            self.n_discarded = len(ids) - self._n_within(len(constrained_text[:offset].encode()) - len(self._begun))
            raise InvalidOutputError(f"{self.source.flag}: the answer does not match the schema: {problem}")

    def _n_within(self, size: int) -> int:
        """Return how many of the constrained tokens end within their first `size` bytes."""
        ends = accumulate(len(self._vocabulary.visible_bytes(id)) for id in self._ids or [])
        return sum(end <= size for end in ends)

    def close(self) -> None:
        """Release the worker. It is ended if it is busy. May be called several times, and before the first token."""
        if not self._is_closed:
            self._is_closed = True
            self._vocabulary.workers.release(self._worker)

    def _next_mask(self) -> Mask:
        if self._allowed is None:
            failure, bits = self._wait(self._mask)
            self._failure = failure.decode("utf-8", "replace")
            self._allowed = self._vocabulary.unpack_mask(bits)
        return self._allowed

    def _ask(self, kind: bytes, content: bytes) -> str:
        return self._wait(self._worker.request(kind, content)).decode("utf-8", "replace")

    def _wait(self, future: "Future[T]") -> T:
        return self._worker.wait(future, self._on_wait, self.source.name)

    def _too_complex(self) -> ConstraintError:
        """Return the error for an exceeded limit."""
        return ConstraintError(f"{self.source.name}: too complex: {self._failure}")


def listed(pointers: Sequence[str]) -> str:
    """Return the first few JSON pointers, and how many there are besides."""
    shown = ", ".join(printable(pointer, 80) for pointer in pointers[:MAX_LISTED])
    return shown if len(pointers) <= MAX_LISTED else f"{shown} and {len(pointers) - MAX_LISTED} more"
