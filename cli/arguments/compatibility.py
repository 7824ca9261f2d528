"""Flags of llama.cpp and Ollama: the equivalent options, or the reason why a flag has no effect.

This module is only data, which `translation` uses. A flag that the command itself has is looked up only in
VALUE_EQUIVALENTS.
"""

EQUIVALENTS = {  # flag: equivalent words
    "--temperature": ("--temp",),
    "--max-tokens": ("-n",),
    "--max-new-tokens": ("-n",),
    "--num-predict": ("-n",),
    "--num-ctx": ("--ctx-size",),
    "-ctx": ("--ctx-size",),
    "--np": ("--parallel",),
    "--context-shift": ("--ctx-policy", "ring"),
    "--no-context-shift": ("--ctx-policy", "stop"),
    "--no-perf": ("--quiet",),
    "--no-show-timings": ("--quiet",),
    "--log-disable": ("--quiet",),
    "--stdin": ("--file", "-"),
    "-bf": ("--file",),
    "--binary-file": ("--file",),
    "-i": ("--conversation",),
    "-if": ("--conversation",),
    "--interactive": ("--conversation",),
    "--interactive-first": ("--conversation",),
    "-ins": ("--conversation",),
    "--instruct": ("--conversation",),
    "--chunk": ("--from-chunk",),
    "--format": ("--json-schema",),
    "--chatml": ("--chat-template", "chatml"),
    "-cml": ("--chat-template", "chatml"),
    "--draft": ("--spec-draft-n-max",),
    "--draft-n": ("--spec-draft-n-max",),
    "--draft-max": ("--spec-draft-n-max",),
    "--draft-min": ("--spec-draft-n-min",),
    "--draft-n-min": ("--spec-draft-n-min",),
    "--spec-default": ("--spec-type", "ngram-mod"),
    "--webui": ("--ui",),
    "--no-webui": ("--no-ui",),
    "--log-verbose": ("--verbose",),
    "--cors-origins": ("--allow-origin",),
    "--no-mmproj-auto": ("--no-mmproj",),
    "-mmu": ("--mmproj",),
    "--mmproj-url": ("--mmproj",),
    "--memory-f32": ("--cache-type-k", "f32", "--cache-type-v", "f32"),
}
RESUME = ("--continue", "--session NAME")
MEANT = {"--resume": RESUME, "--restore": RESUME, "--last": RESUME}  # flag that no program has: what to suggest for it
LOAD_MODES: dict[str, tuple[str, ...]] = {
    "mmap": ("--mmap",),
    "none": ("--no-mmap",),
    "mlock": ("--no-mmap", "--mlock"),
    "mmap+mlock": ("--mmap", "--mlock"),
}
MMAP_VALUES: dict[str, tuple[str, ...]] = {"0": ("--no-mmap",), "1": ("--mmap",)}  # llama-bench
EFFORTS: dict[str, tuple[str, ...]] = {  # Ollama
    level: ("--think", "on", "--reasoning-effort", level) for level in ("low", "medium", "high")
}
BY_VALUE = {  # flag: {value: equivalent words}
    "--think": EFFORTS,
    "-lm": LOAD_MODES,
    "--load-mode": LOAD_MODES,
    "-mmp": MMAP_VALUES,
    "--mmap": MMAP_VALUES,
}
MODEL_FLAGS = {  # flag whose value is the MODEL argument: prefix of the value
    "-m": "",
    "--model": "",
    "-mu": "",
    "--model-url": "",
    "-hf": "hf:",
    "-hfr": "hf:",
    "--hf-repo": "hf:",
}
CODE_COMPLETION = ("--port", "8012", "--batch-size", "1024", "--ubatch-size", "1024")
CODE_DRAFT = ("--spec-draft-model", "hf:ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF")
GPT_OSS = ("--port", "8013", "--ubatch-size", "2048", "--temp", "1", "--top-p", "1", "--top-k", "0", "--min-p", "0.01")
MODEL_SHORTCUTS: dict[str, tuple[str, ...]] = {  # flag: model, and options as far as the command has them
    "--embd-gemma-default": (
        "hf:ggml-org/embeddinggemma-300M-qat-q4_0-GGUF", "--port", "8011", "--batch-size", "2048",
        "--ubatch-size", "2048",
    ),
    "--fim-qwen-1.5b-default": ("hf:ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF", *CODE_COMPLETION),
    "--fim-qwen-3b-default": ("hf:ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF", *CODE_COMPLETION),
    "--fim-qwen-7b-default": ("hf:ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF", *CODE_COMPLETION),
    "--fim-qwen-7b-spec": ("hf:ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF", *CODE_COMPLETION, *CODE_DRAFT),
    "--fim-qwen-14b-spec": ("hf:ggml-org/Qwen2.5-Coder-14B-Q8_0-GGUF", *CODE_COMPLETION, *CODE_DRAFT),
    "--fim-qwen-30b-default": ("hf:ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF", *CODE_COMPLETION),
    "--gpt-oss-20b-default": ("hf:ggml-org/gpt-oss-20b-GGUF", *GPT_OSS),
    "--gpt-oss-120b-default": ("hf:ggml-org/gpt-oss-120b-GGUF", *GPT_OSS),
    "--vision-gemma-4b-default": ("hf:ggml-org/gemma-3-4b-it-qat-GGUF", "--port", "8014"),
    "--vision-gemma-12b-default": ("hf:ggml-org/gemma-3-12b-it-qat-GGUF", "--port", "8014"),
}  # fmt: skip
PREFIXED = {  # flag: (equivalent option, prefix of the value)
    "-hfd": ("--spec-draft-model", "hf:"),
    "-hfrd": ("--spec-draft-model", "hf:"),
    "--hf-repo-draft": ("--spec-draft-model", "hf:"),
    "--spec-draft-hf": ("--spec-draft-model", "hf:"),
}
HUB_FILE_FLAGS = ("-hff", "--hf-file")  # a file in the repository of -hf
OTHER_COMMAND = {  # flag that a command lacks: command to run instead, with the same arguments
    "-cnv": "chat",
    "--conversation": "chat",
    "-no-cnv": "generate",
    "--no-conversation": "generate",
}
OTHER_COMMAND_OF = {  # command: flags without which the answer would be another one, and the command that has them
    "generate": dict.fromkeys(
        ("-sys", "--system-prompt", "-sysf", "--system-prompt-file", "--chat-template", "--chat-template-file"), "chat"
    ),
}
ACTION_FLAGS = {  # flag: command line to run instead
    "--usage": ("--help",),
    "--version": ("--version",),
    "-cl": ("list",),
    "--cache-list": ("list",),
    "--list-devices": ("doctor",),
    "--completion-bash": ("--show-completion", "bash"),
}

