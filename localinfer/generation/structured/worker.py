"""The child process in which llguidance runs and finished answers are checked. `worker_process.py` starts it.

Grammars and schemas are untrusted. They can keep native code busy for minutes, exhaust the memory or the stack, and a
pattern can keep Python's `re` busy forever. The child process can be killed, and the operating system limits its
resources. It serves one constraint at a time:

    REWRITE, schema (JSON)  -> the schema as a grammar can express it, and "" or the problem (JSON)
    VALIDATE, schema and value (JSON) -> "" or how the value violates the schema
    COMPILE, source (JSON)  -> "" or the problem, and JSON pointers to keywords that no mask enforces (JSON)
    BEGIN                   -> a status, a failure, a mask    before the first token, also of a further attempt
    TEXT, text              -> a status, a failure, a mask    instead of tokens, if the answer begins with a text
    TOKEN, id               -> a status, a failure, a mask    after each token; the status alone if nothing may follow
    CLOSE, id, n            -> a closing                      before a token after which only n tokens may follow
    CHECK, text, ids (JSON) -> "" or how the text violates the constraint, and the offset of the value that does (JSON);
                               ids are [] if the text has no control tokens

Each of these is a frame. A failure is llguidance's error, "" for none. A closing is OPEN and the ids of tokens that
complete the answer after this one, CLOSING and those that complete it instead of this one, or UNKNOWN.
The first frames that the child reads are the vocabulary.
"""

import json
import signal
import sys
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, BinaryIO

from localinfer.child_process import limit_resources, limit_time, read_frame, write_frame
from localinfer.errors import ConstraintError

from .answer_check import answer_problem, validator_of
from .byte_vocabulary import ByteVocabulary
from .closing import Closings
from .constraint_source import CALLS, ConstraintSource
from .constraint_spec import ConstraintSpec, compile_constraint
from .frames import (
    BEGIN,
    CHECK,
    CLOSE,
    CLOSING,
    COMPILE,
    CONSUMED,
    INCOMPLETE,
    NO_TOKEN_ALLOWED,
    OPEN,
    QUESTION,
    REPLY,
    REWRITE,
    STOPPED,
    TEXT,
    TOKEN,
    UNKNOWN,
    VALIDATE,
)
from .json_schema import rewrite
from .schema_references import has_endless_reference
from .schema_rewriting import Schema

if TYPE_CHECKING:
    from jsonschema.protocols import Validator
    from llguidance import LLMatcher, LLTokenizer

MAX_MEMORY = 2 << 30  # bytes of address space; the trie of 262,144 tokens takes 0.2 GiB
SECONDS = {REWRITE: 10.0, COMPILE: 10.0, CHECK: 5.0, VALIDATE: 5.0}  # limits of CPU time
MASK_SECONDS = 5.0
MAX_QUESTION = 1000  # bytes of text that the parent tokenizes; the tokens of longer texts begin with the same ones


class WorkerVocabulary:
    """The vocabulary as llguidance needs it: the interface of TokenizerWrapper. Control tokens have no text."""

    def __init__(self, eos_token_id: int, text: bytes, lengths: bytes, encode: Callable[[bytes], list[int]]) -> None:
        self._encode = encode
        self.eos_token_id, self.bos_token_id, self.special_token_ids = eos_token_id, None, list[int]()
        ends = accumulate(array("I", lengths), initial=0)
        self.tokens = [text[start:end] for start, end in pairwise(ends)]

    def __call__(self, text: bytes) -> list[int]:
        """Return the tokens of a text that must follow, as the model would write it."""
        return self._encode(text)


