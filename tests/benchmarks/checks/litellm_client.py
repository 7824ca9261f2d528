"""Checks the server with an unmodified litellm.

litellm needs an older huggingface_hub than localinfer, so it is installed in an environment of its own in the folder,
which takes a minute.

    python tests/benchmarks/checks/litellm_client.py FOLDER
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

from server_process import ServerProcess  # noqa: E402
from tiny import CHATML, Field, tiny_llama  # noqa: E402

SCRIPT = """
import asyncio, json, sys
import litellm

base = {"model": "openai/tiny", "api_base": sys.argv[1] + "/v1", "api_key": "none"}
request = base | {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "seed": 1}

whole = litellm.completion(**request, logprobs=True, top_logprobs=2)
text = whole.choices[0].message.content
assert text and whole.usage.completion_tokens == 12, whole

parts = list(litellm.completion(**request, stream=True, stream_options={"include_usage": True}))
assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == text
assert litellm.stream_chunk_builder(parts).choices[0].message.content == text

several = litellm.completion(**request, n=3)
assert len(several.choices) == 3 and several.choices[0].message.content == text

schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema, "strict": True}}
formed = litellm.completion(**request | {"max_tokens": 200}, response_format=form)
assert json.loads(formed.choices[0].message.content)["n"] in (1, 2)

assert litellm.text_completion(**base, prompt="Hello", max_tokens=4).choices[0].text

async def streamed():
    return [part async for part in await litellm.acompletion(**request, stream=True)]
assert "".join(part.choices[0].delta.content or "" for part in asyncio.run(streamed())) == text

ollama = {"model": "ollama_chat/tiny", "api_base": sys.argv[1], "messages": request["messages"]}
assert litellm.completion(**ollama, max_tokens=4).choices[0].message.content

anthropic = {"model": "anthropic/tiny", "api_base": sys.argv[1], "api_key": "none", "messages": request["messages"]}
answer = litellm.completion(**anthropic, max_tokens=12)
assert answer.choices[0].message.content and answer.usage.completion_tokens == 12, answer
parts = list(litellm.completion(**anthropic, max_tokens=12, stream=True))
assert "".join(part.choices[0].delta.content or "" for part in parts)
assert parts[-1].choices[0].finish_reason == "length"
tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
called = litellm.completion(**anthropic, max_tokens=200, tools=[tool], tool_choice="required")
assert [call.function.name for call in called.choices[0].message.tool_calls] == ["now"], called

for wrong, kind in (dict(temperature=-1), litellm.BadRequestError), (dict(messages=[]), litellm.BadRequestError):
    try:
        litellm.completion(**(request | wrong))
        raise SystemExit(f"{wrong} was accepted")
    except kind:
        pass
print("litellm", "passed")
"""


def main(folder: Path) -> None:
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "litellm"], check=True)
    with tempfile.TemporaryDirectory() as models:
        template = Field("STRING", "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}" + CHATML)
        tiny = tiny_llama(Path(models) / "tiny.gguf", n_ctx=4096, **{"tokenizer.chat_template": template})
        with ServerProcess(tiny) as server:
            quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # avoids a download
            subprocess.run([python, "-c", SCRIPT, server.url], check=True, env=os.environ | quiet)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
