"""Runs coding agents against the server: Claude Code, Codex, opencode and aider, with the settings of docs/agents.md.

    python tests/benchmarks/checks/coding_agents.py FOLDER [--model MODEL] [AGENT ...]

Without a model, tiny random ones answer. A grammar lets them call the agent's tool for reading a file, or answer.
This checks the protocol in a minute. A real model must call tools; its first turn takes minutes on a CPU.

It installs the agents into the folder (npm, and a virtual environment for aider), gives each one a home and a project
of its own, and passes its requests through a proxy that keeps them. Agents may send nothing else: updates and telemetry
are off. It prints a row for each request: how many tokens of the prompt were cached and evaluated, what the model
called, and whether the next request has the result.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

from recording_proxy import Exchange, RecordingProxy  # noqa: E402
from server_process import ServerProcess  # noqa: E402
from tiny import Field, tiny_llama  # noqa: E402

PACKAGES = {"claude": "@anthropic-ai/claude-code", "codex": "@openai/codex", "opencode": "opencode-ai"}
SECRET = "walnut"
READ = "Read the file note.txt and tell me the secret word."
CONTEXT = 32768
PATIENCE = 3600  # seconds for one agent
INSTRUCTIONS = "You are a coding agent. Use the tools to read and change files, then answer briefly."


TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ATTEMPTS = 8  # with tiny models, whose random weights decide whether they call the tool or answer


@dataclass(frozen=True)
class Agent:
    """An agent. `{url}`, `{model}`, `{home}` and `{project}` in texts are replaced.

    `files` are written into the home; those whose names begin with `project/` into the project. `call` is what the tiny
    model may call, or its answer if the agent has no tools.
    """

    name: str
    arguments: tuple[str, ...]
    call: tuple[str, dict[str, object]] | str
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


CODEX_CONFIG = """
model = "{model}"
model_provider = "localinfer"
model_context_window = 32768
model_instructions_file = "{home}/.codex/instructions.md"
web_search = "disabled"
check_for_update_on_startup = false
approval_policy = "never"
sandbox_mode = "workspace-write"

[model_providers.localinfer]
name = "localinfer"
base_url = "{url}/v1"
wire_api = "responses"
stream_idle_timeout_ms = 3600000
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[agents]
enabled = false

[skills.bundled]
enabled = false

