"""Grammars of tool calls: in the syntax of a family, with arguments that match the JSON schemas of the tools.

Grammars are in llguidance's variant of Lark. Control tokens have no text; the grammar has their ids.
"""

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from localinfer.errors import ConstraintError
from localinfer.generation.structured.schema_compiler import OPTIONS
from localinfer.generation.structured.schema_rewriting import DEFINITIONS
from localinfer.generation.tool_calls.bare_json import CLOSINGS
from localinfer.generation.tool_calls.call_syntax import CallSyntax
from localinfer.generation.tool_calls.tool_call import (
    Tool,
    as_list,
    closed_schema,
    function_of,
    item_schema,
    schema_types,
)
from localinfer.tokenizer import Tokenizer

VARIABLE = re.compile(r"(\$[A-Z_]+)")
EXPRESSIONS = {"$INDEX": "/[0-9]/", "$ID": "/[a-z0-9]{10}/", "$BREAK": '"\\n"?'}
SPACE = "/[ \\n]{1,4}/"  # before the first call
SPACE_IN_JSON = "/[ \\n\\t]{1,24}/"
MAX_LENGTH = 2000  # of a text; larger limits are not applied
ALTERNATIVES = {"anyOf", "oneOf", "allOf", "enum", "const"}  # keywords of schemas that are not made into parameters
MAX_DEPTH = 5  # of nested values in a format with its own quotes; deeper ones are not constrained
Schema = Mapping[str, Any]
RewriteSchema = Callable[[dict[str, Any]], tuple[dict[str, Any], str]]


