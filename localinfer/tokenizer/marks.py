"""Tokens that are known by their texts: what ends a generation, what fills in the middle, marks of channels.

A file names at most one end of a turn, and often not the right one. The texts are those that llama.cpp knows.
"""

from collections.abc import Collection, Mapping
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from localinfer.files.gguf import StringArray

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type

ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
# Where a code model fills in the middle. Of several spellings of a role, the first that the file has counts.
FILL_IN_MIDDLE = {
    "pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ),
    "suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ),
    "mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ),
    "pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "sep": ("<|file_sep|>",),
}  # fmt: skip
FILL_IN_MIDDLE_ENDS = ("pad", "rep", "sep")  # with these the model goes on to another document
ROLE_OF_KEY = {  # of <key>_token_id; the short ones are older
    "prefix": "pre", "suffix": "suf", "middle": "mid", "fim_pre": "pre", "fim_suf": "suf", "fim_mid": "mid",
    "fim_pad": "pad", "fim_rep": "rep", "fim_sep": "sep",
}  # fmt: skip
CHANNEL_MARKS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # of gpt-oss: part of the output
OTHER_ENDS = ("<|tool_response>", "<|plamo:eos|>")  # where one of these ends a generation, </s> is a word
KNOWN_TEXTS = frozenset((*ENDS, *CHANNEL_MARKS, *OTHER_ENDS, *chain.from_iterable(FILL_IN_MIDDLE.values())))


def find(tokens: StringArray, texts: Collection[str] = KNOWN_TEXTS) -> dict[str, int]:
    """Which of `texts` are tokens, and their ids.

    Only the tokens whose first two bytes and last byte are those of a text are looked at: thousands of others
    begin with "<" and end with ">".
    """
    wanted = {text.encode(): text for text in texts}
    starts_alike, frames_alike = np.zeros((2, 256, 256), bool)
    for text in wanted:
        starts_alike[text[0], text[1]] = frames_alike[text[0], text[-1]] = True
    first = tokens.data[tokens.offsets]
    second = tokens.data[tokens.offsets + np.minimum(tokens.lengths - 1, 1)]
    last = tokens.data[tokens.offsets + tokens.lengths - 1]
    alike = np.flatnonzero(starts_alike[first, second] & frames_alike[first, last])
    candidates = ((id, tokens[id]) for id in alike.tolist())
    return {wanted[text]: id for id, text in candidates if text in wanted}


def recognise(
    found: Mapping[str, int], types: NDArray[np.int32], ends: Collection[int], roles: Mapping[str, int]
) -> frozenset[int]:
    """All ids that end a generation, and `types` put right.

    `ends` are those that the file names; so are `roles`, of filling in the middle, for which no text counts then.
    """
    known_ends = [found[text] for text in ENDS if text in found]
    types[known_ends] = CONTROL
    eog = {*ends, *known_ends}
    for role, texts in FILL_IN_MIDDLE.items():
        spelled = [] if role in roles else [found[text] for text in texts if text in found][:1]
        types[spelled] = CONTROL
        if role in FILL_IN_MIDDLE_ENDS:
            eog |= {roles[role]} if role in roles else set(spelled)
    types[[found[text] for text in CHANNEL_MARKS if text in found]] = USER_DEFINED
    _keep_what_ends_nothing(found, types, eog)
    return frozenset(eog)


def _keep_what_ends_nothing(found: Mapping[str, int], types: NDArray[np.int32], eog: set[int]) -> None:
    """Where an answer has several messages, what ends one message does not end the answer."""
    calls = "<|call|>" in found or "<|calls|>" in found
    if "<|end|>" in found and calls and ("<|return|>" in found or "<|flush|>" in found):
        eog.discard(found["<|end|>"])
        types[found["<|end|>"]] = USER_DEFINED
    if "</s>" in found and any(found.get(text) in eog for text in OTHER_ENDS):
        eog.discard(found["</s>"])
        types[found["</s>"]] = NORMAL