class ParentTokenizer:
    """Asks the parent for the token ids of a text, because the worker has no tokenizer."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO) -> None:
        self._requests, self._replies = requests, replies

    def __call__(self, text: bytes) -> list[int]:
        write_frame(self._replies, QUESTION, text[:MAX_QUESTION])
        return array("I", read_frame(self._requests)).tolist()


class Worker:
    """Serves the requests of a constraint after the other."""

    def __init__(self, vocabulary: WorkerVocabulary) -> None:
        self._vocabulary = vocabulary
        self._trie: LLTokenizer | None = None  # takes up to a second to build: after a constraint has been compiled
        self._spec = ConstraintSpec("", "", is_json=False)
        self._validator: Validator | None = None
        self._matcher: LLMatcher | None = None
        self._ids: list[int] = []  # the tokens that it has consumed
        self._byte_vocabulary: ByteVocabulary | None = None
        self._closings: Closings | None = None  # of the answer, once it comes near its limit

    def compile(self, source: ConstraintSource) -> tuple[str, tuple[str, ...]]:
        """Compile a constraint, and return the problem, "" for none, and the keywords that no mask enforces."""
        self._matcher = self._validator = None
        try:
            self._spec = compile_constraint(source)
            if source.option != CALLS and matches_nothing(self._spec.grammar):
                return f"{source.flag}: no text matches", ()
            if self._spec.schema is not None:
                self._validator = validator_of(self._spec.schema)
        except ConstraintError as error:
            return str(error), ()
        except ValueError as error:
            return f"{source.flag}: {error}", ()
        return "", self._spec.unmasked

    def begin(self, output: BinaryIO) -> None:
        """Begin an answer."""
        self._matcher = self._closings = None
        self._ids = []
        self.advance(output, [])

    def advance(self, output: BinaryIO, ids: Sequence[int]) -> None:
        """Consume tokens, and write the status, the failure and the mask of what may follow."""
        matcher = self._matcher = self._matcher or self._new_matcher()
        is_consumed = not ids or (matcher.validate_tokens(list(ids)) == len(ids) and matcher.consume_tokens(list(ids)))
        is_stopped = bool(ids) and matcher.is_stopped()
        self._ids += ids
        if self._closings and is_consumed:
            self._closings.follow(ids)
        write_frame(output, REPLY, bytes([CONSUMED * is_consumed | STOPPED * is_stopped]), self._failure(matcher))
        if is_consumed and not is_stopped:
            mask = matcher.compute_bitmask()
            write_frame(output, REPLY, self._failure(matcher))
            write_frame(output, REPLY, mask)

    def closing(self, id: int, n_left: int) -> tuple[bytes, list[int]]:
        """Return what completes the answer: after this token, or instead of it if `n_left` tokens are too few for that.
        """
        if not self._closings:
            self._byte_vocabulary = self._byte_vocabulary or ByteVocabulary(self._vocabulary)
            self._closings = Closings(self._spec.grammar, self._byte_vocabulary)
            self._closings.follow(self._ids)
        after = self._closings.after(id, n_left)
        if not after.fits(n_left) and (now := self._closings.now(n_left + 1)).fits(n_left + 1):
            ids = now.ids or []
            if self._completes(ids):
                return CLOSING, ids or [self._vocabulary.eos_token_id]
        return (UNKNOWN, []) if after.ids is None else (OPEN, after.ids)

    def _completes(self, ids: Sequence[int]) -> bool:
        """Return whether these tokens complete the answer."""
        assert self._matcher
        matcher = self._matcher.deep_copy()
        return (not ids or matcher.consume_tokens(list(ids))) and matcher.is_accepting()

    def tokenize(self, text: bytes) -> list[int]:
        """Return tokens whose bytes are the text."""
        return self.trie.tokenize_bytes(text)

    def check(self, text: str, ids: list[int]) -> tuple[str, int]:
        """Return how a finished text violates the constraint, "" if it does not, and where the value begins that does.
        `ids` are its tokens if some of them are control tokens, which have no text."""
        if self._spec.is_json and not is_json(text):
            return INCOMPLETE, 0
        matcher = self._new_matcher()
        if not (matcher.consume_tokens(ids or self.trie.greedy_tokenize(text)) and matcher.is_accepting()):
            return INCOMPLETE, 0
        return answer_problem(text, self._validator) if self._validator else ("", 0)

    @property
    def trie(self) -> "LLTokenizer":
        from llguidance import LLTokenizer, TokenizerWrapper

        if self._trie is None:
            self._trie = LLTokenizer(
                TokenizerWrapper(self._vocabulary), eos_token=self._vocabulary.eos_token_id,
                slices=LLTokenizer.json_slices())  # fmt: skip
        return self._trie

    def _new_matcher(self) -> "LLMatcher":
        from llguidance import LLMatcher

        return LLMatcher(self.trie, self._spec.grammar, log_level=0)

    @staticmethod
    def _failure(matcher: "LLMatcher") -> bytes:
        """Return llguidance's error without its state dump."""
        return matcher.get_error().partition("\n")[0].encode()


