"""What a grammar says of its texts: control tokens, literal texts, and patterns of strings.

Where every byte is allowed, no mask shows what ends a text; these do.
"""

import json
import re

LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)+"')
JSON_RULE = "%json "  # begins a JSON schema in Lark
CONTROL_TOKEN = re.compile(r"<\[(\d+)\]>")
MAX_PATTERNS = 32  # of which texts are made


def control_tokens_of(grammar: str) -> list[int]:
    """Return the ids of the control tokens that a grammar names."""
    return sorted(set(map(int, CONTROL_TOKEN.findall(grammar))))


def lark_of(grammar: str) -> list[str]:
    """Return the lines of a grammar in llguidance's variant of Lark; none if it is one of JSON."""
    if grammar.startswith("{"):
        grammar = "\n".join(str(each.get("lark_grammar", "")) for each in json.loads(grammar)["grammars"])
    return grammar.splitlines()


def literals_of(grammar: str) -> list[bytes]:
    """Return the texts that a grammar in Lark has in quotation marks."""
    found = dict[bytes, None]()
    for line in sorted(lark_of(grammar), key=lambda line: "[suffix=" not in line):
        if JSON_RULE not in line:
            for literal in LITERAL.findall(line):
                try:
                    found[json.loads(literal).encode()] = None
                except ValueError:  # an escape that JSON has not
                    continue
    return list(found)


def patterns_of(grammar: str) -> list[str]:
    """Return the patterns in the JSON schemas of a grammar that do not describe a whole text."""
    schemas = [json.loads(grammar)] if grammar.startswith("{") else []
    schemas += [json.loads(line.partition(JSON_RULE)[2]) for line in lark_of(grammar) if JSON_RULE in line]
    found = dict[str, None]()
    while schemas:
        value = schemas.pop()
        schemas += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if isinstance(value, dict):
            names = value.get("patternProperties")
            patterns = [value.get("pattern"), *(names if isinstance(names, dict) else ())]
            found |= {each.removeprefix("^").removesuffix("$"): None for each in patterns if is_open(each)}
    return list(found)[:MAX_PATTERNS]


def is_open(pattern: object) -> bool:
    """Return whether a text may have other characters before or after what the pattern matches."""
    return isinstance(pattern, str) and (not pattern.startswith("^") or not pattern.endswith("$") or "|" in pattern)
