"""Calls in Python syntax: [name(key="value"), ...] of LFM 2, name.call(key="value") of Llama 3, and a call in each line
of OLMo 3.
"""

import ast
from typing import Any

from localinfer.generation.pieces import ToolCall
from localinfer.generation.tool_calls.json_calls import json_calls
from localinfer.generation.tool_calls.tool_call import ToolSchemas, make_tool_call

MAX_CHARACTERS = 100_000
CONSTANTS = {"true": True, "false": False, "null": None}  # JSON's names


def pythonic_calls(text: str, tools: ToolSchemas) -> list[ToolCall]:
    """Parse calls in Python syntax, or in JSON if the model writes that."""
    if text.lstrip().startswith(("{", "[{")):
        return json_calls(text, tools)
    if len(text) > MAX_CHARACTERS:
        raise ValueError("too long")
    try:
        statements = ast.parse(text.strip()).body
        if not statements or not all(isinstance(each, ast.Expr) for each in statements):
            raise ValueError("not a Python call")
        values = [each.value for each in statements if isinstance(each, ast.Expr)]
        lists = [each.elts if isinstance(each, ast.List | ast.Tuple) else [each] for each in values]
        return [call_from_node(each) for calls in lists for each in calls]
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"not a Python call: {error}") from None


def call_from_node(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args or any(each.arg is None for each in node.keywords):
        raise ValueError("not a call with named arguments")
    name = ast.unparse(node.func).removesuffix(".call")
    return make_tool_call(name, {str(each.arg): literal_value(each.value) for each in node.keywords})


def literal_value(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [literal_value(each) for each in elements]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {
                str(literal_value(key)): literal_value(value) for key, value in zip(keys, values, strict=True) if key
            }
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    raise ValueError("an argument is not a literal")
