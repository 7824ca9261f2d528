"""Display of typed text in the line editor: every character takes the columns that the editor counts for it.

Terminals disagree about the width of joined emoji: a family is two columns in some and eight in others. A line editor
moves the cursor by columns, so it would destroy the line in one of them. The parts are shown side by side instead. The
message itself is not changed.
"""

from bisect import bisect_right
from itertools import accumulate

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.formatted_text.utils import fragment_list_to_text
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput

from localinfer.escaping import terminal_text

JOINERS = dict.fromkeys(["\u200d", "\ufe0e", "\ufe0f", *map(chr, range(0xE0020, 0xE0080))], "")
SKIN_TONES = dict.fromkeys(map(chr, range(0x1F3FB, 0x1F400)), "")
FLAG_LETTERS = {chr(0x1F1E6 + number): chr(ord("A") + number) for number in range(26)}
SHOWN = JOINERS | SKIN_TONES | FLAG_LETTERS


class InputDisplay(Processor):
    """Shows the parts of joined emoji, and escapes characters that the terminal would interpret."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        fragments = transformation_input.fragments
        text = fragment_list_to_text(fragments)
        if text.isascii():
            return Transformation(fragments)
        starts = [0, *accumulate(len(shown(character)) for character in text)]
        visible: StyleAndTextTuples = [
            (fragment[0], "".join(map(shown, fragment[1])), *fragment[2:])
            for fragment in fragments
        ]
        return Transformation(
            visible,
            source_to_display=lambda at: starts[min(at, len(text))],
            display_to_source=lambda at: max(bisect_right(starts, at) - 1, 0),
        )


def shown(character: str) -> str:
    return SHOWN.get(character, terminal_text(character))
