"""Chat templates: rendered like Hugging Face; a hostile template costs one error line and two seconds."""

import copy
import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from locations import CHECKOUT

from localinfer import child_process
from localinfer.chat_template import template
from localinfer.chat_template.builtin_templates import builtin_templates
from localinfer.chat_template.sandbox import MAX_OUTPUT, Renderer
from localinfer.chat_template.template import MAX_SOURCE, ChatTemplate
from localinfer.errors import LocalInferError, UsageError

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi {{ 7*7 }} {% if %}"},
    {"role": "assistant", "content": "Hello\n"},
    {"role": "user", "content": "Bye 👋"},
]
ENDLESS_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SECRET = "canary-5f1d"  # in the globals of this module, which a template must not reach


def rendered(source: str, messages: Sequence[dict[str, str]] = MESSAGES) -> dict[str, str]:
    """Render in this process, for templates that terminate."""
    variables = {
        "messages": copy.deepcopy(list(messages)), "tools": None, "documents": None,
        "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>",
    }  # fmt: skip
    return Renderer(source).render(variables)


def text_of(source: str) -> str:
    reply = rendered(source)
    assert "text" in reply, reply
    return reply["text"]


def error_of(source: str) -> str:
    reply = rendered(source)
    assert "error" in reply, reply["text"][:200]
    return reply["error"]


def child_error_of(source: str) -> str:
    with pytest.raises(LocalInferError) as error:
        ChatTemplate(source, TOKENS, "m.gguf: tokenizer.chat_template").render(MESSAGES)
    message = str(error.value)
    assert message.startswith("m.gguf: tokenizer.chat_template: ")
    assert message.isprintable()
    assert len(message) < 400
    assert error.value.exit_code == 1
    return message.removeprefix("m.gguf: tokenizer.chat_template: ")


# --- what a template may use ---


def test_extensions_of_llama_cpp() -> None:
    """Templates of Kimi K2 append to lists, and one of DeepSeek R1 serializes what a filter returns."""
    assert text_of("{% set ids = [] %}{% set _ = ids.append(7) or ids.append(8) or ids.pop() %}{{ ids }}") == "[7]"
    assert text_of("{{ messages | map(attribute='role') | tojson }}") == '["system", "user", "assistant", "user"]'


CHATML = """\
<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
Hi {{ 7*7 }} {% if %}<|im_end|>
<|im_start|>assistant
Hello
<|im_end|>
<|im_start|>user
Bye 👋<|im_end|>
<|im_start|>assistant
"""

@pytest.mark.parametrize(("source", "text"), [
    ("", ""),
    ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Be brief.</s>"),
    ("{% for m in messages %}\n  {% if loop.last %}\n{{ m['role'] }}\n  {% endif %}\n{% endfor %}", "user\n"),
    ("{{ messages[1].content }}", "Hi {{ 7*7 }} {% if %}"),  # user text is not evaluated
    ("{{ messages[3] | tojson }}", '{"role": "user", "content": "Bye 👋"}'),
    ("{{ {'b': '<', 'a': 1} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 1,\n "b": "<"\n}'),
    ("{% generation %}{{ messages[2].content | trim }}{% endgeneration %}!", "Hello!"),
    ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02345678"),
    ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
    ("{% set x = namespace(n=0) %}{% for m in messages %}{% set x.n = x.n + 1 %}{% endfor %}{{ x.n }}", "4"),
    ("{% set x = namespace({'a': 1}, self=2) %}{% set x.b = 3 %}{{ x.a + x.self + x.b }}", "6"),
    ("{{ dict(a=1, **{'b': 2}) | tojson }}{{ dict.fromkeys('ab', 0) }}", '{"a": 1, "b": 2}{\'a\': 0, \'b\': 0}'),
    ("{% macro say(m, end='.') %}{{ m.role ~ end }}{% endmacro %}{{ say(messages[0]) }}", "system."),
    ("{{ 'no' if tools else 'yes' }}{{ tools is defined }}{{ tools is none }}", "yesTrueTrue"),
    ("{{ undefined_name }}{{ undefined_name is defined }}", "False"),
    ("{{ '%s-%05.1f' % ('a', 2) }}{{ '{}:{:>4}'.format(1, 2) }}", "a-002.01:   2"),
    ("{{ '%d' | format(1700000000) }}", "1700000000"),
    ("{{ 'a,b'.split(',')[1] }}{{ 'x' * 3 }}{{ [0] * 2 }}{{ 2 ** 10 }}{{ 7 % 4 }}", "bxxx[0, 0]10243"),
    ("{{ 'ab' | center(6) }}|{{ 'a\nb' | indent(2) }}", "  ab  |a\n  b"),
    ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='role') | join }}", "useruser"),
    ("{{ messages[1:] | length }}{{ messages[-1]['role'] }}{{ messages[0].get('name', '-') }}", "3user-"),
    ("{{ 'a' if 'brief' in messages[0].content else 'b' }}{{ raise_exception is defined }}", "aTrue"),
    ("{{ strftime_now('%Y') }}", str(datetime.datetime.now().year)),
    (builtin_templates()["chatml"], CHATML),
])
def test_render(source: str, text: str) -> None:
    assert text_of(source) == text


