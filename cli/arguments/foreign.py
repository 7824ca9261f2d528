"""Flags of llama.cpp and Ollama that no command here has: what each stands for, or why nothing comes of it.

Facts only; `translation` acts on them. A flag that a command has itself is never looked up here, but for VALUES.
"""

SAME = {  # how it is said here
    "--temperature": ("--temp",),
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
    "--format": ("--json-schema",),
    "--chatml": ("--chat-template", "chatml"),
    "-cml": ("--chat-template", "chatml"),
    "--draft": ("--spec-draft-n-max",),
    "--draft-n": ("--spec-draft-n-max",),
    "--draft-max": ("--spec-draft-n-max",),
    "--draft-min": ("--spec-draft-n-min",),
    "--draft-n-min": ("--spec-draft-n-min",),
    "--spec-default": ("--spec-type", "ngram-mod"),
}
LOAD_MODES: dict[str, tuple[str, ...]] = {
    "mmap": ("--mmap",),
    "none": ("--no-mmap",),
    "mlock": ("--no-mmap", "--mlock"),
    "mmap+mlock": ("--mmap", "--mlock"),
}
MAPPED: dict[str, tuple[str, ...]] = {"0": ("--no-mmap",), "1": ("--mmap",)}  # of llama-bench
BY_VALUE = {  # the same, where that depends on the value
    "-lm": LOAD_MODES,
    "--load-mode": LOAD_MODES,
    "-mmp": MAPPED,
    "--mmap": MAPPED,
}
MODEL = {  # the value goes where a command expects MODEL, behind these letters
    "-m": "",
    "--model": "",
    "-mu": "",
    "--model-url": "",
    "-hf": "hf:",
    "-hfr": "hf:",
    "--hf-repo": "hf:",
}
MODELS = {  # flags that are a model
    "--gpt-oss-20b-default": "hf:ggml-org/gpt-oss-20b-GGUF",
    "--gpt-oss-120b-default": "hf:ggml-org/gpt-oss-120b-GGUF",
    "--vision-gemma-4b-default": "hf:ggml-org/gemma-3-4b-it-qat-GGUF",
    "--vision-gemma-12b-default": "hf:ggml-org/gemma-3-12b-it-qat-GGUF",
}
PREFIXED = {  # how it is said here, and what goes in front of the value
    "-hfd": ("--spec-draft-model", "hf:"),
    "-hfrd": ("--spec-draft-model", "hf:"),
    "--hf-repo-draft": ("--spec-draft-model", "hf:"),
    "--spec-draft-hf": ("--spec-draft-model", "hf:"),
}
HUB_FILE = ("-hff", "--hf-file")  # of the repository that -hf names
OTHER_COMMAND = {  # the same words, but for another command
    "-cnv": "chat",
    "--conversation": "chat",
    "-no-cnv": "generate",
    "--no-conversation": "generate",
}
QUESTIONS = {  # answered instead of what else is asked for
    "--usage": ("--help",),
    "--version": ("--version",),
    "-cl": ("list",),
    "--cache-list": ("list",),
    "--list-devices": ("doctor",),
    "--completion-bash": ("--show-completion", "bash"),
}

# Flags that nothing comes of: why; those that a value follows; those that stand alone. Names are separated by spaces.
# Behind one, ":2" says that two values follow it, and ":?" that perhaps one does, which then is one of SWITCHES.
SWITCHES = {"on", "off", "auto", "true", "false", "enabled", "disabled", "0", "1"}

AS_IT_IS = (  # they ask for what is always so: nothing needs to be said
    ("stdout is the generated text and nothing else", "", "--no-display-prompt"),
    ("chat templates are Jinja's", "", "--jinja"),
    ("answers are shown as they come", "", "--skip-chat-parsing --no-skip-chat-parsing"),
    ("nothing is run beforehand", "", "--warmup --no-warmup"),
    ("statistics are shown", "", "--perf --show-timings --verbose"),
    ("weights are packed for long prompts", "", "--repack"),
    ("there are no logs", "", "--no-log-jsonl --no-log-prefix --no-log-timestamps"),
    ("words are never cut", "", "--nowordwrap"),
    ("a newline is a token like any other", "", "--penalize-nl"),
)