def rewritten_schema(schema: Schema) -> tuple[Schema, str]:
    """Return the schema as a grammar can express it, and the problem, "" for none."""
    return (schema, "a $ref refers to itself") if has_endless_reference(schema) else rewrite(schema)


def value_problem(schema: Schema, value: object) -> str:
    """Return how a value violates a schema, or how the schema is invalid; "" if neither."""
    try:
        return answer_problem(json.dumps(value), validator_of(schema))[0]
    except ValueError as error:
        return f"the schema is invalid: {error}"


def matches_nothing(grammar: str) -> bool:
    """Return whether no byte may come first, such as in a rule that refers to itself only."""
    from llguidance import LLMatcher

    matcher = LLMatcher(byte_trie(), grammar, log_level=0)
    matcher.compute_bitmask()
    return matcher.get_error().startswith(NO_TOKEN_ALLOWED)


@cache
def byte_trie() -> "LLTokenizer":
    """Return a vocabulary of all bytes and an end token."""
    from llguidance import LLTokenizer, TokenizerWrapper

    vocabulary = WorkerVocabulary(256, bytes(range(256)), array("I", [1] * 256 + [0]).tobytes(), list)
    return LLTokenizer(TokenizerWrapper(vocabulary), eos_token=256, slices=[])


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def answer(worker: Worker, replies: BinaryIO, kind: bytes, content: bytes) -> None:
    """Answer a request."""
    if kind == TOKEN:
        worker.advance(replies, [int.from_bytes(content, "little")])
    elif kind == CLOSE:
        kind_of_closing, ids = worker.closing(*array("I", content))
        write_frame(replies, REPLY, kind_of_closing, array("I", ids).tobytes())
    elif kind == BEGIN:
        worker.begin(replies)
    elif kind == TEXT:
        worker.advance(replies, worker.tokenize(content))
    elif kind == COMPILE:
        write_frame(replies, REPLY, json.dumps(worker.compile(ConstraintSource(*json.loads(content)))).encode())
    elif kind == REWRITE:
        write_frame(replies, REPLY, json.dumps(rewritten_schema(json.loads(content))).encode())
    elif kind == VALIDATE:
        write_frame(replies, REPLY, value_problem(*json.loads(content)).encode())
    else:
        assert kind == CHECK
        write_frame(replies, REPLY, json.dumps(worker.check(*json.loads(content))).encode())


def main() -> None:
    """Serve requests until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    eos_token_id, text, lengths = (read_frame(requests) for _ in range(3))
    tokenizer = ParentTokenizer(requests, replies)
    worker = Worker(WorkerVocabulary(int(eos_token_id), text, lengths, tokenizer))
    limit_resources(MAX_MEMORY)
    while True:
        try:
            request = read_frame(requests)
        except EOFError:
            return
        kind, content = request[:1], request[1:]
        limit_time(SECONDS.get(kind, MASK_SECONDS))
        answer(worker, replies, kind, content)
        limit_time(0)
