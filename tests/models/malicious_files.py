"""Malicious GGUF files, built byte by byte: each violates one rule of the format and states the expected error.

REJECTED are files that must not open, ACCEPTED unusual files that must open, OTHER_KINDS the first bytes of other
file types.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)  # types of metadata values
TYPE_F32, TYPE_Q4_0, TYPE_Q4_2, TYPE_Q8_0, TYPE_Q4_K, TYPE_Q8_K, TYPE_I8, TYPE_I64 = (
    0,
    2,
    4,
    8,
    12,
    15,
    24,
    27,
)
HUGE = 2**64 - 1
BILLION = 10**9
MAX_BYTES = 2**63 - 64  # the most bytes that a signed 64-bit number counts, in multiples of the alignment
NAME, TEMPLATE = "general.architecture", "tokenizer.chat_template"


class Rejected(NamedTuple):
    """The bytes of a file that must not open. The error names `field` and describes `problem`."""

    name: str
    content: bytes
    field: str
    problem: str


class Accepted(NamedTuple):
    name: str
    content: bytes


# --------------------------------------------------------------------------------------- building blocks


def u8(n: int) -> bytes:
    return struct.pack("<B", n)


def u32(n: int) -> bytes:
    return struct.pack("<I", n & 0xFFFFFFFF)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n & HUGE)


def string(text: bytes | str, length: int | None = None) -> bytes:
    """Return an encoded string with a claimed length of `length` bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw) if length is None else length) + raw


def kv(key: bytes | str, type_id: int, value: bytes) -> bytes:
    return string(key) + u32(type_id) + value


def array(type_id: int, n: int, values: bytes = b"") -> bytes:
    return u32(type_id) + u64(n) + values


def tensor(
    name: bytes | str = "a",
    dims: Sequence[int] = (32,),
    type_id: int = TYPE_F32,
    offset: int = 0,
    n_dims: int | None = None,
) -> bytes:
    """Return an entry of the tensor table."""
    shape = u32(len(dims) if n_dims is None else n_dims) + b"".join(u64(dim) for dim in dims)
    return string(name) + shape + u32(type_id) + u64(offset)