NOTHING = (  # "... does nothing: <why>"
    (
        "the CPU computes everything",
        (
            "-ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -dev --device -ot "
            "--override-tensor -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -fitt --fit-target -mmdev --mmproj-device --rpc"
        ),
        (
            "-kvo --kv-offload -nkvo --no-kv-offload -cmoe --cpu-moe --op-offload --no-op-offload --no-host "
            "--mmproj-offload --no-mmproj-offload -bs --backend-sampling --low-vram -mmq -nommq --no-mul-mat-q"
        ),
    ),
    (
        "what does not fit in memory is refused before it runs; `localinfer inspect MODEL -c N` tells the size",
        "-fit --fit -fitc --fit-ctx -fitp --fit-print",
        "",
    ),
    (
        "a mapped file is read as far as it is needed; --no-mmap reads all of it, through the system's cache, too",
        "-lm --load-mode -lzm --lazy-mode",
        "-dio --direct-io -ndio --no-direct-io",
    ),
    ("attention is always computed in blocks, as flash attention is", "-fa:? --flash-attn:?", ""),
    ("rows are packed when a prompt is long, and never at loading", "", "-nr --no-repack"),
    (
        "threads run where the system puts them, at the priority of the process: see taskset, numactl and nice",
        (
            "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch "
            "--cpu-strict-batch --prio-batch --poll-batch --numa"
        ),
        "",
    ),
    (
        "sequences, of which --parallel says how many there are, share pages, and what they remember, by themselves",
        "-ctxcp --ctx-checkpoints --swa-checkpoints -cram --cache-ram -dt --defrag-thold",
        "--swa-full -kvu --kv-unified -no-kvu --no-kv-unified -cb --cont-batching -nocb --no-cont-batching -dkvc",
    ),
    (
        "the CPU computes a draft model, too",
        (
            "-devd --device-draft --spec-draft-device -ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl "
            "-otd --override-tensor-draft --spec-draft-override-tensor -ncmoed --n-cpu-moe-draft "
            "--spec-draft-n-cpu-moe --spec-draft-ncmoe"
        ),
        (
            "-cmoed --cpu-moe-draft --spec-draft-cpu-moe --spec-draft-backend-sampling "
            "--no-spec-draft-backend-sampling"
        ),
    ),
    (
        "threads of a draft model run where the system puts them, too",
        (
            "-Cd --cpu-mask-draft --spec-draft-cpu-mask -Crd --cpu-range-draft --spec-draft-cpu-range "
            "--cpu-strict-draft --spec-draft-cpu-strict --prio-draft --spec-draft-prio --poll-draft --spec-draft-poll "
            "-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch -Crbd --cpu-range-batch-draft "
            "--spec-draft-cpu-range-batch --cpu-strict-batch-draft --spec-draft-cpu-strict-batch --prio-batch-draft "
            "--spec-draft-prio-batch --poll-batch-draft --spec-draft-poll-batch"
        ),
        "",
    ),
    ("one guess is made for each place: there are no branches", "--draft-p-split --spec-draft-p-split", ""),
    (
        "how many tokens must repeat, and how many are guessed then, is found by measuring what pays",
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
        "tokens are guessed by what stands in the text itself, and nothing is kept of it",
        "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
        "",
    ),
    ("guesses come true as often as they do", "--spec-synth-len --spec-synth-rates", ""),
    (
        "there are no logs: what there is to say goes to stderr, and --debug shows where an error comes from",
        "-lv --verbosity --log-verbosity --log-file --log-colors:? --log-prompts-dir",
        "-v --log-verbose --log-enable --log-jsonl --log-prefix --log-timestamps",
    ),
    (
        "`localinfer tokenize` shows the tokens of a prompt, and the last line counts them",
        "-ptc --print-token-count",
        "--verbose-prompt",
    ),
    ("NO_COLOR=1 turns colours off; a pipe and a file never get any", "-co:? --color:?", ""),
    ("a line that ends in \\ goes on in the next one, and pasted lines stay together", "", "-mli --multiline-input"),
    ("what is not a terminal gets plain text anyway", "", "--simple-io"),
    ("the chat template puts around a message what the model expects", "--in-prefix --in-suffix", "--in-prefix-bos"),
    ("chat templates are always Jinja's", "", "--no-jinja"),
    (
        "the chat template says what becomes of earlier thoughts, and --chat-template-kwargs what it asks for",
        "",
        "--reasoning-preserve --no-reasoning-preserve",
    ),
    ("a conversation is on the screen already; `localinfer generate` can show its prompt", "", "--display-prompt"),
    ("all that the file says is shown", "", "--license --modelfile --parameters --system --template"),
    ("a model is in memory as long as its command runs, and no longer", "--keepalive --keep-alive", ""),
    ("nothing is fetched while a model runs", "", "--insecure"),
    ("a prompt that does not fit is an error, and is never cut", "", "--truncate"),
    ("that sampler is no longer in llama.cpp", "--tfs --tfs-z", ""),
    ("penalties spare no token for being a newline", "", "--no-penalize-nl"),
    ("keys and values are 16 bits wide, unless -ctk and -ctv say otherwise", "", "--memory-f32"),
)