# Flags without effect, in rows of (reason, flags with a value, flags without a value). Flags are separated by spaces.
# The suffix ":2" means that two values follow a flag; ":?" means an optional value, which is one of SWITCHES.
SWITCHES = {"on", "off", "auto", "true", "false", "enabled", "disabled", "0", "1"}

ALWAYS_ON = (  # the requested behaviour is always on, so there is no warning
    ("stdout contains only the generated text", "", "--no-display-prompt"),
    ("chat templates are always rendered with Jinja", "", "--jinja"),
    ("output is always streamed", "", "--skip-chat-parsing --no-skip-chat-parsing"),
    ("there is no warmup run", "", "--warmup --no-warmup"),
    ("statistics are always printed", "", "--perf --show-timings --verbose"),
    ("weights are repacked for long prompts", "", "--repack"),
    ("there are no logs", "", "--log-disable --no-log-jsonl --no-log-prefix --no-log-timestamps"),
    ("words are never split", "", "--nowordwrap"),
    ("penalties apply to newlines as to any token", "", "--penalize-nl"),
)

NO_EFFECT = (  # "... has no effect: <reason>"
    (
        "all computation runs on the CPU",
        (
            "-ngl --ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -dev --device "
            "-ot --override-tensor -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -fitt --fit-target -mmdev --mmproj-device "
            "--rpc"
        ),
        (
            "-kvo --kv-offload -nkvo --no-kv-offload -cmoe --cpu-moe --op-offload --no-op-offload --no-host "
            "--mmproj-offload --no-mmproj-offload -bs --backend-sampling --low-vram -mmq -nommq --no-mul-mat-q"
        ),
    ),
    ("images are encoded one at a time", "--mtmd-batch-max-tokens", ""),
    (
        "a model that does not fit in memory is an error; `localinfer inspect MODEL -c N` shows the size",
        "-fit --fit -fitc --fit-ctx -fitp --fit-print",
        "",
    ),
    (
        "a memory-mapped file is read on demand; --no-mmap reads the whole file at startup",
        "-lm --load-mode -lzm --lazy-mode",
        "-dio --direct-io -ndio --no-direct-io",
    ),
    ("attention always uses a blockwise algorithm like flash attention", "-fa:? --flash-attn:?", ""),
    ("weights are repacked for long prompts, never at load time", "", "-nr --no-repack"),
    (
        "the operating system schedules threads; see taskset, numactl and nice",
        (
            "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch "
            "--cpu-strict-batch --prio-batch --poll-batch --numa"
        ),
        "",
    ),
    (
        "sequences share KV cache pages automatically; --parallel sets their number",
        "-ctxcp --ctx-checkpoints --swa-checkpoints -cram --cache-ram -dt --defrag-thold",
        "--swa-full -kvu --kv-unified -no-kvu --no-kv-unified -cb --cont-batching -nocb --no-cont-batching -dkvc",
    ),
    (
        "the draft model runs on the CPU, too",
        (
            "-devd --device-draft --spec-draft-device -ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl "
            "-otd --override-tensor-draft --spec-draft-override-tensor -ncmoed --n-cpu-moe-draft "
            "--spec-draft-n-cpu-moe --spec-draft-ncmoe"
        ),
        ("-cmoed --cpu-moe-draft --spec-draft-cpu-moe --spec-draft-backend-sampling --no-spec-draft-backend-sampling"),
    ),
    (
        "the operating system schedules the threads of the draft model, too",
        (
            "-Cd --cpu-mask-draft --spec-draft-cpu-mask -Crd --cpu-range-draft --spec-draft-cpu-range "
            "--cpu-strict-draft --spec-draft-cpu-strict --prio-draft --spec-draft-prio --poll-draft --spec-draft-poll "
            "-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch -Crbd --cpu-range-batch-draft "
            "--spec-draft-cpu-range-batch --cpu-strict-batch-draft --spec-draft-cpu-strict-batch --prio-batch-draft "
            "--spec-draft-prio-batch --poll-batch-draft --spec-draft-poll-batch"
        ),
        "",
    ),
    ("there is one draft token per position and no tree", "--draft-p-split --spec-draft-p-split", ""),
    (
        "the n-gram size and the draft length adapt to the measured speedup",
        (
            "--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n "
            "--spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n "
            "--spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n "
            "--spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --spec-ngram-size-n --spec-ngram-size-m "
            "--spec-ngram-min-hits"
        ),
        "",
    ),
    (
        "n-gram lookup uses only the current text and has no lookup cache",
        "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
        "",
    ),
    ("acceptance rates cannot be simulated", "--spec-synth-len --spec-synth-rates", ""),
    (
        "there are no logs; messages go to stderr, and --debug shows tracebacks",
        "-lv --verbosity --log-verbosity --log-file --log-colors:? --log-prompts-dir",
        "-v --log-verbose --log-enable --log-jsonl --log-prefix --log-timestamps",
    ),
    (
        "use `localinfer tokenize` to show the tokens of a prompt",
        "-ptc --print-token-count",
        "--verbose-prompt",
    ),
    ("colours are used on terminals only; NO_COLOR=1 disables them", "-co:? --color:?", ""),
    ("a line that ends in \\ continues on the next line, and pasted lines stay together", "", "-mli --multiline-input"),
    ("output that is not a terminal is always plain text", "", "--simple-io"),
    ("the chat template adds the prefix and suffix of messages", "--in-prefix --in-suffix", "--in-prefix-bos"),
    ("chat templates are always rendered with Jinja", "", "--no-jinja"),
    (
        "the chat template handles earlier reasoning content; see --chat-template-kwargs",
        "",
        "--reasoning-preserve --no-reasoning-preserve",
    ),
    ("the chat shows the conversation; `localinfer generate` can print its prompt", "", "--display-prompt"),
    ("only `localinfer embed` computes embeddings", "--dimensions", ""),
    ("reasoning is shown on a terminal, and is never part of stdout", "", "--hidethinking"),
    ("a model stays loaded exactly as long as its command runs", "--keepalive --keep-alive", ""),
    ("nothing is downloaded while a model runs", "", "--insecure"),
    ("a prompt that does not fit is an error and is never truncated", "", "--truncate"),
)

