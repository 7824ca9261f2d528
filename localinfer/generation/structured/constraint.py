"""The constraint of a run: the mask of allowed next tokens, and whether the output is complete."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from localinfer.errors import ConstraintError, IncompleteOutputError, LocalInferError

from .constraint_spec import ConstraintSpec
from .constraint_start import AfterMarker
from .vocabulary import Vocabulary

NO_TOKEN_ALLOWED = "NoExtensionBias"  # llguidance's error if no token is allowed; its other errors are exceeded limits

Logits = NDArray[np.float32]
Mask = NDArray[np.bool_]  # (n_vocab,)


class Constraint:
    """The constraint of one run. It begins at once, or where `start` says.

    With `reasoning`, its opening token is allowed in place of the first constrained token; the constraint then begins
    after its closing tag.

    `is_complete` is set once only the end is allowed. The next mask is computed in a thread while the model runs:
    llguidance releases the GIL.
    """

    def __init__(
        self,
        spec: ConstraintSpec,
        vocabulary: Vocabulary,
        start: AfterMarker | None = None,
        reasoning: tuple[int, AfterMarker] | None = None,
    ) -> None:
        self.spec = spec
        self.is_complete = False
        self._vocabulary = vocabulary
        self._start, self._reasoning = start, reasoning
        self._ids: list[int] | None = None if start else []  # the constrained tokens
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._matcher = self._executor.submit(self._new_matcher)
        self._allowed = self._executor.submit(self._next_mask)

    def mask_logits(self, logits: Logits) -> Logits:
        """Return the logits (n_vocab,) with -inf for tokens that violate the constraint.

        Raises LocalInferError if no token is allowed, ConstraintError if the constraint exceeds llguidance's limits.
        """
        if self._ids is None:
            return logits
        allowed = self._allowed.result()
        if self._failure not in ("", NO_TOKEN_ALLOWED):
            raise self._too_complex()
        if self._failure or not allowed.any():
            raise LocalInferError(f"{self.spec.name}: no token of this model's vocabulary is allowed here")
        if self._reasoning and not self._ids:
            allowed = allowed.copy()
            allowed[self._reasoning[0]] = True
        return np.where(allowed, logits, -np.inf)

    def accept(self, id: int) -> None:
        """Advance by this token."""
        if self._ids is None:
            if self._start and (rest := self._start.accept(id, self._vocabulary)) is not None:
                self._begin(rest.lstrip() if not self.spec.is_optional else rest)
            return
        if self._reasoning and not self._ids and id == self._reasoning[0]:
            (_, self._start), self._ids = self._reasoning, None
            return
        self._advance(id)

    def _begin(self, text: bytes) -> None:
        """Begin the constrained text with what is already there. A violated optional constraint is dropped."""
        self._ids, self._start = [], None
        matcher, _ = self._matcher.result(), self._allowed.result()  # waits: a matcher is not thread-safe
        ids = self._vocabulary.trie.tokenize_bytes(text) if text else []
        if self.spec.is_optional and (self._failure or matcher.validate_tokens(ids) < len(ids)):
            self._ids = None
            return
        for id in ids:
            self._advance(id)

    def _advance(self, id: int) -> None:
        assert self._ids is not None
        matcher = self._matcher.result()
        is_allowed = self._allowed.result()[id]  # also waits: a matcher is not thread-safe
        is_end = id in self._vocabulary.eog
        if not matcher.consume_token(self._vocabulary.eos_token_id if is_end else id):
            if self.spec.is_optional and not is_allowed:  # a sampler that ignores the mask
                self._ids = None
                return
            if is_allowed:
                raise self._too_complex()
            raise LocalInferError(f"{self.spec.name}: token {id} violates the constraint")
        if not is_end:
            self._ids.append(id)
        self.is_complete = matcher.is_stopped()
        if not self.is_complete:
            self._allowed = self._executor.submit(self._next_mask)

    @property
    def _failure(self) -> str:
        """The error of llguidance without its state dump; "" for none."""
        return self._matcher.result().get_error().partition("\n")[0]

    def _too_complex(self) -> ConstraintError:
        """Return the error for an exceeded limit."""
        return ConstraintError(f"{self.spec.name}: too complex: {self._failure}")

    def require_complete(self, text: str, *, is_truncated: bool) -> None:
        """Raise IncompleteOutputError unless the answer, or the text after the reasoning, satisfies the constraint."""
        if self.spec.is_optional:
            return
        constrained_text = self._vocabulary.text_of(self._ids or [])
        if not (text.endswith(constrained_text) and self._matches(constrained_text, self._ids or [])):
            limit = "n_predict (--predict) sets the maximum number of tokens"
            reason = f"cut off, {limit}" if is_truncated else "it ends too early"
            raise IncompleteOutputError(f"the answer does not satisfy {self.spec.name}: {reason}")

    def _matches(self, text: str, ids: Sequence[int]) -> bool:
        """Check the complete text with a new matcher, or the tokens if it contains control tokens."""
        if self.spec.is_json and not is_json(text):
            return False
        has_control_tokens = any(not self._vocabulary.text_of([id]) for id in ids)
        matcher = self._new_matcher()
        tokens = list(ids) if has_control_tokens else self._vocabulary.trie.greedy_tokenize(text)
        return matcher.consume_tokens(tokens) and matcher.is_accepting()

    def _new_matcher(self) -> LLMatcher:
        return LLMatcher(self._vocabulary.trie, self.spec.grammar, log_level=0)

    def _next_mask(self) -> Mask:
        return self._vocabulary.allowed_by(self._matcher.result())


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