MISSING = (  # "... is not supported: <what happens instead>"
    ("thoughts that are over their budget end with nothing but the tag", "--reasoning-budget-message", ""),
    ("the model runs without adapters", "--lora --lora-scaled --lora-base", ""),
    (
        "the model runs without control vectors",
        "--control-vector --control-vector-scaled --control-vector-layer-range:2",
        "",
    ),
    (
        "the model is given the text alone",
        (
            "-mm --mmproj -mmu --mmproj-url --image --audio --video --image-min-tokens --image-max-tokens "
            "--mtmd-batch-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir"
        ),
        "--mmproj-auto --no-mmproj --no-mmproj-auto",
    ),
    (
        "positions are encoded as the model's file says",
        (
            "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor "
            "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -gan --grp-attn-n -gaw --grp-attn-w"
        ),
        "",
    ),
    (
        "the model runs with its file's metadata; `localinfer quantize MODEL OUT COPY --override-kv ...` changes them",
        "--override-kv",
        "",
    ),
    ("weights are not looked at beforehand; `localinfer quantize MODEL OUT COPY` looks at each", "", "--check-tensors"),
    ("the model is run here", "--server-base", ""),
    ("HF_TOKEN in the environment tells who you are, or `hf auth login` does", "-hft --hf-token", ""),
)

IN_ONE_COMMAND = {  # as NOTHING
    "generate": (
        ("it never asks; `localinfer chat` does", "", "-i --interactive -if --interactive-first -st --single-turn"),
        (
            "there are no messages here; `localinfer chat` has them",
            (
                "-sys --system-prompt -sysf --system-prompt-file --chat-template --chat-template-file "
                "--chat-template-kwargs -rea --reasoning --reasoning-effort --reasoning-budget-message"
            ),
            "--reasoning-preserve --no-reasoning-preserve",
        ),
    ),
    "bench": (  # llama-bench gives a value, or a list of them, to flags that stand alone elsewhere
        ("the CPU computes everything", "-nkvo --no-kv-offload -nopo --no-op-offload --no-host -rpc", ""),
        ("attention is always computed in blocks, as flash attention is", "-fa --flash-attn", ""),
        ("rows are packed when a prompt is long", "--repack", ""),
        ("logits are always computed", "-embd --embeddings", ""),
        ("tests follow each other at once, and progress is shown", "--delay", "--progress"),
        ("what there is to say besides goes to stderr", "-oe --output-err", ""),
    ),
}

VALUES = {  # of a flag that is here, too: what it is here, and what there is to say about that
    "--threads": {"-1": ("0", "")},
    "--threads-batch": {"-1": ("0", "")},
    "--chunks": {"-1": ("0", "")},
    "--n-predict": {"-2": ("-1", "")},
    "--temp": {"-1": ("0", "")},
    "--top-k": {"-1": ("0", "")},
    "--json-schema": {"json": ('{"type": "object"}', "")},
    "--keep": {"-1": ("4", "the first 4 tokens are kept, not the whole prompt")},
    "--spec-type": dict.fromkeys(
        ("draft-dflash", "draft-dspark"),
        ("ngram", "such heads are not read: tokens are guessed by what stands in the text"),
    ),
    "--reasoning-format": {"deepseek-legacy": ("deepseek", "thoughts are told apart; none leaves them in the text")},
    "--reasoning-effort": {"default": ("", "")},
    "--think": {
        "true": ("on", ""),
        "false": ("off", ""),
        **dict.fromkeys(("low", "medium", "high"), ("on", "--reasoning-effort tells a template how much")),
    },
    "--cache-type-k": {
        "bf16": ("f16", "f16 is as large"),
        **dict.fromkeys(("iq4_nl", "q4_1", "q5_0", "q5_1"), ("q8_0", "q8_0 is the next better type that is here")),
    },
}
VALUES["--cache-type-v"] = VALUES["--cache-type-k"]
