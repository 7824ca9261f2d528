"""Write tests/data/templates_*.json.xz: how transformers and llama.cpp render chat templates.

    python tests/making/make_template_fixtures.py llama_cpp                  # needs llama-cpp-python
    python tests/making/make_template_fixtures.py transformers PYTHON        # one that has transformers
    python tests/making/make_template_fixtures.py programs FOLDER            # encoding_*.py of DeepSeek's repositories

llama.cpp renders text conversations with each of its named formats. transformers renders the eight conversations and
some more with the templates below, which use every feature of the template language. The programs render conversations
with and without reasoning and tools.
"""

import ctypes
import importlib
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS), str(TESTS / "models"), str(TESTS / "oracles")]

import conversations  # noqa: E402
import hugging_face  # noqa: E402
import recorded  # noqa: E402

# --- templates of our own, for transformers ---

TEMPLATES = {
    "everything": "{{ [messages, tools, documents, add_generation_prompt, enable_thinking is defined] | tojson }}",
    "json": (
        "{{ messages | tojson(indent=2) }}{{ tools | tojson(ensure_ascii=true, sort_keys=true) }}"
        "{{ messages[0] | tojson(separators=(',', ':')) }}{{ '<&\\'\">' | tojson }}"
    ),
    "white space": (
        "{{ bos_token }}\n  {# comment #}\n{% for m in messages %}\n    {%- if loop.first -%}\n  first \n"
        "  {% endif %}\n\t{% set role = m['role'] %}\n <{{ role }}>\n{{ m.content }}\n\n{% endfor %}\n\n"
    ),
    "loops": (
        "{% for m in messages if m.role != 'system' %}{% if loop.index > 3 %}{% break %}{% endif %}"
        "{% if loop.changed(m.role) %}{{ loop.index0 }}/{{ loop.length }}{{ loop.cycle('a', 'b') }}{% else %}"
        "{% continue %}{% endif %}{{ loop.last }}{{ (loop.nextitem or {}).role }}{% else %}none{% endfor %}"
    ),
    "variables": (
        "{% set ns = namespace(calls=0, seen=[]) %}{% for m in messages %}{% set ns.seen = ns.seen + [m.role] %}"
        "{% for call in m.tool_calls or [] %}{% set ns.calls = ns.calls + 1 %}{% set inner = 1 %}{% endfor %}"
        "{% endfor %}{{ ns.calls }}{{ ns.seen }}{{ inner is defined }}{{ ns.nothing is defined }}{{ dict(a=1, b=[2]) }}"
        "{{ dict.fromkeys(['x'], 0) }}{% set text %}a{{ ns.calls }}{% endset %}{{ text ~ 1 }}"
    ),
    "macros": (
        "{% macro schema(p, depth=0) %}{{ '  ' * depth }}{{ p.type }}"
        "{% for name, each in (p.properties or {}).items() %}\n{{ name }}{{ '!' if name in (p.required or []) }}: "
        "{{ schema(each, depth + 1) }}{% endfor %}{% endmacro %}"
        "{% for tool in tools or [] %}{{ tool.function.name }}{{ schema(tool.function.parameters) }}\n{% endfor %}"
        ""
        "{% macro twice() %}{{ caller(1) }}{{ caller(2) }}{% endmacro %}{% call(x) twice() %}{{ x }}{% endcall %}"
    ),
    "calls": (
        "{% for m in messages %}{% if m.tool_calls is defined %}{% for call in m.tool_calls %}{{ call.id }} "
        "{{ call.function.name }}({% for key, value in call.function.arguments | dictsort %}{{ key }}="
        "{{ value if value is string else value | tojson }}{{ ', ' if not loop.last }}{% endfor %}){% endfor %}"
        "{% elif m.role == 'tool' %}{{ m.name }} {{ m.tool_call_id }}: {{ m.content }}{% endif %}{% endfor %}"
    ),
    "training": (
        "{% for m in messages %}{{ m.role }}: {% set end = '.' %}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content | trim }}{% set end = '!' %}{{ end }}{% endgeneration %}{{ end }}{% endif %}{% endfor %}"
        "{%- generation -%} {{ eos_token }} {%- endgeneration -%}"
    ),
    "reasoning": (
        "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }}|{{ m | length }}"
        "{{ m.content.split('</think>')[-1].lstrip('\\n') if m.content is string }}{% endfor %}"
        "{{ enable_thinking is defined and enable_thinking is false }}{{ enable_thinking | default('unset') }}"
    ),
    "parts": (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{{ part.type }}={{ part['text'] | trim }};{% endfor %}{% endif %}\n{% endfor %}"
    ),
    "documents": (
        "{% if documents %}{% for d in documents %}[{{ loop.index }}] {{ d.title | upper }}: {{ d.text }}\n{% endfor %}"
        "{% else %}{{ documents is none }}{{ tools is none }}{% endif %}{{ unknown }}{{ unknown is defined }}"
        "{{ unknown | default([]) | length }}"
    ),
    "filters": (
        "{{ messages | map(attribute='role') | join(', ') }}{{ messages | selectattr('role', 'equalto', 'user') | list "
        "| length }}{{ (messages | last).content | string | replace('a', 'A') | indent(3) }}{{ messages | rejectattr("
        "'role', 'in', ['user']) | map(attribute='content') | list }}{{ [3, 1] | sort }}{{ {'b': 1} | items | list }}"
        "{{ 'a b' | title | safe }}{{ 'é' | upper }}{{ none }}{{ true }}{{ 1.0 }}{{ 7 // 2 }}{{ -7 % 3 }}"
    ),
    "refusal": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{{ messages[0].content }}"
    ),
    "turns": (
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
    "trimmed turns": (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    ),
}  # fmt: skip


