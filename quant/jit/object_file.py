"""Object files of kernels: the relocatable ELF files that LLVM writes, and how they are linked for an address.

Kernels are simple. Their code reads constants beside it, calls few functions of the system, and writes only to memory
that it is given. An object file therefore has code, constants and a handful of relocation types, and linking it takes a
fraction of a millisecond. LLVM's loader would add 60 MB to the memory of a process, and 26 ms to its start.

Every size and offset in a file is checked before it is used. The formats are defined by the System V ABI (object
files), its supplement for x86-64, and "ELF for the Arm 64-bit Architecture".

This module does not import llvmlite.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

HEADER, SECTION = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ")
SYMBOL, RELOCATION = struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
WORD, ADDRESS = struct.Struct("<I"), struct.Struct("<Q")

IDENTIFICATION = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
RELOCATABLE = 1  # e_type
X86_64, AARCH64 = 62, 183  # e_machine
PROGBITS, SYMTAB, RELA, NOBITS = 1, 2, 4, 8  # sh_type
WRITABLE, ALLOCATED = 1, 2  # sh_flags
UNWIND_SECTION = ".eh_frame"  # for exceptions, which kernels do not raise
MAX_ALIGNMENT = 4096  # of a section: an image begins at a page

STUB_BYTES = 16
# Stubs jump to the address in their last 8 bytes, because a function may be too far away for a relative address.
STUBS = {
    X86_64: bytes.fromhex("ff2502000000 9090"),  # jmp [rip + 2]; nop; nop
    AARCH64: bytes.fromhex("50000058 00021fd6"),  # ldr x16, #8; br x16
}


class ObjectFileError(ValueError):
    """An object file is damaged, or has what kernels do not use."""


class SectionHeader(NamedTuple):
    """A section header, with ELF's names."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_bytes: int


class Section(NamedTuple):
    """A section of code or constants, and its offset in the image."""

    content: memoryview
    offset: int


class Symbol(NamedTuple):
    """A symbol, and its offset in the image, or None if it is not defined in the file."""

    name: str
    offset: int | None


class Relocation(NamedTuple):
    """A place in the image that depends on the address of a symbol: `kind` is the type of the relocation."""

    offset: int
    kind: int
    symbol: Symbol
    addend: int


# --- relocation types -------------------------------------------------------------------------------------------------

# A function of the image, the offset of the place in it, the address of the place, and the address to store.
Relocate = Callable[[bytearray, int, int, int], None]


def store_absolute(image: bytearray, offset: int, place: int, value: int) -> None:
    """Store a 64-bit address."""
    ADDRESS.pack_into(image, offset, value)


def store_relative(image: bytearray, offset: int, place: int, value: int) -> None:
    """Store the distance from the place as a signed 32-bit number."""
    WORD.pack_into(image, offset, checked_distance(value - place, 32))