UNSUPPORTED = (  # "... is not supported: <what happens instead>", where the answer stays the same
    ("the model's own processor decides where the prompt has times", "--video-timestamp-interval", ""),
    ("the package of the extra `video` decodes videos", "--video-ffmpeg-dir", ""),
    ("this command does not read all weights; `localinfer quantize MODEL OUT COPY` checks them", "", "--check-tensors"),
    ("the model runs locally", "--server-base", ""),
    ("use the environment variable HF_TOKEN or `hf auth login`", "-hft --hf-token", ""),
)

# An error, "... is not supported: <why>": without them, the answer would be another one. A server starts in any case,
# with the same text as a warning.
REFUSED = (
    (
        "this command runs models without adapters; `localinfer merge MODEL --lora FILE -o OUT` writes them into one",
        "--lora --lora-scaled",
        "--lora-init-without-apply",
    ),
    ("adapters are applied to the model that runs, whatever they were trained with", "--lora-base", ""),
    (
        "this command runs models without control vectors",
        "--control-vector --control-vector-scaled --control-vector-layer-range:2",
        "",
    ),
    (
        "this command runs models with the RoPE parameters of their files; `localinfer edit` changes a file",
        (
            "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor "
            "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast"
        ),
        "",
    ),
    ("attention with grouped positions (self-extend) does not exist here", "-gan --grp-attn-n -gaw --grp-attn-w", ""),
    (
        "this command runs models with the metadata of their files; `localinfer edit` changes a file",
        "--override-kv",
        "",
    ),
    ("reasoning over its budget ends with the end tag only", "--reasoning-budget-message", ""),
    ("llama.cpp has removed this sampler, too", "--tfs --tfs-z", ""),
    ("penalties apply to newlines as to any token", "", "--no-penalize-nl"),
)
REFUSED_BY_COMMAND = {  # command: rows as in REFUSED
    "perplexity": (
        ("use `localinfer compare BASE MODEL`, without a file of logits", "--kl-divergence-base", "--kl-divergence"),
        ("each token is scored once, in chunks of --ctx-size tokens", "--ppl-stride", ""),
        (
            "use `localinfer eval MODEL TASK FILE`, which has --limit",
            "--hellaswag-tasks --winogrande-tasks --multiple-choice-tasks",
            "--hellaswag --winogrande --multiple-choice",
        ),
    ),
    "quantize": (
        ("files are little-endian", "", "--bigendian"),
        (
            "the converter of llama.cpp has this option, and localinfer has not",
            "--metadata",
            "--vocab-only --mtp --no-mtp --no-nextn --mistral-format --fp8-as-q8",
        ),
        ("--target-model-dir alone selects the DSpark head of a checkpoint", "", "--dspark"),
    ),
    "serve": (
        ("the server calls no tools itself", "--mcp-servers-config --tools", ""),
    ),
}
JOINED = {  # option: what joins a value and a number after it, which may also be a word of its own
    "--lora-scaled": ":",
    "--control-vector-scaled": ":",
    "--control-vector-layer-range": ",",
}
NEUTRAL_VALUES = {  # refused flag: values with which it has no effect in llama.cpp either
    **dict.fromkeys(("-gan", "--grp-attn-n", "--tfs", "--tfs-z"), ("1", "1.0")),
    "--ppl-stride": ("0",),
    **dict.fromkeys(("--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx"), ("0", "0.0")),
    **dict.fromkeys(
        ("--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast"), ("-1", "-1.0")
    ),
}

