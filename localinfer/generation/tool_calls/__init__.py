"""Parsers that separate an answer into reasoning, text and tool calls.

    parser = answer_parser(template, tokenizer, tools)       # the chat template's text determines the format
    result = parser.push(piece.text, piece.id)               # for each piece
    result.text, result.reasoning, result.calls, result.problem
    result = parser.finish()                                 # the text that was still held back

    parse_pieces(pieces, parser)                             # the same for pieces

Text is passed on as soon as it certainly does not belong to a call. The source text of a call is never passed on,
unless the call cannot be parsed: then it is part of the answer, and `problem` is the reason.

    tool_call          construction of calls, parse results, and tool schemas
    families           the format of each chat template; a module for each kind of call:
                       json_calls  xml_calls  mistral  named_calls  pythonic  gemma
    answer_parser      reasoning and calls between delimiters, in a text that arrives piece by piece
    markers            tags and delimiters in a text that is not complete
    argument_stream    arguments that are passed on while they arrive
    bare_json          calls without delimiters
    fenced_calls       calls in Markdown, in code blocks at the end of an answer
    addressed_messages answers in messages with headers, as those of gpt-oss
    parser             the common interface
    call_syntax        the syntax of calls
    call_grammar       grammars of calls, from their syntax and the JSON schemas of the tools
    call_constraint    constraints that apply them, to every answer or from its first call on
"""

from ..pieces import ToolCall
from .parser import ToolCallParser, answer_parser, parse_pieces
from .tool_call import ParseResult

__all__ = ["ParseResult", "ToolCall", "ToolCallParser", "answer_parser", "parse_pieces"]