def store_branch(image: bytearray, offset: int, place: int, value: int) -> None:
    """Store the distance from the place, in instructions, in the low 26 bits of a branch instruction of aarch64."""
    instruction = WORD.unpack_from(image, offset)[0] & ~0x3FFFFFF
    WORD.pack_into(image, offset, instruction | checked_distance((value - place) // 4, 26))


def store_half_word(number: int) -> Relocate:
    """Return the function that stores 16 bits of an address, from bit 16 * `number` on, in a move instruction of
    aarch64."""

    def store(image: bytearray, offset: int, place: int, value: int) -> None:
        instruction = WORD.unpack_from(image, offset)[0] & ~(0xFFFF << 5)
        WORD.pack_into(image, offset, instruction | (value >> 16 * number & 0xFFFF) << 5)

    return store


def checked_distance(distance: int, bits: int) -> int:
    """Return a distance as an unsigned number of so many bits. Raises ObjectFileError if it is too large."""
    if not -(1 << bits - 1) <= distance < 1 << bits - 1:
        raise ObjectFileError("an address is too far away")
    return distance & (1 << bits) - 1


RELOCATE: Mapping[int, Mapping[int, Relocate]] = {
    X86_64: {1: store_absolute, 2: store_relative, 4: store_relative},
    AARCH64: {
        257: store_absolute,
        **{263 + n: store_half_word(n // 2) for n in range(7)},  # three of them with and without overflow check
        282: store_branch,
        283: store_branch,
    },
}
NEAR = (store_relative, store_branch)  # these reach functions of the system through a stub


# --- parsing ----------------------------------------------------------------------------------------------------------


class ObjectFile:
    """A parsed object file. Its image is what it takes in memory: the sections, then stubs for functions of the system.

    `size` is the size of the image, `entry` the offset of the function `symbol` in it, and `undefined` has the names of
    symbols that are defined elsewhere. Raises ObjectFileError unless the file is well-formed, defines the symbol, and
    has nothing but code and constants.
    """

    def __init__(self, code: bytes, symbol: str) -> None:
        self.size = 0
        try:
            self._parse(memoryview(code), symbol)
        except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
            raise ObjectFileError(f"damaged object file: {error}") from None

    def _parse(self, code: memoryview, entry: str) -> None:
        identification, kind, self.machine, *_, sections_at = HEADER.unpack_from(code)[:7]
        entry_bytes, count, names = HEADER.unpack_from(code)[11:]
        require(identification.startswith(IDENTIFICATION) and kind == RELOCATABLE, "not a relocatable ELF file")
        require(self.machine in RELOCATE and entry_bytes == SECTION.size, "for another kind of machine")
        headers = [
            SectionHeader._make(SECTION.unpack_from(code, sections_at + number * SECTION.size))
            for number in range(count)
        ]
        self.sections = self._place_sections(code, headers, content_of(code, headers[names]))
        tables = [header for header in headers if header.type == SYMTAB]
        require(len(tables) == 1, "not exactly one symbol table")
        symbols = list(self._read_symbols(content_of(code, tables[0]), content_of(code, headers[tables[0].link])))
        offsets = [symbol.offset for symbol in symbols if symbol.name == entry and symbol.offset is not None]
        require(len(offsets) == 1, f"does not define {entry}")
        self.entry = offsets[0]
        self.relocations = [
            relocation
            for header in headers
            if header.type == RELA and header.info in self.sections
            for relocation in self._read_relocations(content_of(code, header), self.sections[header.info], symbols)
        ]
        outside = [each for each in self.relocations if each.symbol.offset is None]
        self.undefined = sorted({each.symbol.name for each in outside})
        far = {each.symbol.name for each in outside if RELOCATE[self.machine][each.kind] in NEAR}
        self.stubs = {name: self._reserve(STUB_BYTES, STUB_BYTES) for name in sorted(far)}

    def _reserve(self, nbytes: int, alignment: int) -> int:
        """Reserve aligned bytes at the end of the image and return their offset."""
        require(alignment.bit_count() == 1 and alignment <= MAX_ALIGNMENT, "wrong alignment")
        offset = -(-self.size // alignment) * alignment
        self.size = offset + nbytes
        return offset

    def _place_sections(
        self, code: memoryview, headers: Sequence[SectionHeader], names: memoryview
    ) -> dict[int, Section]:
        """Give each section of code or constants its place in the image. Return them by number."""
        placed = {}
        for number, header in enumerate(headers):
            if not header.flags & ALLOCATED or header.type not in (PROGBITS, NOBITS):
                continue
            if text_at(names, header.name) == UNWIND_SECTION:
                continue
            require(header.type == PROGBITS and not header.flags & WRITABLE, "has writable data")
            offset = self._reserve(header.size, max(1, header.alignment))
            placed[number] = Section(content_of(code, header), offset)
        return placed

    def _read_symbols(self, table: memoryview, names: memoryview) -> Iterator[Symbol]:
        require(len(table) % SYMBOL.size == 0, "cut symbol table")
        for name, _, _, number, value, _ in SYMBOL.iter_unpack(table):
            section = self.sections.get(number)
            require(section is None or value <= len(section.content), "a symbol is outside of its section")
            yield Symbol(text_at(names, name), None if section is None else section.offset + value)

    def _read_relocations(self, table: memoryview, section: Section, symbols: Sequence[Symbol]) -> Iterator[Relocation]:
        require(len(table) % RELOCATION.size == 0, "cut relocation table")
        for offset, info, addend in RELOCATION.iter_unpack(table):
            kind, symbol = info & 0xFFFFFFFF, symbols[info >> 32]
            require(kind in RELOCATE[self.machine], f"relocation type {kind}")
            width = ADDRESS.size if RELOCATE[self.machine][kind] is store_absolute else WORD.size
            require(offset + width <= len(section.content), "a relocation is outside of its section")
            yield Relocation(section.offset + offset, kind, symbol, addend)

    # --- linking ---

    def link(self, base: int, address_of: Callable[[str], int]) -> bytearray:
        """Return the image for the address `base`, a multiple of MAX_ALIGNMENT.

        `address_of` returns the address of a symbol that is defined elsewhere. Raises its errors, and ObjectFileError
        if an address is too far away.
        """
        image = bytearray(self.size)
        for section in self.sections.values():
            image[section.offset : section.offset + len(section.content)] = section.content
        for name, offset in self.stubs.items():
            image[offset : offset + STUB_BYTES] = STUBS[self.machine] + ADDRESS.pack(address_of(name))
        for offset, kind, symbol, addend in self.relocations:
            relocate, at = RELOCATE[self.machine][kind], symbol.offset
            if at is None and relocate in NEAR:
                at = self.stubs[symbol.name]
            target = address_of(symbol.name) if at is None else base + at
            relocate(image, offset, base + offset, target + addend & 0xFFFFFFFFFFFFFFFF)
        return image


def require(condition: bool, what: str) -> None:
    """Raise ObjectFileError unless the condition holds."""
    if not condition:
        raise ObjectFileError(f"object file: {what}")


def content_of(code: memoryview, header: SectionHeader) -> memoryview:
    """Return the content of a section. Raises ObjectFileError if it is outside of the file."""
    require(header.offset + header.size <= len(code), "a section is outside of the file")
    return code[header.offset : header.offset + header.size]


def text_at(table: memoryview, offset: int) -> str:
    """Return the text in a string table that begins at an offset and ends with a zero byte."""
    text, end, _ = bytes(table[offset:]).partition(b"\0")
    require(bool(end), "a name does not end")
    return text.decode()
