"""Holds a run to a form: which tokens may come next, and whether what came is whole."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from localinfer.errors import BadForm, Incomplete, LocalInferError

from .form import Form
from .vocabulary import Vocabulary

NOTHING = "NoExtensionBias"  # llguidance's word where no token can come next; others are of its bounds

Logits = NDArray[np.float32]
Mask = NDArray[np.bool_]  # (n_vocab,)


class Constraint:
    """One run's. It begins to work behind the tokens `behind`, such as those that end a reasoning; () is at once.

    `is_complete` once nothing but the end may come. What may come next is found out in a thread while the model
    computes: llguidance lets go of the interpreter's lock.
    """

    def __init__(self, form: Form, vocabulary: Vocabulary, behind: Sequence[int] = ()) -> None:
        self.form = form
        self.is_complete = False
        self._vocabulary = vocabulary
        self._behind, self._before = list(behind), list[int]()
        self._ids: list[int] | None = None if behind else []  # the tokens that have to have the form
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._matcher = self._worker.submit(self._new_matcher)
        self._allowed = self._worker.submit(self._next)

    def masked(self, logits: Logits) -> Logits:
        """Logits (n_vocab,) that are -inf where a token would break the form. LocalInferError where all would, BadForm
        where it takes too much to find out."""
        if self._ids is None:
            return logits
        allowed = self._allowed.result()
        if self._failure not in ("", NOTHING):
            raise self._too_complex()
        if self._failure or not allowed.any():
            raise LocalInferError(f"{self.form.name}: no token of this model's vocabulary can go on here")
        return np.where(allowed, logits, -np.inf)

    def accept(self, id: int) -> None:
        """Go on behind this token."""
        if self._ids is None:
            self._before.append(id)
            if self._before[-len(self._behind) :] == self._behind:
                self._ids = []
            return
        matcher = self._matcher.result()
        is_allowed = self._allowed.result()[id]  # waited for, too, as a matcher does one thing at a time
        is_end = id in self._vocabulary.ends
        if not matcher.consume_token(self._vocabulary.eos_token_id if is_end else id):
            if is_allowed:
                raise self._too_complex()
            raise LocalInferError(f"{self.form.name}: token {id} breaks it")
        if not is_end:
            self._ids.append(id)
        self.is_complete = matcher.is_stopped()
        if not self.is_complete:
            self._allowed = self._worker.submit(self._next)

    @property
    def _failure(self) -> str:
        """What llguidance says of it, "" for nothing. Behind the first line is its state."""
        return self._matcher.result().get_error().partition("\n")[0]

    def _too_complex(self) -> BadForm:
        """A bound was reached."""
        return BadForm(f"{self.form.name}: too complex: {self._failure}")

    def require_whole(self, text: str, *, cut_off: bool) -> None:
        """Raise Incomplete unless the answer, all of it or what came behind the reasoning, has the form."""
        said = self._vocabulary.text_of(self._ids or [])
        if not (text.endswith(said) and self._is_whole(said)):
            why = "it is cut off, --predict sets how many tokens it may have" if cut_off else "it ends too early"
            raise Incomplete(f"the answer is not what {self.form.name} asks for: {why}")

    def _is_whole(self, text: str) -> bool:
        """Looked at anew, by the text alone."""
        if self.form.is_json and not is_json(text):
            return False
        matcher = self._new_matcher()
        return matcher.consume_tokens(self._vocabulary.trie.greedy_tokenize(text)) and matcher.is_accepting()

    def _new_matcher(self) -> LLMatcher:
        return LLMatcher(self._vocabulary.trie, self.form.grammar, log_level=0)

    def _next(self) -> Mask:
        return self._vocabulary.allowed_by(self._matcher.result())


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
