"""The loop of a matrix product kernel that multiplies, as straight code with the amount of work that it does."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from assembly_loops import Block, Instruction, Loop, all_loops, basic_blocks, find_loops, iteration, trip_count

SUPERBLOCK = 256  # columns


@dataclass(frozen=True)
class HotLoop:
    """One iteration of a loop over superblocks or blocks, with its inner loops repeated as often as they run."""

    name: str
    instructions: list[Instruction]

    @cached_property
    def products(self) -> float:
        """The products of bytes, or else of floats, that an iteration adds up."""
        return sum(each.products for each in self.instructions) or sum(
            each.float_products for each in self.instructions
        )

    @property
    def has_matrix_products(self) -> bool:
        """Whether it uses instructions that multiply two rows by two tokens."""
        return any(each.name.endswith("mmla") for each in self.instructions)


def own_products(blocks: Sequence[Block], loop: Loop) -> float:
    """Return the products in the code of a loop, each instruction counted once."""
    inside = [each for number in loop.blocks for each in blocks[number].instructions]
    return sum(each.products for each in inside) or sum(each.float_products for each in inside)


def hot_loops(name: str, lines: Sequence[str], inner_trips: int = 0) -> list[HotLoop]:
    """Return the loops of a function that multiply and have no inner loop of unknown length that multiplies.

    With `inner_trips`, they are the loops around these, which run `inner_trips` times: the loop over superblocks around
    that over streams of rows.
    """
    blocks = basic_blocks(lines)
    loops = [loop for loop in all_loops(find_loops(blocks)) if own_products(blocks, loop)]

    def is_counted(loop: Loop) -> bool:
        return trip_count(blocks, loop) is not None

    def innermost(loop: Loop) -> bool:
        return not any(own_products(blocks, child) and not is_counted(child) for child in loop.children)

    chosen = [loop for loop in loops if not is_counted(loop) and innermost(loop)]
    if not inner_trips:
        return [HotLoop(name, iteration(blocks, loop, {})) for loop in chosen]
    outer_loops = [next((outer for outer in loops if loop in outer.children), loop) for loop in chosen]
    trips = {inner.header: inner_trips for inner in chosen}
    return [HotLoop(name, iteration(blocks, loop, trips)) for loop in outer_loops]
