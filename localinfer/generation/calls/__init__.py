"""Calls of tools, told apart from the answer that they stand in.

    parser = calls.parser(template, tokenizer, tools)    # the template's text says how the model writes calls
    parsed = parser.push(piece.text, piece.id)           # for each piece, as it comes
    parsed.text, parsed.thought, parsed.calls, parsed.problem
    parsed = parser.finish()                             # what was still held back

    told_apart(pieces, parser)                           # the same for pieces

A text goes on as soon as it is certain that it does not belong to a call; that of a call never does, unless the call
cannot be read: then it is part of the answer, and `problem` says so.

    call        what a call is, and what a parser gives out
    families    which template writes which form; a file for each kind of form:
                json_calls  tagged  mistral  marked_names  pythonic  gemma
    frames      calls between marks, in a text that comes piece by piece
    bare        calls without marks
    harmony     the channels of gpt-oss
    parser      all of it behind one face
"""

from ..pieces import Call
from .call import Parsed
from .parser import Parser, parser, told_apart

__all__ = ["Call", "Parsed", "Parser", "parser", "told_apart"]
