"""Tool calling: parsers that separate tool calls from the text of an answer.

    parser = tool_call_parser(template, tokenizer, tools)    # the chat template's text determines the call format
    result = parser.push(piece.text, piece.id)               # for each piece
    result.text, result.reasoning, result.calls, result.problem
    result = parser.finish()                                 # the text that was still held back

    parse_pieces(pieces, parser)                             # the same for pieces

Text is passed on as soon as it certainly does not belong to a call. The source text of a call is never passed on,
unless the call cannot be parsed: then it is part of the answer, and `problem` is the reason.

    tool_call          construction of calls, parse results, and tool schemas
    families           the call format of each chat template; a module for each kind of format:
                       json_calls  xml_calls  mistral  named_calls  pythonic  gemma
    delimited_calls    calls between delimiters, in a text that arrives piece by piece
    bare_json          calls without delimiters
    harmony            the channels of gpt-oss
    parser             the common interface
"""

from ..pieces import ToolCall
from .parser import ToolCallParser, parse_pieces, tool_call_parser
from .tool_call import ParseResult

__all__ = ["ParseResult", "ToolCall", "ToolCallParser", "parse_pieces", "tool_call_parser"]
