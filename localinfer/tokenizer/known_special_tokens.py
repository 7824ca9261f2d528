"""Special tokens recognized by their text: end of generation, fill-in-the-middle, channel markers.

A file names at most one end-of-turn token, and often not the right one. The texts are those of llama.cpp.
"""

from collections.abc import Collection, Mapping
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import StringArray

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type

EOG_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
# Fill-in-the-middle tokens by role. Of several texts, the first one in the vocabulary is used.
FIM_TEXTS = {
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
FIM_EOG_ROLES = ("pad", "rep", "sep")  # after these the model would start another document
FIM_ROLE_BY_KEY = {  # by <key>_token_id; the short keys are older
    "prefix": "pre", "suffix": "suf", "middle": "mid", "fim_pre": "pre", "fim_suf": "suf", "fim_mid": "mid",
    "fim_pad": "pad", "fim_rep": "rep", "fim_sep": "sep",
}  # fmt: skip
CHANNEL_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # gpt-oss's channel tokens are output
OVERRIDING_EOG_TEXTS = ("<|tool_response>", "<|plamo:eos|>")  # if one of these ends generation, </s> is normal text
KNOWN_TEXTS = frozenset((*EOG_TEXTS, *CHANNEL_TEXTS, *OVERRIDING_EOG_TEXTS, *chain.from_iterable(FIM_TEXTS.values())))


def find_tokens(tokens: StringArray, texts: Collection[str] = KNOWN_TEXTS) -> dict[str, int]:
    """Return the ids of those `texts` that are tokens. No text is empty.

    Only tokens whose first two bytes and last byte match a text are compared: thousands of other tokens begin with
    "<" and end with ">".
    """
    text_by_bytes = {text.encode(): text for text in texts}
    starts_match, ends_match = np.zeros((2, 256, 256), bool)
    for text in text_by_bytes:
        starts_match[text[0], text[min(len(text) - 1, 1)]] = ends_match[text[0], text[-1]] = True
    first = tokens.data[tokens.offsets]
    second = tokens.data[tokens.offsets + np.minimum(tokens.lengths - 1, 1)]
    last = tokens.data[tokens.offsets + tokens.lengths - 1]
    matching = np.flatnonzero(starts_match[first, second] & ends_match[first, last])
    candidates = ((id, tokens[id]) for id in matching.tolist())
    return {text_by_bytes[text]: id for id, text in candidates if text in text_by_bytes}


def classify(
    id_by_text: Mapping[str, int], types: NDArray[np.int32], ends: Collection[int], roles: Mapping[str, int]
) -> frozenset[int]:
    """Return all end-of-generation ids, and correct `types`.

    `ends` are the ids that the file names. `roles` are the fill-in-the-middle roles that the file names; a named
    role overrides the known texts.
    """
    known_ends = [id_by_text[text] for text in EOG_TEXTS if text in id_by_text]
    types[known_ends] = CONTROL
    eog = {*ends, *known_ends}
    for role, texts in FIM_TEXTS.items():
        known_ids = [] if role in roles else [id_by_text[text] for text in texts if text in id_by_text][:1]
        types[known_ids] = CONTROL
        if role in FIM_EOG_ROLES:
            eog |= {roles[role]} if role in roles else set(known_ids)
    types[[id_by_text[text] for text in CHANNEL_TEXTS if text in id_by_text]] = USER_DEFINED
    _remove_non_eog(id_by_text, types, eog)
    return frozenset(eog)


def fill_in_the_middle_tokens(id_by_text: Mapping[str, int], roles: Mapping[str, int]) -> dict[str, int]:
    """Return the fill-in-the-middle tokens by role: those that the file names, else those with known texts."""
    known = {
        role: next(id_by_text[text] for text in texts if text in id_by_text)
        for role, texts in FIM_TEXTS.items()
        if not id_by_text.keys().isdisjoint(texts)
    }
    return known | dict(roles)


def _remove_non_eog(id_by_text: Mapping[str, int], types: NDArray[np.int32], eog: set[int]) -> None:
    """Remove ids that end one message of an answer, but not the whole answer."""
    calls = "<|call|>" in id_by_text or "<|calls|>" in id_by_text
    if "<|end|>" in id_by_text and calls and ("<|return|>" in id_by_text or "<|flush|>" in id_by_text):
        eog.discard(id_by_text["<|end|>"])
        types[id_by_text["<|end|>"]] = USER_DEFINED
    if "</s>" in id_by_text and any(id_by_text.get(text) in eog for text in OVERRIDING_EOG_TEXTS):
        eog.discard(id_by_text["</s>"])
        types[id_by_text["</s>"]] = NORMAL