def test_rendering_is_repeatable() -> None:
    template = ChatTemplate(builtin_templates()["chatml"], TOKENS)
    before = copy.deepcopy(MESSAGES)
    assert [template.render(MESSAGES) for _ in range(3)] == [CHATML] * 3
    finished = CHATML.removesuffix("<|im_start|>assistant\n")
    assert template.render(MESSAGES, add_generation_prompt=False) == finished
    assert before == MESSAGES


def test_extra_variables_and_unusual_characters() -> None:
    template = ChatTemplate("{{ thinking }}{{ messages[0].content }}", TOKENS)
    unusual = "\0\x1b\r\n\u2028\ud800\U0001f600\ufdd0"
    assert template.render([{"content": unusual}], thinking=False) == f"False{unusual}"


# --- escapes from the sandbox ---


ESCAPES = [
    "{{ ''.__class__ }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}", "{{ ('' | attr('__cla' ~ 'ss__')) }}",
    "{{ '{0.__class__.__mro__}'.format('') }}", "{{ '{x.__class__}'.format_map({'x': ''}) }}",
    "{% set f = '{0.__class__}'.format %}{{ f(1) }}", "{{ ('{0.__class__}' | attr('format'))(1) }}",
    "{{ cycler.__init__.__globals__ }}", "{{ joiner.__init__.__globals__.os }}",
    "{{ namespace.__init__.__globals__['__builtins__'] }}", "{{ lipsum.__globals__ }}",
    "{{ self._TemplateReference__context }}", "{{ self.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}", "{{ raise_exception.__code__.co_consts }}",
    "{{ strftime_now.__globals__.SECRET }}", "{{ range.__self__ }}", "{{ messages.__reduce_ex__(2) }}",
    "{{ [].__class__.__base__ }}", "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "{% set n = namespace() %}{% set n.__class__ = dict %}{{ n.__class__ }}", "{{ namespace(__html__=1) }}",
    "{{ namespace({'_Namespace__attrs': 1}) }}", "{{ dict.mro() }}", "{{ dict.update(messages[0], {'role': 'x'}) }}",
    "{{ messages | map(attribute='__class__') | list }}", "{{ (1).__class__ }}", "{{ loop.__class__ }}",
]  # fmt: skip
MUTATIONS = [
    "{{ messages.extend([1]) }}", "{{ messages.reverse() }}", "{{ messages[0].update(role='x') }}",
    "{{ messages.clear() }}", "{{ messages[0].pop('role') }}", "{% set messages[0].role = 'x' %}",
    "{{ messages.sort() }}", "{{ messages.insert(0, 1) }}", "{{ messages.__setitem__(0, 1) }}",
]  # fmt: skip


@pytest.mark.parametrize("source", ESCAPES)
def test_sandbox_escapes_fail(source: str) -> None:
    """The template fails with one line, or its output reveals no Python internals."""
    reply = rendered(source)
    shown = reply.get("text", "")
    assert SECRET not in str(reply)
    assert "<class" not in shown.replace("<class 'jinja2.runtime.Undefined'>", "")
    assert "built-in" not in shown
    assert "function" not in shown
    assert "module" not in shown
    if "error" in reply:
        assert "\n" not in reply["error"]


@pytest.mark.parametrize("source", MUTATIONS)
def test_messages_are_immutable(source: str) -> None:
    assert "error" in rendered(source)


@pytest.mark.parametrize("source", [
    "{% include '/etc/passwd' %}", "{% import '/etc/passwd' as x %}", "{% extends '/etc/passwd' %}",
    "{% from 'x' import y %}", "{% include ['a', 'b'] %}",
])
def test_no_includes_and_imports(source: str) -> None:
    opened = []
    sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" and watching else None)
    watching = True
    assert "neither include" in error_of(source)
    watching = False
    assert not [path for path in opened if "passwd" in str(path)]


# --- time and memory ---


def doubling_loop(first: str, step: str, use: str = "{{ ns.x | length }}") -> str:
    return f"{{% set ns = namespace(x={first}) %}}{{% for i in range(64) %}}{step}{{% endfor %}}{use}"


