"""Chat templates of checkpoints that have a Python program instead of a template (DeepSeek-V3.2 and V4).

The program is read, and not run. The template is a built-in one that renders conversations as the program does. Its
macros have the texts that instruct the model, such as how to call tools; those of the program take their place.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from string import Formatter

from localinfer.chat_template.builtin_templates import builtin_templates
from localinfer.conversion.checkpoint_folder import CheckpointFolder

PROGRAMS = {"encoding/encoding_dsv32.py": "deepseek3.2", "encoding/encoding_dsv4.py": "deepseek4"}
# The constants of a program -> the macro of the template, and whether the program formats the constant.
MACROS = {
    "TOOLS_SYSTEM_TEMPLATE": ("tool_section", True),
    "TOOLS_TEMPLATE": ("tool_section", True),
    "REASONING_EFFORT_MAX": ("greatest_effort", False),
}
SCHEMA = "{{ tool.function | default(tool) | tojson }}{{ '' if loop.last else '\\n' }}"
PLACEHOLDERS = {  # in the text of a constant -> Jinja
    "tool_schemas": f"{{% for tool in tools %}}{SCHEMA}{{% endfor %}}",
    "dsml_token": "{{ '｜DSML｜' }}",
    "thinking_start_token": "{{ '<think>' }}",
    "thinking_end_token": "{{ '</think>' }}",
}


def template_of_program(folder: CheckpointFolder) -> str | None:
    """Return the template of a checkpoint with a known program, or None."""
    for name, builtin in PROGRAMS.items():
        source = folder.read_text(name)
        if source is not None:
            return with_texts(builtin_templates()[builtin], string_constants(source))
    return None


def string_constants(source: str) -> dict[str, str]:
    """Return the string constants of a Python module by name; none if it is no Python."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return dict(assigned_strings(statements))


def assigned_strings(statements: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each assignment of a string."""
    for statement in statements:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(statement.value, ast.Constant):
            text = statement.value.value
            for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                if isinstance(target, ast.Name) and isinstance(text, str):
                    yield target.id, text


def with_texts(template: str, constants: Mapping[str, str]) -> str:
    """Return a template whose macros have the texts of a program. A text with unknown placeholders is not used."""
    for name, (macro, is_formatted) in MACROS.items():
        body = as_jinja(constants[name], is_formatted=is_formatted) if name in constants else None
        if body is not None:
            whole = re.compile(rf"(\{{%- macro {macro}\(\) %\}}\n).*?(\{{% endmacro %\}})", re.DOTALL)
            template = whole.sub(lambda found, body=body: f"{found[1]}{body}{found[2]}", template)  # type: ignore[misc]
    return template


def as_jinja(text: str, *, is_formatted: bool) -> str | None:
    """Return the Jinja source that renders a text, or None if it has unknown placeholders."""
    try:
        parts = list(Formatter().parse(text)) if is_formatted else [(text, None, None, None)]
    except ValueError:
        return None
    if any(name is not None and name not in PLACEHOLDERS for _, name, _, _ in parts):
        return None
    return "".join(quoted(literal) + (PLACEHOLDERS[name] if name is not None else "") for literal, name, _, _ in parts)


def quoted(text: str) -> str:
    """Return the Jinja source of an expression with this text."""
    return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}" if text else ""