[features]
goals = false
view_image = false
apps = false
plugins = false
hooks = false
tool_suggest = false
"""

OPENCODE_CONFIG: dict[str, Any] = {
    "autoupdate": False,
    "share": "disabled",
    "model": "localinfer/{model}",
    "small_model": "localinfer/{model}",
    "enabled_providers": ["localinfer"],
    "provider": {
        "localinfer": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{url}/v1", "apiKey": "none", "timeout": False},
            "models": {"{model}": {"limit": {"context": CONTEXT, "output": 4096}}},
        }
    },
    "agent": {"small": {"mode": "primary", "prompt": INSTRUCTIONS, "tools": {"*": False, "read": True}}},
}

AIDER_METADATA = {"openai/{model}": {
    "max_input_tokens": CONTEXT, "max_output_tokens": 4096, "input_cost_per_token": 0, "output_cost_per_token": 0,
    "litellm_provider": "openai", "mode": "chat"}}  # fmt: skip

AGENTS = [
    Agent(
        "claude",
        ("claude", "--bare", "--tools", "Read", "--model", "{model}", "-p", READ),
        ("Read", {"file_path": "{project}/note.txt"}),
        {
            "ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "none", "API_TIMEOUT_MS": "3600000",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1",
        },
    ),
    Agent(
        "codex",
        ("codex", "exec", "--skip-git-repo-check", READ),
        ("exec_command", {"cmd": "cat note.txt"}),
        files={".codex/config.toml": CODEX_CONFIG, ".codex/instructions.md": INSTRUCTIONS},
    ),
    Agent(
        "opencode",
        ("opencode", "run", "--agent", "small", "--title", "note", READ),
        ("read", {"filePath": "{project}/note.txt"}),
        {
            "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
        {"project/opencode.json": json.dumps(OPENCODE_CONFIG)},
    ),
    Agent(
        "aider",
        ("aider", "--model", "openai/{model}", "--edit-format", "whole", "--map-tokens", "0", "--no-git",
         "--no-check-update", "--analytics-disable", "--no-show-model-warnings", "--no-show-release-notes",
         "--yes-always", "--no-suggest-shell-commands", "--timeout", "3600",
         "--message", 'Change greet.py so that greet() returns "good morning".', "greet.py"),
        'greet.py\n```\ndef greet():\n    return "good morning"\n```\n',
        {"OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        {"project/.aider.model.metadata.json": json.dumps(AIDER_METADATA)},
    ),
]  # fmt: skip


def install(folder: Path, name: str) -> Path:
    """Install an agent unless it is there, and return the folder of its program."""
    if name == "aider":
        if not (folder / "aider" / "bin" / "aider").exists():
            venv.create(folder / "aider", with_pip=True)
            subprocess.run([folder / "aider/bin/python", "-m", "pip", "install", "-q", "aider-chat"], check=True)
        return folder / "aider" / "bin"
    modules = folder / "npm" / "node_modules"
    if not (modules / ".bin" / name).exists():
        (folder / "npm").mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--prefix", folder / "npm", "--no-fund", PACKAGES[name]], check=True)
        for script in "install.cjs", "postinstall.mjs":  # npm may not run the scripts of packages
            if (modules / PACKAGES[name] / script).exists():
                subprocess.run(["node", script], cwd=modules / PACKAGES[name], check=True)
    return modules / ".bin"


def run_agent(agent: Agent, folder: Path, url: str, model: str) -> tuple[str, str]:
    """Run an agent on its task. Return its version and what it printed."""
    programs = install(folder, agent.name)
    home, project = folder / "homes" / agent.name, folder / "projects" / agent.name
    for directory in home, project:
        directory.mkdir(parents=True, exist_ok=True)

    def filled(text: str) -> str:
        return text.replace("{url}", url).replace("{model}", model).replace("{home}", str(home))

    for name, text in agent.files.items():
        path = project / name.removeprefix("project/") if name.startswith("project/") else home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled(text))
    (project / "note.txt").write_text(f"The secret word is {SECRET}.\n")
    (project / "greet.py").write_text('def greet():\n    return "hello"\n')
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home)}
    environment |= {name: filled(value) for name, value in agent.environment.items()}
    version = subprocess.run(
        [agent.name, "--version"], env=environment, capture_output=True, text=True, check=True).stdout  # fmt: skip
    result = subprocess.run(
        list(map(filled, agent.arguments)), cwd=project, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=PATIENCE, check=False)  # fmt: skip
    (home / "output.txt").write_text(result.stdout + result.stderr)
    [number, *_] = re.findall(r"\d+\.[\d.]+", version)
    return number, result.stdout


# --- what was sent ---


@dataclass(frozen=True)
class Counts:
    """What a response says about its prompt and its tool calls."""

    cached: int
    evaluated: int
    calls: tuple[str, ...]


def counts_of(exchange: Exchange) -> Counts | None:
    """Return the counts of a response of any of the three APIs; None if it has none."""
    cached = evaluated = -1
    calls: list[str] = []
    for event in exchange.events:
        match event:
            case {"type": "message_delta", "usage": usage}:
                cached = usage["cache_read_input_tokens"]
                evaluated = usage["input_tokens"] + usage["cache_creation_input_tokens"]
            case {"type": "content_block_start", "content_block": {"type": "tool_use", "name": name}}:
                calls.append(name)
            case {"type": "response.output_item.done", "item": {"type": "function_call", "name": name}}:
                calls.append(name)
            case {"timings": times, **rest}:
                cached, evaluated = times["cache_n"], times["prompt_n"]
                calls += calls_of_choices(rest)
            case {"choices": _}:
                calls += calls_of_choices(event)
    return Counts(cached, evaluated, tuple(calls)) if evaluated >= 0 else None


def calls_of_choices(event: dict[str, Any]) -> Iterator[str]:
    for choice in event.get("choices", []):
        for call in choice.get("delta", choice.get("message", {})).get("tool_calls") or []:
            if name := call["function"].get("name"):
                yield name


def has_result(request: Any) -> bool:
    """Return whether the last message or item of a request is the result of a tool."""
    last = (request.get("input") or request.get("messages") or [{}])[-1]
    content = last.get("content")
    blocks = content if isinstance(content, list) else []
    is_block = any(isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks)
    return is_block or last.get("role") == "tool" or last.get("type") == "function_call_output"


def report(agent: Agent, version: str, exchanges: list[Exchange], seconds: float) -> None:
    """Print a row for each request that was answered."""
    answered = [(each, counts) for each in exchanges if each.request and (counts := counts_of(each))]
    for number, (exchange, counts) in enumerate(answered):
        following = answered[number + 1][0].request if number + 1 < len(answered) else None
        executed = "yes" if following and has_result(following) else "no"
        calls = f"{', '.join(counts.calls)} (result sent: {executed})" if counts.calls else "-"
        path, first = exchange.path.partition("?")[0], exchange.chunk_times[0]
        print(f"| {agent.name} {version} | `{path}` | {counts.cached:,} | {counts.evaluated:,} | {calls} "
              f"| {first:.0f} | {exchange.chunk_times[-1]:.0f} |", flush=True)  # fmt: skip
    refused = [f"{each.method} {each.path}: {each.status}" for each in exchanges if each.status >= 400]
    print(f"{agent.name}: {len(exchanges)} requests in {seconds:.0f} s, refused: {refused or 'none'}", flush=True)


# --- the server ---


def serve(agent: Agent, folder: Path, model: str, seed: int) -> ServerProcess:
    """Start a server with a model, or with a tiny one that may call the agent's tool."""
    if model:
        return ServerProcess(model, "-c", CONTEXT, "--temp", 0)
    template = Field("STRING", TEMPLATE)
    path = tiny_llama(folder / "tiny.gguf", seed=seed, n_ctx=4 * CONTEXT, **{"tokenizer.chat_template": template})
    if isinstance(agent.call, str):
        texts = [agent.call]
    else:
        name, arguments = agent.call
        filled = json.dumps(arguments).replace("{project}", str(folder / "projects" / agent.name))
        call = f'<tool_call>\n{{"name": "{name}", "arguments": {filled}}}\n</tool_call>'
        texts = [call, f"The secret word is {SECRET}."]
    grammar = "root ::= " + " | ".join(map(json.dumps, texts))
    return ServerProcess(path, "-c", 4 * CONTEXT, "--grammar", grammar)


