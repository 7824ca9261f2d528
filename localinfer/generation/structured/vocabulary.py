"""A model's vocabulary for constraints, and the workers that know it."""

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from time import sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UnsupportedError
from localinfer.tokenizer import Tokenizer

from .frames import REWRITE, VALIDATE
from .worker_process import WorkerPool, WorkerProcess

PART = 500  # tokens, which take less than a millisecond


class Vocabulary:
    """The vocabulary of a tokenizer. `n_vocab` is the number of logits, at least the number of tokens.

    Raises UnsupportedError if the tokenizer has no end-of-generation token.
    """

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        if not tokenizer.eog:
            raise UnsupportedError("this model has no end-of-generation token, which structured output requires")
        self.n_vocab = n_vocab
        self.workers = WorkerPool(lambda: WorkerProcess(self.frames, self.encode))
        self._tokenizer = tokenizer

    @cached_property
    def frames(self) -> Sequence[bytes]:
        """The vocabulary as a worker receives it: the id of the end token, the bytes of all tokens, and their lengths.

        Control tokens have no text, so no constraint allows them.
        """
        tokens: list[bytes] = []
        for start in range(0, self._tokenizer.n_vocab, PART):
            end = min(start + PART, self._tokenizer.n_vocab)
            tokens += map(self._tokenizer.token_bytes, range(start, end))
            sleep(0)  # without it, a server's event loop waits 5 ms whenever it needs the GIL
        return str(self.eos_token_id).encode(), b"".join(tokens), array("I", map(len, tokens)).tobytes()

    @property
    def eos_token_id(self) -> int:
        """One of the end-of-generation tokens, which stands for all of them."""
        return min(self.eog)

    @property
    def eog(self) -> frozenset[int]:
        """The end-of-generation tokens."""
        return self._tokenizer.eog

    def encode(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"), add_special=False, continues_text=True)

    def visible_bytes(self, id: int) -> bytes:
        """Return the text of a token, also of a control token."""
        return self._tokenizer.token_bytes(id, special=True)

    def text_of(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._tokenizer.token_bytes, ids)).decode("utf-8", "replace")

    def rewritten_schema(self, schema: Mapping[str, Any], on_wait: Callable[[], None]) -> tuple[dict[str, Any], str]:
        """Return a JSON schema as a grammar can express it, and the problem, "" for none.

        While it waits for a worker, `on_wait` is called several times a second; it may raise.
        """
        rewritten, problem = json.loads(self._ask_worker(REWRITE, schema, on_wait))
        return rewritten, problem

    def value_problem(self, schema: Mapping[str, Any], value: object, on_wait: Callable[[], None]) -> str:
        """Return how a value violates a JSON schema, "" if it does not. For `on_wait` see `rewritten_schema`."""
        return self._ask_worker(VALIDATE, [schema, value], on_wait)

    def _ask_worker(self, kind: bytes, content: object, on_wait: Callable[[], None]) -> str:
        worker = self.workers.acquire()
        try:
            reply = worker.request(kind, json.dumps(content).encode())
            return worker.wait(reply, on_wait, "schema").decode()
        finally:
            self.workers.release(worker)

    def unpack_mask(self, bits: bytes) -> NDArray[np.bool_]:
        """Return a worker's mask of the tokens that may come next as an array, bool (n_vocab,)."""
        packed = np.frombuffer(bits, np.uint8)
        known = np.unpackbits(packed, count=self._tokenizer.n_vocab, bitorder="little").view(bool)
        known[sorted(self.eog)] = known[self.eos_token_id]
        return np.pad(known, (0, self.n_vocab - known.size)) if known.size < self.n_vocab else known