@pytest.mark.parametrize("source", [
    ENDLESS_LOOP,
    doubling_loop("[1]", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x | string | length }}"),
    doubling_loop("[1]", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x | tojson | length }}"),
])
def test_time_limit_inside_c_code(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.chat_template.template.MAX_SECONDS", 0.5)
    start = time.monotonic()
    assert child_error_of(source) in ("took longer than 0.5 s", "needs too much memory")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("source", [
    doubling_loop("'a'", "{% set ns.x = ns.x ~ ns.x %}"),
    doubling_loop("'a'", "{% set s %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = s %}"),
    "{{ ('a' * 99999) | replace('a', 'a' * 99999) }}", "{{ ('a' * 99999).replace('a', 'a' * 99999) }}",
    "{{ (range(99999) | list | join('a' * 99999)) | length }}",
])  # fmt: skip
def test_memory_is_limited(source: str) -> None:
    assert child_error_of(source) in ("needs too much memory", "took longer than 2 s")


def test_memory_is_measured_where_it_cannot_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows, where the child sets no limit."""
    unlimited = "from localinfer.chat_template import sandbox; sandbox.limit_resources = lambda _: None; sandbox.main()"
    monkeypatch.setattr(template, "CHILD_CODE", unlimited)
    monkeypatch.setattr(child_process, "HAS_MEMORY_LIMIT", False)
    fill = "{% set n = namespace(x=[]) %}{% for i in range(240) %}{% set n.x = n.x + ['a' * 10**6 ~ i] %}{% endfor %}"
    assert child_error_of(fill + ENDLESS_LOOP) == "needs too much memory or stack"


@pytest.mark.parametrize("source", [
    "{{ 'a' * 10**9 }}", "{{ 10**9 * 'a' }}", "{{ [0] * 10**9 }}", "{{ (1, 2) * 10**9 }}",
    "{{ 2 ** (2**24) }}", "{{ 9 ** (9 ** 9) }}", "{{ 2 ** -(2**40) }}",
    doubling_loop("3", "{% set ns.x = ns.x * ns.x %}"), doubling_loop("'a'", "{% set ns.x = ns.x + ns.x %}"),
    "{{ 'x' | center(10**9) }}", "{{ 'x'.center(10**9) }}", "{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.zfill(10**9) }}",
    "{{ '\t'.expandtabs(10**9) }}", "{{ '%1000000000d' | format(1) }}", "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (10**9, 1) }}", "{{ '{:1000000000d}'.format(1) }}", "{{ '{:{}}'.format(1, 10**9) }}",
    "{{ '{x:1000000000}'.format_map({'x': 1}) }}", "{{ ('{:1000000000d}' | attr('format'))(1) }}",
    "{{ 'a\nb' | indent(10**9) }}", "{{ lipsum(n=10**6) }}", "{{ [1] | batch(10**9, 0) | list }}",
    "{{ [1] | slice(10**9) | list }}", "{{ [1] | tojson(indent=10**9) }}", "{{ range(10**9) | list }}",
])  # fmt: skip
def test_large_results_of_one_operation_are_rejected(source: str) -> None:
    start = time.process_time()
    error = error_of(source)
    assert "too large" in error or "larger" in error or "more than" in error or "undefined" in error
    assert time.process_time() - start < 1


def test_the_output_is_limited() -> None:
    much = "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}"
    assert error_of(much) == child_error_of(much) == "the output is larger than 4 MiB"
    assert len(text_of(f"{{{{ 'a' * {MAX_OUTPUT} }}}}")) == MAX_OUTPUT


def test_large_messages_are_limited() -> None:
    template = ChatTemplate("{{ messages[0].content | length }}", TOKENS)
    assert template.render([{"content": "a" * (4 << 20)}]) == str(4 << 20)
    with pytest.raises(UsageError, match=r"messages: \d+ bytes \(limit"):
        template.render([{"content": "a" * (16 << 20)}])


def test_render_after_kill() -> None:
    source = "{% if messages[0].content == 'x' %}ok{% else %}" + ENDLESS_LOOP + "{% endif %}"
    template = ChatTemplate(source, TOKENS)
    with pytest.raises(LocalInferError, match="took longer"):
        template.render(MESSAGES)
    assert template.render([{"role": "user", "content": "x"}]) == "ok"
    template.close()
    assert template.render([{"role": "user", "content": "x"}]) == "ok"


# --- malformed ---


@pytest.mark.parametrize("source", [
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "{% if 1 %}" * 500 + "{% endif %}" * 500, "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
    "{{ " + "-" * 5000 + "1 }}", "{{ " + "not " * 5000 + "1 }}", "{{ 1" + "|int" * 5000 + " }}",
])  # fmt: skip
def test_deep_nesting(source: str) -> None:
    assert error_of(source) == "the template is too deeply nested"
    assert child_error_of(source) == "the template is too deeply nested"


@pytest.mark.parametrize(("source", "error"), [
    ("{{", "line 1: unexpected 'end of template'"), ("a\n{% if %}", "line 2: Expected an expression"),
    ("{% for %}", "line 1: "), ("{% endif %}", "line 1: "), ("{% unknown %}", "line 1: Encountered unknown"),
    ("{{ 'a }}", "line 1: "), ("{{ a b }}", "line 1: "), ("{% if 1 %}", "line 1: Unexpected end of template"),
    ("{# comment", "line 1: Missing end of comment tag"), ("{% set 1 = 2 %}", "line 1: "),
    ("{{ 1 | }}", "line 1: "), ("{{ 1 | nofilter }}", "line 1: No filter named 'nofilter'"),
    ("{{ 1 is notest }}", "line 1: No test named"), ("{% raw %}a", "line 1: Missing end of raw"),
    ("{% generation %}", "line 1: "), ("{% block a %}{% endblock b %}", "line 1: "), ("{{ a[ }}", "line 1: "),
    ("{% break %}", "'break' outside loop"), ("{% continue %}", "'continue' not properly"),
    ("\n\n{{ foo() }}", "line 3: 'foo' is undefined"), ("{{ foo.bar }}", "line 1: 'foo' is undefined"),
    ("{{ messages[9].content + 'x' }}", "line 1: list object has no element 9"),
    ("{{ messages[0].text + 'x' }}", "line 1: 'dict object' has no attribute 'text'"),
    ("{{ 1 / 0 }}", "line 1: division by zero"), ("{{ 'a' + 1 }}", "line 1: "),
    ("{{ {} | tojson(1, 2, 3, 4, 5) }}", "line 1: "),
    ("{{ raise_exception('System role not supported') }}", "System role not supported"),
    ("{{ raise_exception('') }}", "the template rejects these messages"),
    ("{% macro f() %}\n{{ g() }}{% endmacro %}\n{{ f() }}", "line 2: 'g' is undefined"),
])  # fmt: skip
def test_error_is_one_line_with_line_number(source: str, error: str) -> None:
    assert error_of(source).startswith(error)
    assert "\n" not in error_of(source)


LONG = (
    "{%- if messages[0]['role'] == 'system' -%}\n{%- set s = messages[0].content | trim -%}\n{%- else -%}\n"
    "{%- set s = '' -%}\n{%- endif -%}{{ bos_token }}{# note #}{% for m in messages %}{% if m.role == 'user' "
    "and loop.first %}{{ raise_exception('alternate') }}{% endif %}"
    "{{ '<' ~ m['role'] + '>' }}{{ m.content[:3] if m.content is string else (m.content | tojson) }}"
    "{%- endfor %}{% macro x(a, b=1) %}{{ a ~ b }}{% endmacro %}{{ x(s) }}"
)


def test_every_prefix_of_a_template_renders_or_fails_cleanly() -> None:
    assert text_of(LONG).startswith("<s><system>Be <user>Hi ")
    for end in range(len(LONG)):
        reply = rendered(LONG[:end])
        assert len(reply) == 1
        assert "error" not in reply or "\n" not in reply["error"]


def test_control_characters_in_errors_are_escaped() -> None:
    error = child_error_of("{{ raise_exception('\x1b[31m' ~ '\n' ~ 'x' * 5000) }}")
    assert error.startswith(r"\x1b[31m\nxxx")


def test_huge_template_is_rejected() -> None:
    with pytest.raises(LocalInferError, match=rf"characters \(limit {MAX_SOURCE}\)"):
        ChatTemplate("x" * (50 << 20), TOKENS)


def test_messages_that_are_not_json_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"^messages: "):
        ChatTemplate("", TOKENS).render([{"content": object()}])


# --- the child process ---


def test_renderings_share_a_child() -> None:
    template = ChatTemplate(LONG, TOKENS)
    children = set()
    for _ in range(10):
        template.render(MESSAGES)
        children.add(template._child.pid)
    assert len(children) == 1


def test_ctrl_c_kills_only_the_parent(tmp_path: Path) -> None:
    """The child must end with its parent, but must survive Ctrl-C in the terminal."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "from localinfer.chat_template.template import ChatTemplate\n"
        "template = ChatTemplate('{{ messages | length }}', {})\n"
        "template.render([])\n"
        "try:\n    os.killpg(os.getpgrp(), signal.SIGINT); signal.pause()\n"
        "except KeyboardInterrupt:\n    pass\n"
        "print(template.render([]), template._child.pid)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=20,
        start_new_session=True, env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )  # fmt: skip
    text, pid = done.stdout.split()
    assert text == "0"
    assert done.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), signal.SIG_DFL)


def test_jinja2_is_not_imported() -> None:
    code = "import sys, localinfer.chat_template.template; assert not {'jinja2', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