MCP_PROXY_FLAGS = "--ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy"
NO_EFFECT_BY_COMMAND = {  # command: rows as in NO_EFFECT
    "control-vector": (
        ("the first principal component is computed exactly, from all pairs at once", "--pca-batch --pca-iter", ""),
    ),
    "chat": (
        (
            "the KV cache of a saved session is saved and loaded automatically",
            "--prompt-cache",
            "--prompt-cache-all --prompt-cache-ro",
        ),
    ),
    "serve": (
        ("all endpoints are available", "", "--embedding --embeddings --rerank --reranking"),
        ("the web UI has no settings file", "--ui-config --webui-config --ui-config-file --webui-config-file", ""),
        ("the web UI is part of the program", "--path --api-prefix", ""),
        ("the web UI connects to MCP servers itself; --webui-connect allows it", "", MCP_PROXY_FLAGS),
        ("the server calls no tools itself", "--tools-runtime --mcp-servers-json", "-ag --agent -no-ag --no-agent"),
        ("--allow-origin names the origins; methods and headers follow", "--cors-methods --cors-headers",
         "--cors-credentials --no-cors-credentials"),
        ("the model continues a last message of the assistant, unless the request says otherwise", "",
         "--prefill-assistant --no-prefill-assistant"),
        ("a port in use is an error", "", "--reuse-port"),
        ("requests are JSON, which has its own escapes", "", "-e --escape --no-escape"),
        ("statistics are part of every response", "", "--no-perf"),
        ("models come from files and from the hub; use -hf", "-dr --docker-repo", ""),
        ("sequences share KV cache pages automatically", "--kv-unified-per-slot -cms --checkpoint-min-step", ""),
        ("requests set it as embd_normalize", "--embd-normalize", ""),
        ("special tokens are never part of the text", "", "-sp --special"),
        ("one thread accepts requests, and the model runs in others", "--threads-http", ""),
        (
            "prompts share their common prefix automatically",
            "--cache-reuse -sps --slot-prompt-similarity",
            "--cache-idle-slots --no-cache-idle-slots",
        ),
    ),
    "perplexity": (("there is one result, and no output per chunk", "--ppl-output-type", ""),),
    "imatrix": (
        ("the file is written once, at the end", "-ofreq --output-frequency --save-frequency", ""),
        ("perplexity is never computed meanwhile", "", "--no-ppl --ppl"),
    ),
    "embed": (("the output is always JSON Lines, or the format of --output", "--embd-output-format", ""),),
    "quantize": (
        ("tensors are always read when they are needed", "", "--no-lazy --use-temp-file"),
        ("dense layers after pooling are always converted", "", "--sentence-transformers-dense-modules"),
    ),
    "generate": (
        (
            "use `localinfer chat` for interactive mode",
            "",
            "-i --interactive -if --interactive-first -st --single-turn",
        ),
        (
            "no chat template is applied; use `localinfer chat`",
            "--chat-template-kwargs -rea --reasoning --reasoning-effort",
            "--reasoning-preserve --no-reasoning-preserve",
        ),
    ),
    "bench": (  # in llama-bench, these flags take a value or a list of values
        ("all computation runs on the CPU", "-nkvo --no-kv-offload -nopo --no-op-offload --no-host -rpc", ""),
        ("attention always uses a blockwise algorithm like flash attention", "-fa --flash-attn", ""),
        ("weights are repacked for long prompts", "--repack", ""),
        ("logits are always computed", "-embd --embeddings", ""),
        ("tests run without delay, and progress is shown", "--delay", "--progress"),
        ("messages always go to stderr", "-oe --output-err", ""),
    ),
}

