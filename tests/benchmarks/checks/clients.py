"""Checks the server with unmodified clients that are not among the packages of the tests.

litellm needs an older huggingface_hub than localinfer, and llm keeps its settings in a home. So all of them are
installed in an environment of its own in the folder, which takes minutes, and run with a home of their own. The script
prints a row of a table for each client. openai, anthropic, ollama, langchain-openai and langchain-anthropic are in the
test suite.

    python tests/benchmarks/checks/clients.py FOLDER [CLIENT ...]
"""

import argparse
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

LITELLM = """
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

response = litellm.responses(**base, input="Hello", max_output_tokens=16)
assert response.output[0].content[0].text and response.usage.output_tokens == 16, response
events = list(litellm.responses(**base, input="Hello", max_output_tokens=16, stream=True))
assert "".join(event.delta for event in events if event.type == "response.output_text.delta")

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
print("chat, stream, n, JSON schema, text, responses; ollama_chat; anthropic with tools; errors")
"""

LANGCHAIN_OLLAMA = """
import asyncio, sys
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM

base = {"model": "tiny", "base_url": sys.argv[1]}
chat = ChatOllama(**base, num_predict=12, seed=1, temperature=0)
whole = chat.invoke("Hello")
assert whole.content and whole.response_metadata["eval_count"] == 12, whole
assert "".join(part.content for part in chat.stream("Hello")) == whole.content
assert asyncio.run(chat.ainvoke("Hello")).content == whole.content
assert OllamaLLM(**base, num_predict=12, seed=1, temperature=0).invoke("Hello")

schema = {"title": "number", "type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
formed = ChatOllama(**base, num_predict=200).with_structured_output(schema, method="json_schema").invoke("Hello")
assert formed["n"] in (1, 2), formed

def now(zone: str) -> str:
    "Return the time."
history = [("user", "Hello"), ("assistant", "Hi"), ("user", "Again")]
assert chat.bind_tools([now]).invoke(history).content is not None
vector, other = OllamaEmbeddings(**base).embed_documents(["a", "b"])
assert len(vector) == len(other) > 0
print("chat, stream, async, text, JSON schema, tools accepted, embeddings")
"""

LANGCHAIN_OPENAI = """
import sys
from typing import Literal
from langchain_openai import ChatOpenAI

base = {"model": "tiny", "base_url": sys.argv[1] + "/v1", "api_key": "none", "seed": 1}
whole = ChatOpenAI(**base, max_tokens=12).invoke("Hello")
assert whole.content and whole.usage_metadata["output_tokens"] == 12
responses = ChatOpenAI(model="tiny", base_url=sys.argv[1] + "/v1", api_key="none", max_tokens=12,
                       use_responses_api=True)
assert responses.invoke("Hello").text
assert "".join(part.text for part in responses.stream("Hello"))

def now(zone: Literal["UTC", "CET"]) -> str:
    "Return the time."
forced = ChatOpenAI(model="tiny", base_url=sys.argv[1] + "/v1", api_key="none", max_tokens=300,
                    use_responses_api=True).bind_tools([now], tool_choice="now", parallel_tool_calls=False)
first, *rest = forced.stream("Hello")
for answer in forced.invoke("Hello"), sum(rest, first):
    assert answer.tool_calls, answer
    assert answer.tool_calls[0]["name"] == "now"
    assert answer.tool_calls[0]["args"].keys() == {"zone"}
print("chat; responses whole and streamed, with tools")
"""

LLM = """
import os, pathlib, subprocess, sys

folder = pathlib.Path(os.environ["LLM_USER_PATH"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "extra-openai-models.yaml").write_text(f'''
- model_id: local
  model_name: tiny
  api_base: "{sys.argv[1]}/v1"
  api_key_name: localinfer
- model_id: local-text
  model_name: tiny
  api_base: "{sys.argv[1]}/v1"
  api_key_name: localinfer
  completion: true
''')
def llm(*arguments, **more):
    program = pathlib.Path(sys.executable).with_name("llm")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True, **more).stdout
llm("keys", "set", "localinfer", "--value", "none")
options = ["-o", "max_tokens", "12", "-o", "seed", "1", "-o", "temperature", "0"]
streamed = llm("-m", "local", "Hello", *options)
assert streamed.strip()
assert llm("-m", "local", "Hello", "--no-stream", *options) == streamed
assert llm("-m", "local", "-c", "Again", *options).strip()
assert llm("-m", "local-text", "Hello", "-o", "max_tokens", "12").strip()
print("chat streamed and whole, -c, text completion")
"""

CLIENTS = {  # package: the script, whose argument is the URL of a server
    "litellm": LITELLM,
    "langchain-openai": LANGCHAIN_OPENAI,
    "langchain-ollama": LANGCHAIN_OLLAMA,
    "llm": LLM,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Checks the server with clients.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("clients", nargs="*", default=list(CLIENTS))
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *CLIENTS], check=True)
    failed = []
    with tempfile.TemporaryDirectory() as work:
        template = Field("STRING", "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}" + CHATML)
        tiny = tiny_llama(Path(work) / "tiny.gguf", n_ctx=4096, **{"tokenizer.chat_template": template})
        own = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}  # no download, no telemetry
        own |= {"HOME": work, "LLM_USER_PATH": f"{work}/llm"}
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own
        with ServerProcess(tiny) as server:
            print("| client | version | what works |\n|---|---|---|")
            for name in arguments.clients:
                version = subprocess.run(
                    [python, "-c", f"import importlib.metadata as m; print(m.version('{name}'))"],
                    capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
                result = subprocess.run(
                    [python, "-c", CLIENTS[name], server.url], env=environment, capture_output=True, text=True,
                    check=False)  # fmt: skip
                lines = (result.stdout if result.returncode == 0 else result.stderr).strip().splitlines()
                print(f"| {name} | {version} | {lines[-1] if lines else 'no output'} |", flush=True)
                if result.returncode:
                    failed.append(name)
                    print(result.stderr, file=sys.stderr)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
