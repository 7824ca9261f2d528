"""Calls as Python writes them: [name(key="value"), ...] of LFM 2, and name.call(key="value") of Llama 3."""

import ast
from typing import Any

from localinfer.generation.calls.call import Tools, call
from localinfer.generation.calls.json_calls import json_calls
from localinfer.generation.pieces import Call

LONGEST = 100_000  # characters
CONSTANTS = {"true": True, "false": False, "null": None}  # of JSON


def pythonic_calls(text: str, tools: Tools) -> list[Call]:
    """Also where the model turns to JSON."""
    if text.lstrip().startswith(("{", "[{")):
        return json_calls(text, tools)
    if len(text) > LONGEST:
        raise ValueError("it is too long")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        calls = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
        return [call_of(each) for each in calls]
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"it is no call in Python: {error}") from None


def call_of(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args or any(each.arg is None for each in node.keywords):
        raise ValueError("it is no call with named arguments")
    name = ast.unparse(node.func).removesuffix(".call")
    return call(name, {str(each.arg): value_of(each.value) for each in node.keywords})


def value_of(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [value_of(each) for each in elements]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {str(value_of(key)): value_of(value) for key, value in zip(keys, values, strict=True) if key}
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    raise ValueError("an argument is no value")