OPTIONAL_VALUES = {  # flag: the value without one, and the values that are told from an argument that follows the flag
    "--think": ("on", ("auto", "on", "off", "true", "false")),
}
VALUE_EQUIVALENTS = {  # option that exists here: {value: (equivalent value, warning)}
    "--threads": {"-1": ("0", "")},
    "--threads-batch": {"-1": ("0", "")},
    "--chunks": {"-1": ("0", "")},
    "--n-predict": {"-2": ("-1", "")},
    "--temp": {"-1": ("0", "")},
    "--top-k": {"-1": ("0", "")},
    "--json-schema": {"json": ('{"type": "object"}', "")},
    "--keep": {"-1": ("4", "keeping the first 4 tokens, not the whole prompt")},
    "--reasoning-format": {"deepseek-legacy": ("deepseek", "using deepseek; none leaves reasoning in the text")},
    "--reasoning-effort": {"default": ("", "")},
    "--think": {
        "true": ("on", ""),
        "false": ("off", ""),
    },
    "--cache-type-k": {
        "bf16": ("f16", "using f16"),
        **dict.fromkeys(("iq4_nl", "q4_1", "q5_0", "q5_1"), ("q8_0", "not supported; using q8_0")),
    },
}
VALUE_EQUIVALENTS["--cache-type-v"] = VALUE_EQUIVALENTS["--cache-type-k"]