def from_transformers(python: str) -> dict[str, Any]:
    """Return each template's source and its renderings by conversation."""
    cases = [(template, which) for template in TEMPLATES for which in conversations.ALL]
    requests = [{"template": TEMPLATES[template], **conversations.ALL[which]} for template, which in cases]
    actual: dict[str, Any] = {name: {"source": source, "answers": {}} for name, source in TEMPLATES.items()}
    for (template, which), answer in zip(cases, hugging_face.answers(python, requests), strict=True):
        if not answer.get("error", "").startswith("ValueError: continue_final_message"):
            actual[template]["answers"][which] = answer
    return actual


# --- llama.cpp's named formats ---

MESSAGES = {
    "s": {"role": "system", "content": " Be brief.\n"},
    "u": {"role": "user", "content": " Hello\nthere "},
    "a": {"role": "assistant", "content": " Hi!\n"},
    "t": {"role": "tool", "content": " 7 "},
}
ROLES = ("suau", "usu", "uata", "sua.")  # a point: without generation prompt


def from_llama_cpp() -> dict[str, Any]:
    """Return the rendered text by format name and roles."""
    import llama_cpp

    names = (ctypes.c_char_p * 1000)()
    n = llama_cpp.llama_chat_builtin_templates(names, len(names))
    return {name.decode(): {roles: rendered(name, roles) for roles in ROLES} for name in names[:n]}


def rendered(name: bytes, roles: str) -> str:
    import llama_cpp

    messages = [MESSAGES[role] for role in roles.removesuffix(".")]
    pairs = [(message["role"].encode(), message["content"].encode()) for message in messages]
    chat = (llama_cpp.llama_chat_message * len(pairs))(*pairs)
    buffer = ctypes.create_string_buffer(1 << 16)
    n = llama_cpp.llama_chat_apply_template(name, chat, len(chat), not roles.endswith("."), buffer, len(buffer))
    assert n >= 0, name
    return buffer.raw[:n].decode()


# --- models with a program instead of a template ---

PROGRAMS = {"deepseek3.2": "encoding_dsv32", "deepseek4": "encoding_dsv4"}
TOOLS_TEXT = """## Call "functions"
<{dsml_token}call>{{}}\\ {thinking_start_token} {thinking_end_token}

{tool_schemas}
{dsml_token}
"""
PROGRAM_TEXTS = {
    "TOOLS_SYSTEM_TEMPLATE": TOOLS_TEXT, "TOOLS_TEMPLATE": TOOLS_TEXT, "REASONING_EFFORT_MAX": "Think {hard}!\n\n",
}  # fmt: skip
SYSTEM, QUESTION, THANKS = conversations.SYSTEM, conversations.QUESTION, conversations.THANKS
NOW = {"id": "call00002", "type": "function", "function": {"name": "now", "arguments": {}}}
CALLS = {
    **conversations.CALL, "reasoning_content": "I look.", "tool_calls": [*conversations.CALL["tool_calls"], NOW],
}  # fmt: skip
RESULTS = [conversations.RESULT, {"role": "tool", "name": "now", "tool_call_id": "call00002", "content": "7:00"}]
PROGRAM_MESSAGES = {
    "question": [QUESTION],
    "turns": [SYSTEM, QUESTION, conversations.REASONING, THANKS],
    "results": [SYSTEM, QUESTION, CALLS, *RESULTS],
    "after results": [QUESTION, CALLS, *RESULTS, conversations.REASONING, THANKS],
    "finished": [SYSTEM, QUESTION, conversations.REASONING],
}


def from_programs(folder: str) -> dict[str, Any]:
    """Return the rendered text by template name, conversation, "tools" and "thinking"."""
    sys.path.append(folder)
    return {
        name: {
            f"{which}{', tools' * tools}{', thinking' * thinks}": encoded(module, messages, tools=tools, thinks=thinks)
            for which, messages in PROGRAM_MESSAGES.items() for tools in (False, True) for thinks in (False, True)
        }
        for name, module in PROGRAMS.items()
    }  # fmt: skip


def encoded(module: str, messages: list[dict[str, Any]], *, tools: bool, thinks: bool) -> str:
    """Return what a program renders, with texts of our own for the model."""
    program = importlib.import_module(module)
    for name in PROGRAM_TEXTS.keys() & vars(program).keys():
        setattr(program, name, PROGRAM_TEXTS[name])
    messages = conversations.with_json_arguments({"messages": messages})["messages"]
    if tools and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": ""}, *messages]
    messages[0] |= {"tools": conversations.TOOLS} if tools else {}
    return str(program.encode_messages(messages, thinking_mode="thinking" if thinks else "chat"))


def main(peer: str, *places: str) -> None:
    functions = {"llama_cpp": from_llama_cpp, "transformers": from_transformers, "programs": from_programs}
    recorded.write(f"templates_{peer}", functions[peer](*places))


if __name__ == "__main__":
    main(*sys.argv[1:])
