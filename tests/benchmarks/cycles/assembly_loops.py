"""Finds the loops of a function in AArch64 assembly, and writes out an iteration as a sequence of instructions.

A loop nest is written out with its inner loops repeated as often as they run, so that a simulator of straight code can
estimate it. The assembly is what LLVM and clang print for Linux.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

LABEL = re.compile(r"^([\w.$]+):")
INSTRUCTION = re.compile(r"^\t([a-z][\w.]*)(?:\t(.*))?$")
BRANCH = re.compile(r"^(b|b\.\w+|cbz|cbnz|tbz|tbnz)$")

# Multiplications and additions of an instruction: the dot products of bytes, and the multiply-adds of floats.
PRODUCTS = {"sdot": 16, "udot": 16, "usdot": 16, "smmla": 32, "ummla": 32, "usmmla": 32}
FLOAT_LANES = {"4s": 4, "8h": 8}
FLOAT_PRODUCTS = {"fmla": 1, "fmul": 1, "fmlal": 0.5, "fmlal2": 0.5, "bfmlalb": 1, "bfmlalt": 1}


@dataclass(frozen=True)
class Instruction:
    """An instruction: its mnemonic and its operands."""

    name: str
    operands: str = ""

    @property
    def text(self) -> str:
        """The instruction as the assembler reads it."""
        return f"{self.name}\t{self.operands}"

    @property
    def target(self) -> str | None:
        """The label that a branch may jump to."""
        return self.operands.split(",")[-1].strip() if BRANCH.match(self.name) else None

    @property
    def products(self) -> float:
        """The products of bytes that it adds up."""
        return PRODUCTS.get(self.name, 0)

    @property
    def float_products(self) -> float:
        """The products of floats that it adds up."""
        lanes = re.match(r"v\d+\.(\w+)", self.operands)
        if self.name == "bfmmla":
            return 16
        return FLOAT_PRODUCTS.get(self.name, 0) * FLOAT_LANES.get(lanes[1] if lanes else "", 0)


@dataclass
class Block:
    """A basic block: instructions that are executed in sequence, and the blocks that may follow."""

    instructions: list[Instruction] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)


def functions(assembly: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the lines of each function."""
    name, lines = "", list[str]()
    for line in assembly.splitlines():
        started = re.match(r"^\t\.type\t([\w.$]+),\s*[@%]function", line)
        if started:
            name, lines = started[1], []
        elif name and line.startswith("\t.size"):
            yield name, lines
            name = ""
        elif name:
            lines.append(line)


def basic_blocks(lines: Iterable[str]) -> list[Block]:
    """Divide a function into basic blocks."""
    blocks, at, ended = [Block()], dict[str, int](), False
    for line in lines:
        line = re.split(r"//|\s;", line)[0].rstrip()
        label, instruction = LABEL.match(line), INSTRUCTION.match(line)
        if label:
            if blocks[-1].instructions:
                blocks.append(Block())
            at[label[1]], ended = len(blocks) - 1, False
        elif instruction:
            if ended:
                blocks.append(Block())
            blocks[-1].instructions.append(Instruction(instruction[1], instruction[2] or ""))
            ended = bool(BRANCH.match(instruction[1])) or instruction[1] in ("ret", "br")
    for number, block in enumerate(blocks):
        last = block.instructions[-1] if block.instructions else Instruction("nop")
        if last.target in at:
            block.successors.append(at[last.target])
        if last.name not in ("b", "ret", "br") and number + 1 < len(blocks):
            block.successors.append(number + 1)
    return blocks


@dataclass(frozen=True)
class Loop:
    """A loop: the numbers of its blocks, the block that it begins with, and the loops within it."""

    blocks: frozenset[int]
    header: int
    children: tuple["Loop", ...]


def strong_components(blocks: list[Block], among: frozenset[int]) -> list[frozenset[int]]:
    """Return the sets of blocks that reach each other (Tarjan's algorithm without recursion)."""
    order, lowest, stack, found = dict[int, int](), dict[int, int](), list[int](), list[frozenset[int]]()
    for root in sorted(among):
        if root in order:
            continue
        pending = [(root, iter(blocks[root].successors))]
        order[root] = lowest[root] = len(order)
        stack.append(root)
        while pending:
            block, following = pending[-1]
            after = next((each for each in following if each in among and (each not in order or each in stack)), None)
            if after is None:
                pending.pop()
                if pending:
                    lowest[pending[-1][0]] = min(lowest[pending[-1][0]], lowest[block])
                if lowest[block] == order[block]:
                    at = stack.index(block)
                    found.append(frozenset(stack[at:]))
                    del stack[at:]
            elif after in order:
                lowest[block] = min(lowest[block], order[after])
            else:
                order[after] = lowest[after] = len(order)
                stack.append(after)
                pending.append((after, iter(blocks[after].successors)))
    return found


