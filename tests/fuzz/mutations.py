"""What is done to a file: `mutant(draft, choose)` is its bytes after up to three changes.

Changes of pieces keep the rest of the file as it should be, so that they get far; changes of bytes do not care.
"""

import struct
from collections.abc import Callable
from random import Random

import numpy as np
from attacks import ARRAY, BOOL, F32, F64, I8, I16, I32, I64, STRING, U8, U16, U32, U64, array, string
from fuzz.draft import BLOCK, Draft, Key, Weights, in_type
from random_blocks import NAMES

from quant.ggml import TYPES

CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
FLOATS = 0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 1e30, 3.4e38, float("nan"), float("inf"), -float("inf")
INTEGERS = *range(-2, 12), *(2**bits + more for bits in range(4, 65) for more in (-1, 0, 1)), -128, -(2**31), -(2**63)
ODD_HALVES = b"\0\x7c", b"\0\xfc", b"\xff\x7b", b"\0\x7e"
TEXTS = (
    b"", b"llama", b"gpt2", b"qwen2", b"\xff\xfe", b"a\0b", b"\x1b[31m\n", b"none", b"linear", b"yarn", b"x" * 70_000,
)  # fmt: skip
RENAMED = b"", b"general.architecture", b"split.count", b"split.no", b"general.alignment", b"output.weight", b"x" * 64


# --- keys ---