def header(n_tensors: int = 0, n_kv: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + u32(version) + u64(n_tensors) + u64(n_kv)


def container(*kvs: bytes, tensors: Sequence[bytes] = (), data: bytes = b"", alignment: int = 32) -> bytes:
    """Return a whole file; `data` starts at a multiple of the alignment."""
    head = header(len(tensors), len(kvs)) + b"".join(kvs) + b"".join(tensors)
    padding = -len(head) % alignment if tensors else 0
    return head + bytes(padding) + data


def one_value(type_id: int, value: bytes) -> bytes:
    return container(kv("k", type_id, value))


def one_tensor(line: bytes, data: bytes = bytes(128)) -> bytes:
    return container(tensors=[line], data=data)


def strings(n: int, raw: bytes = b"") -> bytes:
    return one_value(ARRAY, array(STRING, n, raw))


def floats(n: int, raw: bytes = b"") -> bytes:
    return one_value(ARRAY, array(F32, n, raw))


def text(key: str, value: bytes | str) -> bytes:
    return container(kv(key, STRING, string(value)))


def number(key: str, type_id: int, raw: bytes) -> bytes:
    return container(kv(key, type_id, raw))


def two_tensors(second: bytes, first: bytes | None = None) -> bytes:
    return container(tensors=[A if first is None else first, second], data=bytes(320))


def aligned(value: int, type_id: int = U32) -> bytes:
    return kv("general.alignment", type_id, u32(value))


ARCHITECTURE = kv(NAME, STRING, string("llama"))
A = tensor("a")  # 32 values of 4 bytes: 128 bytes, a multiple of the alignment
VALID = container(
    ARCHITECTURE,
    kv("n", U32, u32(7)),
    kv("tokens", ARRAY, array(STRING, 3, string("x") + string("") + string("zz"))),
    kv("scores", ARRAY, array(F32, 3, bytes(12))),
    tensors=[A, tensor("b.weight", (32, 3), TYPE_Q8_0, 128)],
    data=bytes(128 + 3 * 34 + 26),
)
INCONSISTENT = container(
    aligned(64), tensors=[tensor(dims=(8,)), tensor("b", (8,), offset=32)], data=bytes(256), alignment=64
)
VALID_DATA_ENDS = len(VALID) - 26  # then padding, which a file may lack

# -------------------------------------------------------------------------------------- rejected files

HEADER = [
    Rejected("empty file", b"", "", "empty file"),
    Rejected("magic alone", b"GGUF", "header", "truncated: 24 bytes are needed, the file has 4"),
    Rejected("no n_kv", header()[:16], "header", "truncated"),
    Rejected("bad magic", header(magic=b"FUGG"), "magic", "found 'FUGG'"),
    Rejected("version 0", header(version=0), "version", "0 is not supported"),
    Rejected("version 1", header(version=1), "version", "1 is not supported"),
    Rejected("version 4", header(version=4), "version", "4 is not supported"),
    Rejected("byte-swapped", header(version=3 << 24), "version", "big-endian GGUF is not supported"),
    Rejected("n_tensors 2^64-1", header(n_tensors=HUGE), "n_tensors", f"{HUGE} entries"),
    Rejected("n_kv 2^64-1", header(n_kv=HUGE), "n_kv", f"{HUGE} entries"),
    Rejected("n_tensors 10^9", header(n_tensors=BILLION), "n_tensors", f"{BILLION} entries need"),
    Rejected("n_kv 10^9", header(n_kv=BILLION), "n_kv", f"{BILLION} entries need"),
    Rejected("many tensors", header(n_tensors=1 << 17) + bytes(8 << 20), "n_tensors", "limit is 65536"),
    Rejected("many keys", header(n_kv=1 << 17) + bytes(8 << 20), "n_kv", "limit is 65536"),
]

METADATA = [
    Rejected("key of 2^64-1 bytes", header(n_kv=1) + string(b"x" * 9, HUGE), "key 0: name", f"{HUGE} bytes"),
    Rejected("empty key", container(kv("", U16, b"\1\0")), "key 0: name", "is empty"),
    Rejected("type 13", one_value(13, u64(0)), "k", "unknown value type 13"),
    Rejected("type 2^32-1", one_value(0xFFFFFFFF, u64(0)), "k", "unknown value type 4294967295"),
    Rejected("duplicate key", container(kv("k", U8, u8(1)), kv("k", U8, u8(2))), "k", "appears twice"),
    Rejected("string past the end", one_value(STRING, string("abc", 200)), "k", "200 bytes are needed"),
    Rejected("string of 2^31", one_value(STRING, string("abc", 2**31)), "k", "2147483648 bytes"),
    Rejected("string of 2^64-1", one_value(STRING, string("abc", HUGE)), "k", f"{HUGE} bytes"),
    Rejected("2^62 strings", strings(2**62), "k", "4611686018427387904 e"),
    Rejected("10^9 strings", strings(BILLION), "k", "1000000000 entries"),
    Rejected("a string too long", strings(2, string("a", 9) + u64(0)), "k", "takes more"),
    Rejected("the last too long", strings(1, string("a", 99)), "k", "are needed"),
    Rejected("a string of 2^63", strings(2, string("a" * 8, 2**63)), "k", "takes more"),
    Rejected("one of 2^64-1", strings(1, string("a" * 8, HUGE)), "k", "takes more"),
    Rejected("one of 2^64-9", strings(2, string("a" * 8, HUGE - 8)), "k", "takes more"),
    Rejected("floats past the end", floats(9, bytes(35)), "k", "9 entries need"),
    Rejected("2^64-1 floats", floats(HUGE), "k", f"{HUGE} entries"),
    Rejected("2^62 floats", floats(2**62), "k", "4611686018427387904 e"),
    Rejected("array of array", one_value(ARRAY, array(ARRAY, 1, array(U8, 1, u8(1)))), "k", "array of arrays"),
    Rejected("5,000 deep", one_value(ARRAY, array(ARRAY, 1) * 5000), "k", "array of arrays"),
    Rejected("unknown element", one_value(ARRAY, array(13, 1, u64(0))), "k", "unknown type 13"),
    Rejected("alignment 0", container(aligned(0)), "general.alignment", "0 is not a power of two"),
    Rejected("alignment 13", container(aligned(13)), "general.alignment", "13 is not a power of two"),
    Rejected("alignment 2^31", container(aligned(2**31)), "general.alignment", "up to 65536"),
    Rejected("alignment i32", container(aligned(32, I32)), "general.alignment", "its type is 5"),
    Rejected("alignment string", text("general.alignment", "32"), "general.alignment", "its type is 8"),
    Rejected("key not UTF-8", container(kv(b"\xff\xfe", U8, u8(1))), "key 0: name", "not valid UTF-8"),
    Rejected("key of 65,536", container(kv("k" * 65536, U8, u8(1))), "key 0: name", "the limit is 65535"),
    Rejected("architecture not UTF-8", text(NAME, b"ll\xffma"), NAME, "is not valid UTF-8 at byte 2"),
    Rejected("template not UTF-8", text(TEMPLATE, b"\xc3"), TEMPLATE, "is not valid UTF-8 at byte 0"),
    Rejected("escapes in a key", container(kv("a\x1b]0;owned\x07", 99, b"")), r"a\x1b]0;owned\x07", "unknown"),
    Rejected("part of two", number("split.count", U16, b"\2\0"), "split.count", "a model with 2 splits"),
    Rejected("part of 65535", number("split.count", U16, b"\xff\xff"), "split.count", "65535 splits"),
    Rejected("no parts", number("split.count", U16, b"\0\0"), "split.no", "no split 0 of 0"),
    Rejected("part out of range", number("split.no", U16, b"\1\0"), "split.no", "no split 1 of 1"),
    Rejected("negative part", number("split.no", I16, b"\xff\xff"), "split.no", "-1 is negative"),
    Rejected("more tensors in all", number("split.tensors.count", U16, b"\t\0"), "split.tensors.count", "9, but"),
    Rejected("tensors as a string", text("split.tensors.count", "1"), "split.tensors.count", "expected an integer"),
    Rejected("parts as a string", text("split.count", "2"), "split.count", "expected an integer, got a string"),
]

TABLE = [
    Rejected("name of 64", one_tensor(tensor("n" * 64)), "tensor 0: name", "64 bytes, the limit is 63"),
    Rejected("name of 65", one_tensor(tensor("n" * 65)), "tensor 0: name", "65 bytes, the limit is 63"),
    Rejected("empty name", one_tensor(tensor("")), "tensor 0: name", "is empty"),
    Rejected("name of 2^64-1", container(tensors=[string(b"a" * 40, HUGE)]), "tensor 0: name", "limit is 63"),
    Rejected("duplicate", two_tensors(tensor("a", offset=128)), "a", "twice"),
    Rejected("name not UTF-8", one_tensor(tensor(b"a\xff")), "tensor 0: name", "not valid UTF-8"),
    Rejected("5 dims", one_tensor(tensor(dims=(32, 1, 1, 1, 1))), "a", "5 dimensions"),
    Rejected("10^6 dims", one_tensor(tensor(n_dims=10**6)), "a", "1000000 dimensions"),
    Rejected("no dims", one_tensor(tensor(dims=()) + bytes(8)), "a", "0 dimensions"),
    Rejected("dim -1", one_tensor(tensor(dims=(32, -1))), "a", f"impossible shape [32, {HUGE}]"),
    Rejected("dim 0", one_tensor(tensor(dims=(32, 0))), "a", "impossible shape [32, 0]"),
    Rejected("row of 0", one_tensor(tensor(dims=(0,), type_id=TYPE_Q4_0)), "a", "impossible shape [0]"),
    Rejected("product > 2^63", one_tensor(tensor(dims=(2**40, 2**40))), "a", "bytes of data"),
    Rejected("product wraps to 4", one_tensor(tensor(dims=(4194305, 4194305, 211106198978564))), "a", "bytes"),
    Rejected("nbytes 2^64-16", one_tensor(tensor(dims=(4, 2**30 - 1, 2**30 + 1))), "a", "18446744073709551600 b"),
    Rejected(
        "sum wraps",
        two_tensors(tensor("b", (MAX_BYTES,), TYPE_I8, MAX_BYTES), tensor("a", (MAX_BYTES,), TYPE_I8)),
        "a",
        f"{MAX_BYTES} b",
    ),
    Rejected("type 9999", one_tensor(tensor(type_id=9999)), "a", "unknown tensor type 9999"),
    Rejected("type -1", one_tensor(tensor(type_id=-1)), "a", "unknown tensor type 4294967295"),
    Rejected("removed type", one_tensor(tensor(type_id=TYPE_Q4_2)), "a", "Q4_2 was removed"),
    Rejected("Q8_K", one_tensor(tensor(dims=(256,), type_id=TYPE_Q8_K)), "a", "Q8_K is not a storage type"),
    Rejected("row of 100 in Q4_K", one_tensor(tensor(dims=(100,), type_id=TYPE_Q4_K)), "a", "rows of 100"),
    Rejected("row of 33 in Q4_0", one_tensor(tensor(dims=(33,), type_id=TYPE_Q4_0)), "a", "multiple of the 32"),
    Rejected("escapes in a name", one_tensor(tensor("\x1b[31m\n", type_id=9999)), r"\x1b[31m\n", "9999"),
    Rejected("table cut", header(n_tensors=1) + tensor(dims=(32, 1))[:33], "a", "8 bytes are needed"),
]

DATA = [
    Rejected("offset 2^64-1", one_tensor(tensor(offset=HUGE)), "a", f"offset {HUGE} is not a multiple"),
    Rejected("offset 2^64-32", one_tensor(tensor(offset=HUGE - 31)), "a", f"offset {HUGE - 31}, but"),
    Rejected("offset past the end", one_tensor(tensor(offset=4096)), "a", "offset 4096, but"),
    Rejected("unaligned", one_tensor(tensor(offset=4), bytes(160)), "a", "multiple of the alignment 32"),
    Rejected("overlap", two_tensors(tensor("b", offset=96)), "b", "end at 128"),
    Rejected("same offset", two_tensors(tensor("b", offset=0)), "b", "offset 0, but"),
    Rejected("hole", two_tensors(tensor("b", offset=160)), "b", "offset 160, but"),
    Rejected("hole in front", one_tensor(tensor(offset=32), bytes(160)), "a", "offset 32, but"),
    Rejected("out of order", two_tensors(tensor("b"), tensor("a", offset=128)), "a", "offset 128, but"),
    Rejected("a byte short", one_tensor(A, bytes(127)), "a", "128 bytes of data at offset 64, but"),
    Rejected("no data", one_tensor(A, b""), "a", "but the file has 0 there"),
    Rejected("no padding either", header(n_tensors=1) + A, "a", "but the file has 0 there"),
    Rejected("offsets of another alignment", INCONSISTENT, "b", "multiple of the alignment 64"),
]

REJECTED = HEADER + METADATA + TABLE + DATA

# -------------------------------------------------------------------------------------- accepted files

ACCEPTED = [
    Accepted("nothing in it", header()),
    Accepted("version 2", header(version=2)),
    Accepted("a small valid file", VALID),
    Accepted("key of 65,535", container(kv("k" * 65535, U8, u8(1)))),
    Accepted("no strings", strings(0)),
    Accepted("no floats", floats(0)),
    Accepted("alignment 1", container(aligned(1), tensors=[A], data=bytes(128), alignment=1)),
    Accepted("alignment 65,536", container(aligned(65536), tensors=[A], data=bytes(128), alignment=65536)),
    Accepted("free text not UTF-8", text("general.name", b"\xff\xfe")),
    Accepted("NUL in a value", text(NAME, "lla\0ma")),
    Accepted("133 escapes in a value", text("general.name", "\x1b]8;;x\x07[red]x[/]")),
    Accepted("a bool of 2", one_value(BOOL, u8(2))),
    Accepted("the only part", container(kv("split.count", U16, b"\1\0"), kv("split.no", U16, b"\0\0"))),
    Accepted("name of 63", one_tensor(tensor("n" * 63))),
    Accepted("4 dims", one_tensor(tensor(dims=(32, 1, 1, 1)))),
    Accepted("no padding at the end", one_tensor(tensor(dims=(3,)), bytes(12))),
    Accepted("1 MiB behind the data", one_tensor(A, bytes(128 + (1 << 20)))),
]

# First bytes of other file types, and the name of the type in the error.
OTHER_KINDS = {
    b"version https://git-lfs.github.com/spec/v1\noid sha256:abc": "Git LFS pointer",
    b"PK\x03\x04archive/data.pkl": "ZIP archive",
    b'\x40\0\0\0\0\0\0\0{"a":{}}': "safetensors",
    b"<!DOCTYPE html><title>404</title>": "web page",
    b"\n <HTML><body>": "web page",
    b"tjgg\3\0\0\0": "old GGML",
    b"lmgg\3\0\0\0": "old GGML",
    b"\x1f\x8b\x08": "gzip",
    b"\x80\x02}q\0": "pickle",
    b'{"error": "not found"}': "JSON",
    bytes(100): "zero bytes",
    b"GG": "expected 'GGUF'",
    b"\x1b[2J\x07": r"found '\x1b[2J'",
}
