"""The child process that renders and tokenizes one long prompt. `long_prompts.py` starts it.

It reads frames: their number, the path of the model, the overridden metadata (JSON), the kind of the request, and what
belongs to it:

    encode   the keywords of `Tokenizer.encode` (JSON), the text         -> "", the token ids
    build    the template and the conversation (JSON), each message      -> "", the token ids, the text

Token ids are signed integers of four bytes. The reply begins with the number of its frames. Its first frame is the
name of a class of `localinfer.errors` instead of "" if that is raised; its message follows.
"""

import json
import signal
import sys
from array import array
from pathlib import Path

from localinfer import tokenizer
from localinfer.chat_template.conversation import Conversation
from localinfer.chat_template.prompt import build_prompt
from localinfer.chat_template.template import ChatTemplate
from localinfer.child_process import read_frame, write_frame
from localinfer.errors import LocalInferError
from localinfer.gguf.overrides import override_metadata
from localinfer.gguf.reader import open_gguf


def answer(path: bytes, overrides: bytes, kind: bytes, head: bytes, *rest: bytes) -> list[bytes]:
    """Return the contents of the reply."""
    f = override_metadata(open_gguf(Path(path.decode("utf-8", "surrogateescape"))), json.loads(overrides))
    tokens = tokenizer.from_gguf(f)
    if kind == b"encode":
        return [bytes_of(tokens.encode(rest[0].decode("utf-8", "surrogatepass"), **json.loads(head)))]
    source, special_tokens, name, parse_special, others = json.loads(head)
    conversation = Conversation(messages=[json.loads(message) for message in rest], **others)
    template = ChatTemplate(source, special_tokens, name)
    try:
        prompt = build_prompt(template, tokens, conversation, parse_special=parse_special)
    finally:
        template.close()
    return [bytes_of(prompt.ids), prompt.text.encode("utf-8", "surrogatepass")]


def bytes_of(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


def main() -> None:
    """Answer one request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    count = int.from_bytes(read_frame(requests), "little")
    frames = [read_frame(requests) for _ in range(count)]
    try:
        reply = [b"", *answer(*frames)]
    except LocalInferError as error:
        reply = [type(error).__name__.encode(), str(error).encode("utf-8", "replace")]
    for frame in (len(reply).to_bytes(4, "little"), *reply):
        write_frame(replies, frame)