def number(type: int, choose: Random, old: bytes | None = None) -> bytes:
    """A value of that type, at its edges or near the old one."""
    code = "<" + CODES[type]
    near = struct.unpack(code, old)[0] if old and len(old) == struct.calcsize(code) else 1
    if type == BOOL:
        return bytes([choose.choice((0, 1, 2, 255))])
    if type in (F32, F64):
        value = choose.choice((*FLOATS, near * 2, near / 2, -near))
        return struct.pack(code, value if type == F64 or not abs(value) > 3.4e38 else float(np.sign(value)) * np.inf)
    value = choose.choice((choose.choice(INTEGERS), near + 1, near - 1, near * 2, near // 2, near + 32, near - 32))
    return (int(value) % 2 ** (8 * struct.calcsize(code))).to_bytes(struct.calcsize(code), "little")


def change_number(draft: Draft, choose: Random) -> None:
    key = choose.choice([key for key in draft.keys if key.type in CODES] or draft.keys)
    key.value = number(key.type, choose, key.value) if key.type in CODES else key.value


def change_text(draft: Draft, choose: Random) -> None:
    key = choose.choice([key for key in draft.keys if key.type == STRING] or draft.keys)
    key.type, key.value = STRING, string(choose.choice((*TEXTS, key.value[8:-1], key.value[8:] * 2)))


def change_array(draft: Draft, choose: Random) -> None:
    """More of it, less of it, another one of its values, or another type."""
    key = choose.choice([key for key in draft.keys if key.type == ARRAY] or draft.keys)
    if key.type != ARRAY:
        return
    element, count = struct.unpack("<IQ", key.value[:12])
    values = key.value[12:]
    if element not in CODES:
        texts = list(split(values, count))
        for _ in range(choose.randint(1, 3)):
            place = choose.randrange(len(texts)) if texts else 0
            texts[place : place + choose.randint(0, 2)] = choose.choices((*TEXTS, *texts), k=choose.randint(0, 2))
        key.value = array(STRING, len(texts), b"".join(map(string, texts)))
        return
    size = struct.calcsize("<" + CODES[element])
    numbers = [values[i : i + size] for i in range(0, len(values), size)]
    for _ in range(choose.randint(1, 3)):
        place = choose.randrange(len(numbers)) if numbers else 0
        numbers[place : place + choose.randint(0, 2)] = [number(element, choose) for _ in range(choose.randint(0, 2))]
    key.value = array(element, len(numbers), b"".join(numbers))


def split(values: bytes, count: int) -> list[bytes]:
    """The strings of an array."""
    texts, place = [], 0
    for _ in range(count):
        length = int.from_bytes(values[place : place + 8], "little")
        texts.append(values[place + 8 : place + 8 + length])
        place += 8 + length
    return texts


def any_value(choose: Random) -> tuple[int, bytes]:
    """A type, and a value of it."""
    type = choose.choice((*CODES, STRING, ARRAY))
    if type == STRING:
        return type, string(choose.choice(TEXTS))
    if type == ARRAY:
        element, n = choose.choice(tuple(CODES)), choose.randint(0, 8)
        return type, array(element, n, b"".join(number(element, choose) for _ in range(n)))
    return type, number(type, choose)


def change_type(draft: Draft, choose: Random) -> None:
    key = choose.choice(draft.keys)
    key.type, key.value = any_value(choose)


def lose_key(draft: Draft, choose: Random) -> None:
    draft.keys.remove(choose.choice(draft.keys))


def repeat_key(draft: Draft, choose: Random) -> None:
    draft.keys.insert(choose.randrange(len(draft.keys)), choose.choice(draft.keys))


def rename_key(draft: Draft, choose: Random) -> None:
    choose.choice(draft.keys).name = choose.choice(RENAMED)


def another_key(draft: Draft, choose: Random) -> None:
    """One that the architecture understands, or none does."""
    name = choose.choice((*draft.understood, b"llama.expert_count", b"gemma3.none"))
    likely = (U32, number(U32, choose)), (F32, number(F32, choose)), any_value(choose)
    draft.keys = [key for key in draft.keys if key.name != name or choose.random() < 0.1]
    draft.keys.append(Key(name, *choose.choice(likely)))


# --- tensors ---


def another_type(draft: Draft, choose: Random) -> None:
    """Of some matrices, with values as they should be."""
    for place in choose.sample(range(len(draft.tensors)), choose.randint(1, len(draft.tensors))):
        each = draft.tensors[place]
        fitting = [name for name in NAMES if each.dims and each.dims[0] % BLOCK[name] == 0]
        draft.tensors[place] = in_type(each, choose.choice(fitting), choose) if fitting else each


def any_bits(draft: Draft, choose: Random) -> None:
    """Weights that are all the same bits, or any."""
    for each in choose.sample(draft.tensors, choose.randint(1, len(draft.tensors))):
        kind, n = choose.randrange(4), len(each.data)
        each.data = choose.randbytes(n) if not kind else choose.choice((b"\0", b"\xff", b"\x7f", b"\x7c", b"\x80")) * n


def odd_values(draft: Draft, choose: Random) -> None:
    """Here and there in the bits a number that is not finite, or huge, whether it is a float, a half or a bfloat16."""
    for each in choose.sample(draft.tensors, choose.randint(1, len(draft.tensors))):
        data = bytearray(each.data)
        for _ in range(choose.randint(1, 20)):
            odd = choose.choice((struct.pack("<f", choose.choice(FLOATS)), *ODD_HALVES))
            place = choose.randrange(len(data) // 2 + 1) * 2
            data[place : place + len(odd)] = odd[: len(data) - place]
        each.data = bytes(data)


def change_info(draft: Draft, choose: Random) -> None:
    """A dimension, the type or the offset, without a change of the data."""
    each = choose.choice(draft.tensors)
    what = choose.randrange(5)
    if what == 0 and each.dims:
        place = choose.randrange(len(each.dims))
        dim = choose.choice((each.dims[place] + 1, each.dims[place] - 1, each.dims[place] * 2, choose.choice(INTEGERS)))
        each.dims = [*each.dims[:place], dim % 2**64, *each.dims[place + 1 :]]
    elif what <= 1:
        each.dims = choose.choice((each.dims[::-1], [*each.dims, 1], each.dims[:1], [], [1] * 5))
    elif what == 2:
        each.type = choose.choice((*TYPES, *range(45), 2**32 - 1))
    elif what == 3:
        each.shift = choose.choice((32, -32, 1, -1, 2**63, 2**64 - 32, draft.alignment))
    else:
        each.data = choose.choice((each.data[:-1], each.data + b"\0", each.data[: len(each.data) // 2], b""))


def change_tensors(draft: Draft, choose: Random) -> None:
    """One is missing, twice there, has another's name, or trades places."""
    a, b = choose.choice(draft.tensors), choose.choice(draft.tensors)
    what = choose.randrange(4)
    if what == 0:
        draft.tensors.remove(a)
    elif what == 1:
        name = choose.choice((a.name, a.name + b"2", b"rope_freqs.weight"))
        draft.tensors.append(Weights(name, b.dims, b.type, b.data))
    elif what == 2:
        a.name = choose.choice((b.name, a.name[:-1], *RENAMED, b"\xff", b"blk.7.attn_q.weight"))
    else:
        a.name, b.name = b.name, a.name


# --- the file ---


def align(draft: Draft, choose: Random) -> None:
    draft.align(choose.choice((1, 2, 4, 8, 16, 64, 128, 4096, 65_536, 131_072, 3)))


def miscount(draft: Draft, choose: Random) -> None:
    draft.more_keys = choose.choice((0, 1, -1, choose.choice(INTEGERS)))
    draft.more_tensors = choose.choice((0, 1, -1, choose.choice(INTEGERS)))


def change_bytes(content: bytes, choose: Random) -> bytes:
    """Some bits flipped, most likely in the header; a piece missing or twice there; the end cut off; more behind it."""
    what, near = choose.randrange(6), choose.random() < 0.7
    reach = min(len(content), 20_000) if near else len(content)
    place, length = choose.randrange(reach), choose.choice((1, 2, 4, 8, 100, 5_000))
    if what < 3:
        flipped = bytearray(content)
        for _ in range(choose.randint(1, 8)):
            flipped[choose.randrange(reach)] ^= 1 << choose.randrange(8)
        return bytes(flipped)
    if what == 3:
        return content[:place] + content[place + length :]
    if what == 4:
        return content[:place] + content[place : place + length] + content[place:]
    return content[: choose.choice((place, len(content) - choose.randint(1, 4096)))]


Change = Callable[[Draft, Random], None]
CHANGES: dict[Change, int] = {  # and how often each is made
    change_number: 16, change_text: 3, change_array: 6, change_type: 4, lose_key: 3, repeat_key: 1, rename_key: 1,
    another_key: 6, another_type: 20, any_bits: 10, odd_values: 14, change_info: 8, change_tensors: 5, align: 5,
    miscount: 1,
}  # fmt: skip
HOW_MANY = 0, 1, 1, 1, 2, 2, 3
BYTES_TOO = 0.15


def mutant(draft: Draft, choose: Random) -> bytes:
    """The bytes of a changed file."""
    for change in choose.choices(tuple(CHANGES), tuple(CHANGES.values()), k=choose.choice(HOW_MANY)):
        if draft.keys and draft.tensors:
            change(draft, choose)
    content = draft.to_bytes()
    return change_bytes(content, choose) if choose.random() < BYTES_TOO else content