class CallGrammar:
    """The grammar of the calls of some tools, between an opening and a closing delimiter.

    `rewrite` returns a schema as a grammar can express it, and the problem, "" for none. With `is_strict`, a problem is
    a ConstraintError; otherwise the arguments of its tool are any object, with a warning.
    """

    def __init__(
        self, syntax: CallSyntax, delimiters: tuple[str, str], tools: Sequence[Tool], tokenizer: Tokenizer,
        rewrite: RewriteSchema, *, is_strict: bool = False,
    ) -> None:  # fmt: skip
        self._syntax = syntax
        self._opening, self._closing = delimiters
        self._tokenizer, self._rewrite = tokenizer, rewrite
        self._rules: dict[str, str] = {}
        self._n_rules = 0
        self._schemas: dict[str, Schema] = {}
        self._calls = []
        for function in map(function_of, tools):
            name = function["name"]
            try:
                self._schemas[name] = arguments_schema(function, rewrite, is_strict=is_strict)
                self._calls.append(self._call(name, self._schemas[name]))
            except ConstraintError as error:  # of the worker that rewrites a schema
                raise ConstraintError(f"tool {name}: {str(error).partition(': ')[2]}") from None

    def text(self, *, with_opening: bool, is_parallel: bool) -> str:
        """Return the grammar of an answer that consists of calls, or of its text after the opening delimiter.

        Without it, a call may also be JSON without delimiters, as small models write it.
        """
        syntax = self._syntax
        opening, closing = self._literal(self._opening), self._literal(self._closing)
        calls = "call"
        if is_parallel and syntax.separator is not None:
            calls = f"call ({self._literal(syntax.separator)} call)*"
        section = f"{self._literal(syntax.begin)} {calls} {self._literal(syntax.end)} {closing}"
        start = f"{SPACE}? {opening} section" if with_opening else "section"
        if with_opening and syntax.before:
            before, _, after = syntax.before.partition("$TEXT")
            start = f"({self._literal(before)} {self._text_before(after)})? {start}"
        if is_parallel and syntax.separator is None and syntax.between is not None:
            start += f" ({self._literal(syntax.between)} {opening} section)*"
        if not with_opening:
            start += f" | bare ({SPACE} bare)*" if is_parallel else " | bare"
            self._rules["bare"] = " | ".join(self._bare_call(name, schema) for name, schema in self._schemas.items())
            self._rules["w"] = f"{SPACE_IN_JSON}?"
        rules = {"start": start, "section": section, "call": " | ".join(self._calls), **self._rules}
        return "\n".join(["%llguidance {}", *(f"{name}: {rule}" for name, rule in rules.items()), ""])

    def _rule(self, prefix: str, expression: str) -> str:
        """Add a rule, and return its name."""
        self._n_rules += 1
        name = f"{prefix}{self._n_rules}"
        self._rules[name] = expression
        return name

    def _call(self, name: str, schema: Schema) -> str:
        values = {}
        if "$ARGUMENTS" in self._syntax.call:
            values["$ARGUMENTS"] = self._json(schema)
        if "$PARAMETERS" in self._syntax.call:
            values["$PARAMETERS"] = self._parameters(schema)
        return self._rule("call", self._expand(self._syntax.call.replace("$NAME", name), values))

    def _bare_call(self, name: str, schema: Schema) -> str:
        """Return the rule of a call in JSON, with any white space, and of what may close it."""
        name, arguments = json.dumps(json.dumps(name)), self._json(schema)
        keys = " | ".join(json.dumps(json.dumps(key)) for key in ("arguments", "parameters"))
        closings = " | ".join(map(json.dumps, CLOSINGS))
        return self._rule(
            "bare", rf'"{{" w "\"name\"" w ":" w {name} w "," w ({keys}) w ":" w {arguments} w "}}" (w ({closings}))?'
        )

    def _expand(self, template: str, values: Mapping[str, str]) -> str:
        """Return the expression of a template."""
        known = EXPRESSIONS | dict(values)
        parts = (known[part] if part in known else self._literal(part) for part in VARIABLE.split(template))
        return " ".join(filter(None, parts))

    def _literal(self, text: str) -> str:
        """Return the expression of a text that may contain control tokens."""
        terms = []
        for part in self._tokenizer.split(text, strip=False):
            if isinstance(part, int) and not self._tokenizer.token_bytes(part):
                terms.append(f"<[{part}]>")
            elif part or part == 0:
                plain = part if isinstance(part, str) else self._tokenizer.token_bytes(part).decode("utf-8", "replace")
                terms.append(json.dumps(plain, ensure_ascii=False))
        return " ".join(terms)

    def _json(self, schema: Schema) -> str:
        return self._rule("json", f"%json {json.dumps({'x-guidance': OPTIONS, **schema})}")

    # --- arguments one by one ---

    def _parameters(self, schema: Schema, depth: int = 0) -> str:
        """Return the expression of all parameters. Optional ones may be omitted; those without separators keep the
        order of the schema.
        """
        required = schema.get("required", ())
        names = list(schema.get("properties", {}))
        if self._syntax.parameter_separator:
            names.sort(key=lambda name: name not in required)
        definitions = {key: schema[key] for key in DEFINITIONS if key in schema}
        values = {name: as_mapping(schema["properties"][name]) for name in names}
        rules = [(self._parameter(name, {**definitions, **values[name]}, depth), name in required) for name in names]
        if not self._syntax.parameter_separator:
            return " ".join(rule if is_required else f"{rule}?" for rule, is_required in rules)
        return self._rule("list", self._separated(rules))

    def _separated(self, rules: Sequence[tuple[str, bool]]) -> str:
        """Return the expression of parameters with separators, of which the required ones come first."""
        separator = self._literal(self._syntax.parameter_separator)
        tails = [f"{separator} {rule}" if is_required else f"({separator} {rule})?" for rule, is_required in rules]
        firsts = [index for index in range(len(rules)) if not any(required for _, required in rules[:index])]
        starts = [" ".join([rules[index][0], *tails[index + 1 :]]) for index in firsts]
        is_empty_allowed = not any(is_required for _, is_required in rules)
        return " | ".join([*starts, *(['""'] if is_empty_allowed else [])])

    def _parameter(self, name: str, schema: Schema, depth: int) -> str:
        """Return the rule of a parameter whose value has this schema."""
        if self._syntax.quotes:
            template = self._syntax.parameter.replace("$KEY", name)
            return self._rule("parameter", self._expand(template, {"$VALUE": self._value(schema, 0)}))
        types = schema_types(schema)
        is_text = "string" in types and not self._syntax.quoted
        kind = "string" if is_text else next(iter(sorted(types)), "object").replace("integer", "number")
        template = self._syntax.parameter.replace("$KEY", name).replace("$TYPE", kind)
        template = template.replace("$IS_TEXT", "true" if is_text else "false")
        before, _, after = template.partition("$VALUE")
        if not is_text:
            return self._rule("parameter", self._expand(template, {"$VALUE": self._unquoted_value(schema, depth)}))
        constants = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if constants:
            alternatives = " | ".join(map(self._literal, map(constant_text, constants)))
            return self._rule("parameter", self._expand(template, {"$VALUE": f"({alternatives})"}))
        return self._rule("parameter", f"{self._expand(before, {})} {self._text_before(after, schema)}")

    def _unquoted_value(self, schema: Schema, depth: int) -> str:
        """Return the expression of a value that is no text: JSON, or parameters in a format that nests them."""
        types = schema_types(schema)
        if self._syntax.tag_prefix and depth < MAX_DEPTH and not schema.keys() & ALTERNATIVES:
            definitions = {key: schema[key] for key in DEFINITIONS if key in schema}
            if types == {"array"} and isinstance(items := schema.get("items"), Mapping):
                return repeated(self._parameter("item", {**definitions, **items}, depth + 1), schema)
            if types == {"object"} and schema.get("properties"):
                return self._parameters(schema, depth + 1)
        json_schema, problem = self._rewrite(dict(schema))
        return self._json({} if problem else json_schema)  # a problem is, for example, that no value matches

    def _value(self, schema: Schema, depth: int) -> str:
        """Return the expression of a value in the format with its own quotes."""
        quotes = self._literal(self._syntax.quotes)
        definitions = {key: schema[key] for key in DEFINITIONS if key in schema}
        if "$ref" in schema and depth < MAX_DEPTH:
            return self._value({**definitions, **referred(schema)}, depth + 1)
        types = schema_types(schema)
        if any(isinstance(each, str) for each in as_list(schema.get("enum"))):
            texts = (
                f"{quotes} {self._literal(each)} {quotes}" if isinstance(each, str) else self._literal(json.dumps(each))
                for each in schema["enum"]
            )
            return self._rule("value", " | ".join(texts))
        if types == {"string"}:
            return self._rule("value", f"{quotes} {self._text_before(self._syntax.quotes, schema)}")
        if types == {"array"}:
            item = self._any_value()
            if isinstance(items := item_schema(schema), Mapping) and depth < MAX_DEPTH:
                item = self._value({**definitions, **items}, depth + 1)
            elements = repeated(item, schema, separator='"," ')
            return self._rule("value", f'"[" {elements} "]"')
        if types == {"object"} and "properties" in schema and depth < MAX_DEPTH:
            return self._rule("value", f'"{{" {self._parameters(schema)} "}}"')
        return self._json(schema) if types and not types & {"string", "array", "object"} else self._any_value()

    def _any_value(self) -> str:
        """Return the rule of any value in this format."""
        quotes = self._literal(self._syntax.quotes)
        self._rules["key"] = "/[A-Za-z_][A-Za-z0-9_]*/"
        self._rules["any"] = " | ".join([
            f"{quotes} {self._text_before(self._syntax.quotes)}", *('"true"', '"false"', '"null"'),
            r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,9})?/", '"[" (any ("," any)*)? "]"',
            '"{" (key ":" any ("," key ":" any)*)? "}"',
        ])  # fmt: skip
        return "any"

    def _text_before(self, template: str, schema: Schema = MappingProxyType({})) -> str:
        """Return the expression of a text, and of the template that ends it. No text contains what ends it."""
        ending, *rest = VARIABLE.split(template)
        first = next(iter(self._tokenizer.split(ending, strip=False)), "")
        if not isinstance(first, str) and not self._tokenizer.token_bytes(first):  # no text contains a control token
            return f"{self._rule('text', text_regex(schema))} {self._expand(template, {})}"
        # A line break before the tag is part of the text, and dropped by the parser.
        tag = self._syntax.tag_prefix or ending.strip("\n")
        line_break = ending.removeprefix("\n").removeprefix(tag)
        text = self._rule("text", text_regex(schema, "\\n?" if ending.startswith("\n") else ""))
        self._rules[f"{text}[suffix={json.dumps(tag, ensure_ascii=False)}]"] = self._rules.pop(text)
        return f"{text} {self._expand(line_break + ''.join(rest), {})}"


