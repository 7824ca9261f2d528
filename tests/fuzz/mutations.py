"""Mutations of a GGUF file: `mutate(gguf, choose)` returns its bytes after up to three mutations.

Mutations of entries keep all other entries valid, so that the mutant passes the parser; mutations of bytes do not.
"""

import struct
from collections.abc import Callable
from random import Random

import numpy as np
from fuzz.mutable_gguf import BLOCK_SIZES, MetadataEntry, MutableGGUF, TensorEntry, randomize_as_type
from malicious_files import ARRAY, BOOL, F32, F64, I8, I16, I32, I64, STRING, U8, U16, U32, U64, array, string
from random_blocks import NAMES

from quant.ggml import TYPES

STRUCT_CODES = {
    U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"
}  # fmt: skip
FLOATS = 0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 1e30, 3.4e38, float("nan"), float("inf"), -float("inf")
INTEGERS = *range(-2, 12), *(2**bits + more for bits in range(4, 65) for more in (-1, 0, 1)), -128, -(2**31), -(2**63)
SPECIAL_HALVES = b"\0\x7c", b"\0\xfc", b"\xff\x7b", b"\0\x7e"
TEXTS = (
    b"", b"llama", b"gpt2", b"qwen2", b"\xff\xfe", b"a\0b", b"\x1b[31m\n", b"none", b"linear", b"yarn", b"x" * 70_000,
)  # fmt: skip
NEW_NAMES = b"", b"general.architecture", b"split.count", b"split.no", b"general.alignment", b"output.weight", b"x" * 64


# --- keys ---


