"""Fixtures: servers with a tiny random model that rarely generates an end-of-text token."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess
from tiny import Field, tiny_llama

from cli.server.serve import REQUIRED_PACKAGES

AGENT_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% if enable_thinking is defined %}"
    "[thinking {{ enable_thinking }}]{% endif %}{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}{% if message.name %}({{ message.name }}){% endif %}"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ '\\n' + message.content }}"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)  # tools, reasoning and a switch for it


@pytest.fixture(scope="session", autouse=True)
def _extra() -> None:
    for name in REQUIRED_PACKAGES:
        pytest.importorskip(name, reason=f"there is no package {name}")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a context of 16,384 tokens, long enough to disconnect during generation."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", n_ctx=16384)


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tiny, "--queue", "2", "--parallel", "1") as served:
        yield served


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose template has tools and reasoning."""
    path = tmp_path_factory.mktemp("agent") / "agent.gguf"
    model = tiny_llama(path, n_ctx=4096, **{"tokenizer.chat_template": Field("STRING", AGENT_TEMPLATE)})
    with ServerProcess(model) as served:
        yield served