def check(agent: Agent, folder: Path, model: str) -> bool:
    """Run an agent, until it has sent the result of a call if the models are tiny. Return whether it worked."""
    for seed in range(1 if model or isinstance(agent.call, str) else ATTEMPTS):
        with serve(agent, folder, model, seed) as server, RecordingProxy(server.url) as proxy:
            name, start = server.get("/v1/models").body["data"][0]["id"], time.monotonic()
            try:
                version, output = run_agent(agent, folder, proxy.url, name)
            except subprocess.TimeoutExpired:
                version, output = "", ""
            seconds = time.monotonic() - start
        sent_result = any(has_result(each.request) for each in proxy.exchanges if each.request)
        if sent_result or isinstance(agent.call, str):
            break
    report(agent, version, proxy.exchanges, seconds)
    changed = "good morning" in (folder / "projects" / agent.name / "greet.py").read_text()
    print(f"{agent.name}: the task is {'done' if changed or SECRET in output else 'not done'}", flush=True)
    return sent_result or changed


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs coding agents against localinfer serve.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("agents", nargs="*", default=[agent.name for agent in AGENTS])
    parser.add_argument("--model", default="", help="model that calls tools; by default a tiny random one")
    arguments = parser.parse_intermixed_args()  # agents may follow --model
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print("| agent | endpoint | cached | evaluated | calls | first byte, s | whole, s |")
    print("|---|---|---|---|---|---|---|")
    agents = [agent for agent in AGENTS if agent.name in arguments.agents]
    if failed := [agent.name for agent in agents if not check(agent, folder, arguments.model)]:
        raise SystemExit(f"no result of a tool, or no change, came from {', '.join(failed)}")


if __name__ == "__main__":
    main()