def find_loops(blocks: list[Block], among: frozenset[int] | None = None) -> tuple[Loop, ...]:
    """Return the outermost loops of a function, in the order of the code. Each knows the loops within it."""
    inside = frozenset(range(len(blocks))) if among is None else among
    loops = []
    for component in strong_components(blocks, inside):
        if len(component) == 1 and not component & set(blocks[min(component)].successors):
            continue
        entered = {after for number in set(range(len(blocks))) - component for after in blocks[number].successors}
        header = min(component & entered, default=min(component))
        loops.append(Loop(component, header, find_loops(blocks, component - {header})))
    return tuple(sorted(loops, key=lambda loop: loop.header))


def all_loops(loops: Iterable[Loop]) -> Iterator[Loop]:
    """Yield loops and the loops within them."""
    for loop in loops:
        yield loop
        yield from all_loops(loop.children)


def number_in(text: str) -> int | None:
    """Return the integer that an operand such as #8 or xzr stands for, if any."""
    text = text.strip()
    if text in ("xzr", "wzr"):
        return 0
    return int(text[1:], 0) if re.fullmatch(r"#-?(0x)?[0-9a-f]+", text) else None


def register_number(register: str) -> str:
    """Return the number of a general register, for both of its widths: "8" for x8 and w8."""
    return register.strip()[1:]


def trip_count(blocks: list[Block], loop: Loop) -> int | None:
    """Return how often a loop runs if it counts to a constant, else None."""
    in_children = {number for child in loop.children for number in child.blocks}
    for number in sorted(loop.blocks - in_children):
        block, outside = blocks[number], set(blocks[number].successors) - loop.blocks
        if block.instructions and outside and len(block.successors) == 2:
            count = count_of_exit(blocks, loop, block.instructions)
            if count:
                return count
    return None


def count_of_exit(blocks: list[Block], loop: Loop, instructions: list[Instruction]) -> int | None:
    """Return how often a loop runs, given the block that may end it, if that block compares a counter with a
    constant.
    """
    end = instructions[-1]
    if end.name in ("tbz", "tbnz") and end.operands.split(",")[1] == " #0":
        return 2  # LLVM counts to two with a flag
    compares = [each for each in instructions if each.name in ("cmp", "subs", "adds")]
    if not compares:
        return None
    *_, left, right = compares[-1].operands.split(",")
    counter, limit = register_number(left), number_in(right)
    first = initial_value(blocks, loop, counter)
    if limit is None or first is None:
        return None
    if compares[-1].name != "cmp":
        return abs(first // limit)
    inside = [each for number in loop.blocks for each in blocks[number].instructions if each.name == "add"]
    steps = [each for each in (add.operands.split(",") for add in inside) if register_number(each[1]) == counter]
    steps = [each for each in steps if each[0][0] in "xw" and len(each) == 3 and number_in(each[2])]
    if len(steps) != 1:
        return None
    is_old_value = register_number(steps[0][0]) != counter  # it is compared before it is increased
    return -(-(limit - first) // (number_in(steps[0][2]) or 1)) + is_old_value


def initial_value(blocks: list[Block], loop: Loop, counter: str) -> int | None:
    """Return the constant that a register holds before a loop, if the code in front of the loop sets it."""
    before = [
        each for number in range(loop.header) if number not in loop.blocks for each in blocks[number].instructions
    ]
    for each in reversed(before):
        operands = each.operands.split(",")
        if operands[0][:1] in "xw" and register_number(operands[0]) == counter:
            return number_in(operands[1]) if each.name == "mov" else None
    return None


def iteration(blocks: list[Block], loop: Loop, trips: dict[int, int]) -> list[Instruction]:
    """Return the instructions of one iteration of a loop. `trips` has how often the loops within it run, by header; a
    loop that is not in it runs once unless it counts to a constant.
    """
    instructions, child_of = [], {number: child for child in loop.children for number in child.blocks}
    written = set[int]()
    for number in sorted(loop.blocks):
        child = child_of.get(number)
        if child is None:
            instructions += blocks[number].instructions
        elif child.header not in written:
            written.add(child.header)
            count = trips.get(child.header) or trip_count(blocks, child) or 1
            instructions += count * iteration(blocks, child, trips)
    return instructions