def as_mapping(schema: object) -> Schema:
    """Return a schema as it is, and an empty one for true, and for anything that is invalid."""
    return schema if isinstance(schema, Mapping) else {}


def constant_text(constant: object) -> str:
    """Return the text of a constant in a format without quotes around strings."""
    return constant if isinstance(constant, str) else json.dumps(constant, ensure_ascii=False)


def repeated(item: str, schema: Schema, separator: str = "") -> str:
    """Return the expression of the elements of a list, whose number a schema may limit."""
    least, most = schema.get("minItems", 0), schema.get("maxItems", "")
    if most == 0:
        return ""
    # No element can be repeated zero times.
    more = f' ({separator}{item}){{{max(0, least - 1)},{most - 1 if most else ""}}}' if most != 1 else ""
    return f"{item}{more}" if least else f"({item}{more})?"


def text_regex(schema: Schema, ending: str = "") -> str:
    """Return the regular expression of a text whose greatest length a schema limits.

    A least length would let a text contain what ends it.
    """
    longest = schema.get("maxLength", MAX_LENGTH + 1)
    return "/(?s:.*)/" if longest > MAX_LENGTH else f"/(?s:.{{0,{longest}}}){ending}/"


def referred(schema: Schema) -> Schema:
    """Return the definition to which a schema refers, or {}."""
    _, keyword, name = [*str(schema["$ref"]).split("/"), "", ""][:3]
    definition = schema.get(keyword, {}).get(name, {})
    return definition if isinstance(definition, Mapping) else {}


def arguments_schema(function: Mapping[str, Any], rewrite: RewriteSchema, *, is_strict: bool = False) -> Schema:
    """Return the schema of the arguments of a function as a grammar can express it.

    A schema that llguidance does not support becomes that of any object, with a warning, or ConstraintError is raised.
    """
    schema, problem = rewrite(closed_schema(function))
    if problem and is_strict:
        raise ConstraintError(f"tools: {problem}; tool_choice auto calls the tool without constraints")
    if problem:
        warnings.warn(f"tool {function['name']}: its arguments are not constrained: {problem}", stacklevel=2)
        return {"type": "object"}
    return schema