def random_number(type: int, choose: Random, old: bytes | None = None) -> bytes:
    """Return a value of this type, near its limits or near the old value."""
    code = "<" + STRUCT_CODES[type]
    near = struct.unpack(code, old)[0] if old and len(old) == struct.calcsize(code) else 1
    if type == BOOL:
        return bytes([choose.choice((0, 1, 2, 255))])
    if type in (F32, F64):
        value = choose.choice((*FLOATS, near * 2, near / 2, -near))
        return struct.pack(code, value if type == F64 or not abs(value) > 3.4e38 else float(np.sign(value)) * np.inf)
    value = choose.choice((choose.choice(INTEGERS), near + 1, near - 1, near * 2, near // 2, near + 32, near - 32))
    return (int(value) % 2 ** (8 * struct.calcsize(code))).to_bytes(struct.calcsize(code), "little")


def change_number(gguf: MutableGGUF, choose: Random) -> None:
    key = choose.choice([key for key in gguf.keys if key.type in STRUCT_CODES] or gguf.keys)
    key.value = random_number(key.type, choose, key.value) if key.type in STRUCT_CODES else key.value


def change_text(gguf: MutableGGUF, choose: Random) -> None:
    key = choose.choice([key for key in gguf.keys if key.type == STRING] or gguf.keys)
    key.type, key.value = STRING, string(choose.choice((*TEXTS, key.value[8:-1], key.value[8:] * 2)))


def change_array(gguf: MutableGGUF, choose: Random) -> None:
    """Insert, remove or replace elements of an array."""
    key = choose.choice([key for key in gguf.keys if key.type == ARRAY] or gguf.keys)
    if key.type != ARRAY:
        return
    element, count = struct.unpack("<IQ", key.value[:12])
    values = key.value[12:]
    if element not in STRUCT_CODES:
        texts = list(split_strings(values, count))
        for _ in range(choose.randint(1, 3)):
            position = choose.randrange(len(texts)) if texts else 0
            texts[position : position + choose.randint(0, 2)] = choose.choices((*TEXTS, *texts), k=choose.randint(0, 2))
        key.value = array(STRING, len(texts), b"".join(map(string, texts)))
        return
    size = struct.calcsize("<" + STRUCT_CODES[element])
    numbers = [values[i : i + size] for i in range(0, len(values), size)]
    for _ in range(choose.randint(1, 3)):
        position = choose.randrange(len(numbers)) if numbers else 0
        added = [random_number(element, choose) for _ in range(choose.randint(0, 2))]
        numbers[position : position + choose.randint(0, 2)] = added
    key.value = array(element, len(numbers), b"".join(numbers))


def split_strings(values: bytes, count: int) -> list[bytes]:
    """Return the strings of an array's bytes."""
    texts, position = [], 0
    for _ in range(count):
        length = int.from_bytes(values[position : position + 8], "little")
        texts.append(values[position + 8 : position + 8 + length])
        position += 8 + length
    return texts


def random_value(choose: Random) -> tuple[int, bytes]:
    """Return a random type and a value of it."""
    type = choose.choice((*STRUCT_CODES, STRING, ARRAY))
    if type == STRING:
        return type, string(choose.choice(TEXTS))
    if type == ARRAY:
        element, n = choose.choice(tuple(STRUCT_CODES)), choose.randint(0, 8)
        return type, array(element, n, b"".join(random_number(element, choose) for _ in range(n)))
    return type, random_number(type, choose)


def change_type(gguf: MutableGGUF, choose: Random) -> None:
    key = choose.choice(gguf.keys)
    key.type, key.value = random_value(choose)


def remove_key(gguf: MutableGGUF, choose: Random) -> None:
    gguf.keys.remove(choose.choice(gguf.keys))


def duplicate_key(gguf: MutableGGUF, choose: Random) -> None:
    gguf.keys.insert(choose.randrange(len(gguf.keys)), choose.choice(gguf.keys))


def rename_key(gguf: MutableGGUF, choose: Random) -> None:
    choose.choice(gguf.keys).name = choose.choice(NEW_NAMES)


def add_key(gguf: MutableGGUF, choose: Random) -> None:
    """Add a key that the architecture reads, or one that no architecture reads."""
    name = choose.choice((*gguf.known_keys, b"llama.expert_count", b"gemma3.none"))
    likely = (U32, random_number(U32, choose)), (F32, random_number(F32, choose)), random_value(choose)
    gguf.keys = [key for key in gguf.keys if key.name != name or choose.random() < 0.1]
    gguf.keys.append(MetadataEntry(name, *choose.choice(likely)))


# --- tensors ---


def change_tensor_type(gguf: MutableGGUF, choose: Random) -> None:
    """Change the type of some matrices, and replace their data by valid blocks of that type."""
    for position in choose.sample(range(len(gguf.tensors)), choose.randint(1, len(gguf.tensors))):
        each = gguf.tensors[position]
        fitting = [name for name in NAMES if each.dims and each.dims[0] % BLOCK_SIZES[name] == 0]
        gguf.tensors[position] = randomize_as_type(each, choose.choice(fitting), choose) if fitting else each


def fill_bits(gguf: MutableGGUF, choose: Random) -> None:
    """Fill the data of some tensors with one repeated byte or random bytes."""
    for each in choose.sample(gguf.tensors, choose.randint(1, len(gguf.tensors))):
        kind, n = choose.randrange(4), len(each.data)
        each.data = choose.randbytes(n) if not kind else choose.choice((b"\0", b"\xff", b"\x7f", b"\x7c", b"\x80")) * n


def insert_special_values(gguf: MutableGGUF, choose: Random) -> None:
    """Insert infinities, NaNs and huge numbers, as float32, float16 or bfloat16, at random positions of the data."""
    for each in choose.sample(gguf.tensors, choose.randint(1, len(gguf.tensors))):
        data = bytearray(each.data)
        for _ in range(choose.randint(1, 20)):
            unusual = choose.choice((struct.pack("<f", choose.choice(FLOATS)), *SPECIAL_HALVES))
            position = choose.randrange(len(data) // 2 + 1) * 2
            data[position : position + len(unusual)] = unusual[: len(data) - position]
        each.data = bytes(data)


def change_tensor_info(gguf: MutableGGUF, choose: Random) -> None:
    """Change a dimension, the type, the offset or the size of a tensor, but not the values of its data."""
    each = choose.choice(gguf.tensors)
    what = choose.randrange(5)
    if what == 0 and each.dims:
        position = choose.randrange(len(each.dims))
        dim = choose.choice(
            (each.dims[position] + 1, each.dims[position] - 1, each.dims[position] * 2, choose.choice(INTEGERS))
        )
        each.dims = [*each.dims[:position], dim % 2**64, *each.dims[position + 1 :]]
    elif what <= 1:
        each.dims = choose.choice((each.dims[::-1], [*each.dims, 1], each.dims[:1], [], [1] * 5))
    elif what == 2:
        each.type = choose.choice((*TYPES, *range(45), 2**32 - 1))
    elif what == 3:
        each.shift = choose.choice((32, -32, 1, -1, 2**63, 2**64 - 32, gguf.alignment))
    else:
        each.data = choose.choice((each.data[:-1], each.data + b"\0", each.data[: len(each.data) // 2], b""))


def change_tensors(gguf: MutableGGUF, choose: Random) -> None:
    """Remove, duplicate or rename a tensor, or swap two names."""
    a, b = choose.choice(gguf.tensors), choose.choice(gguf.tensors)
    what = choose.randrange(4)
    if what == 0:
        gguf.tensors.remove(a)
    elif what == 1:
        name = choose.choice((a.name, a.name + b"2", b"rope_freqs.weight"))
        gguf.tensors.append(TensorEntry(name, b.dims, b.type, b.data))
    elif what == 2:
        a.name = choose.choice((b.name, a.name[:-1], *NEW_NAMES, b"\xff", b"blk.7.attn_q.weight"))
    else:
        a.name, b.name = b.name, a.name


# --- the file ---


def align(gguf: MutableGGUF, choose: Random) -> None:
    gguf.align(choose.choice((1, 2, 4, 8, 16, 64, 128, 4096, 65_536, 131_072, 3)))


def change_counts(gguf: MutableGGUF, choose: Random) -> None:
    gguf.more_keys = choose.choice((0, 1, -1, choose.choice(INTEGERS)))
    gguf.more_tensors = choose.choice((0, 1, -1, choose.choice(INTEGERS)))


def change_bytes(content: bytes, choose: Random) -> bytes:
    """Flip bits, remove or duplicate a range, or truncate the file; most likely in the header."""
    what, near = choose.randrange(6), choose.random() < 0.7
    reach = min(len(content), 20_000) if near else len(content)
    position, length = choose.randrange(reach), choose.choice((1, 2, 4, 8, 100, 5_000))
    if what < 3:
        flipped = bytearray(content)
        for _ in range(choose.randint(1, 8)):
            flipped[choose.randrange(reach)] ^= 1 << choose.randrange(8)
        return bytes(flipped)
    if what == 3:
        return content[:position] + content[position + length :]
    if what == 4:
        return content[:position] + content[position : position + length] + content[position:]
    return content[: choose.choice((position, len(content) - choose.randint(1, 4096)))]


Change = Callable[[MutableGGUF, Random], None]
CHANGES: dict[Change, int] = {  # mutation -> its relative frequency
    change_number: 16, change_text: 3, change_array: 6, change_type: 4, remove_key: 3, duplicate_key: 1, rename_key: 1,
    add_key: 6, change_tensor_type: 20, fill_bits: 10, insert_special_values: 14, change_tensor_info: 8,
    change_tensors: 5, align: 5, change_counts: 1,
}  # fmt: skip
MUTATION_COUNTS = 0, 1, 1, 1, 2, 2, 3
BYTE_MUTATION_PROBABILITY = 0.15


def mutate(gguf: MutableGGUF, choose: Random) -> bytes:
    """Return the bytes of a mutated file."""
    for change in choose.choices(tuple(CHANGES), tuple(CHANGES.values()), k=choose.choice(MUTATION_COUNTS)):
        if gguf.keys and gguf.tensors:
            change(gguf, choose)
    content = gguf.to_bytes()
    return change_bytes(content, choose) if choose.random() < BYTE_MUTATION_PROBABILITY else content
