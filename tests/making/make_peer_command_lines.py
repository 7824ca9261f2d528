"""Write tests/data/peer_command_lines.txt: a sample of the command lines in llama.cpp's and Ollama's documentation.

    python tests/making/make_peer_command_lines.py FOLDER ...           # folders of documentation
    python tests/making/make_peer_command_lines.py FOLDER ... --all     # print every command line and its page instead

Command lines of PROGRAMS are taken from code blocks and running text of all pages. Among those that differ only in the
names of models and files, the first one counts. Of each class in CLASSES, those with the smallest hashes are taken, so
that nobody chooses. Longer texts are replaced by one of ours.
"""

import hashlib
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

FILE = Path(__file__).parents[1] / "data" / "peer_command_lines.txt"
HEADER = """\
# A sample of the command lines of llama.cpp's tools and of Ollama in the documentation of both, and of Qwen3, the
# Hugging Face Hub, Open WebUI, gpt-oss and llama.vim (2026; llama.cpp also in August 2024, Ollama also in January
# 2026). tests/making/make_peer_command_lines.py wrote it.
"""
TOOLS = (
    *("cli", "completion", "server", "run", "quantize", "imatrix", "perplexity", "bench", "batched-bench"),
    *("embedding", "tokenize", "gguf-split", "export-lora", "speculative", "speculative-simple", "lookup"),
    *("lookup-create", "lookup-merge", "lookup-stats", "simple", "simple-chat", "retrieval", "mtmd-cli", "tts"),
    "cvector-generator",
)
PROGRAMS = {*(f"llama-{tool}" for tool in TOOLS), "convert_hf_to_gguf.py", "ollama", "llama"}
LLAMA_COMMANDS = (
    "cli", "serve", "server", "completion", "bench", "batched-bench", "quantize", "perplexity", "download",
)  # fmt: skip
MEDIA, ACCOUNTS = "images, audio and speech", "accounts and other programs of Ollama"
CLASSES = {"llama.cpp": 126, "Ollama": 24, MEDIA: 10, ACCOUNTS: 10}  # class: the number of command lines
MEDIA_SIGNS = re.compile(
    r"^llama-(mtmd-cli|tts)\b| (--mmproj|-mm|--image|--audio) |--mmproj$|\.(png|jpe?g|wav|mp3)\b|-VL\b"
)
ACCOUNT_SIGNS = re.compile(r"^ollama (launch|signin|signout|push)\b|[:-]cloud\b")
FENCE = re.compile(r"^[ \t>]*(```+|~~~+)[^\n]*\n(.*?)^[ \t>]*\1`*[ \t]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
CONTINUATION = re.compile(r"(?<=\s)[\\^`][ \t]*\n\s*")
COMMENT = re.compile(r"\s+(#|//) .*")
PLACEHOLDER = re.compile(r"<([A-Za-z][\w ./:-]*)>|\{\{?([A-Za-z][\w -]*)\}?\}|\$([A-Za-z]\w*)")
WRAPPERS = ("sudo", "time", "python", "python3", "py", "nohup")
OPERATORS = ("&&", "||", "|", ";", "&", "|&")
MODEL_FLAGS = ("-m", "--model", "-hf", "-hfr", "--hf-repo", "-md", "-hfd", "-hff", "--hf-file", "-a", "--alias", "-p")
LONG_TEXT, REPLACEMENT = 4, "Write a poem about the sea."


def all_lines(folders: Iterable[Path]) -> dict[str, str]:
    """Return each command line, once, and the page that has it."""
    found: dict[str, str] = {}
    for folder in folders:
        for page in sorted([*folder.rglob("*.md"), *folder.rglob("*.mdx")]):
            for words in command_lines(page.read_text(encoding="utf-8", errors="replace")):
                found.setdefault(shlex.join(words), str(page.relative_to(folder)))
    return found


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the words of each command line of PROGRAMS in a page."""
    for block in FENCE.finditer(text):
        for line in CONTINUATION.sub("", block[2]).splitlines():
            yield from commands_of(line)
    for span in INLINE.finditer(FENCE.sub("", text)):
        yield from (words for words in commands_of(span[1]) if is_complete(words))


def is_complete(words: list[str]) -> bool:
    """Return whether words in running text are a command line, and not the name of a command or of a flag."""
    names = [word for word in words[2:] if not word.startswith("-")]
    return (words[0] == "ollama" and bool(names)) or any(word in MODEL_FLAGS[:3] for word in words)


def commands_of(line: str) -> Iterator[list[str]]:
    """Yield the command lines of PROGRAMS in a line for a shell."""
    line = re.sub(r"^\s*(>\s+)?([$#%] )?\s*", "", COMMENT.sub("", line))
    line = PLACEHOLDER.sub(lambda name: re.sub(r"\W+", "-", name[name.lastindex or 0]), line)
    for words in simple_commands(line):
        while words and (words[0] in WRAPPERS or re.match(r"\w+=", words[0])):
            words.pop(0)
        if words:
            program = re.split(r"[/\\]", words[0])[-1].removesuffix(".exe")
            if is_command(program, words[1:]):
                yield [program, *map(shortened, words[1:])]


def is_command(program: str, words: list[str]) -> bool:
    """Return whether words are a command line of PROGRAMS, and neither a usage message nor output."""
    if program == "llama" and (not words or words[0] not in LLAMA_COMMANDS):
        return False
    usage = any(word.startswith("[") or word.endswith(("...", "…", ":", "{")) for word in [program, *words])
    return program in PROGRAMS and not usage


def simple_commands(line: str) -> Iterator[list[str]]:
    """Split a line into simple commands, without redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    if re.search(r"[\w:]\\\w", line) and "\\n" not in line:  # paths of Windows
        lexer.escape = ""
    try:
        tokens = list(lexer)
    except ValueError:  # an open quotation mark
        return
    words: list[str] = []
    is_target = False
    for token in tokens:
        if token in OPERATORS:
            yield words
            words = []
        elif is_target:
            is_target = False
        elif token and set(token) <= set("<>&"):
            is_target = True
            if words and words[-1].isdigit():  # 2>&1
                words.pop()
        else:
            words.append(token)
    yield words


def shortened(word: str) -> str:
    if len(word.split()) <= LONG_TEXT or word.startswith("{"):
        return word
    return REPLACEMENT + ("\\n" if "\\n" in word else "")


def class_of(line: str) -> str:
    if line.startswith("ollama"):
        return ACCOUNTS if ACCOUNT_SIGNS.search(line) else MEDIA if MEDIA_SIGNS.search(line) else "Ollama"
    return MEDIA if MEDIA_SIGNS.search(line) else "llama.cpp"


def shape(line: str) -> tuple[str, ...]:
    """Return the words of a command line without the names of models, files and texts."""
    words = shlex.split(line)
    kept = [words[0]]
    for before, word in pairwise(words):
        is_name = before in MODEL_FLAGS or re.search(r"\.\w{3,5}$|/|\s|\\", word)
        is_name = is_name or (words[0] == "ollama" and len(kept) > 1 and not word.startswith("-"))
        kept.append((word[:3] if word.startswith("hf.") else "...") if is_name and not word.startswith("--") else word)
    return tuple(kept)


def sample(lines: Iterable[str], size: int) -> list[str]:
    """Return the lines with the smallest hashes, one of each shape, sorted."""
    distinct: dict[tuple[str, ...], str] = {}
    for line in lines:
        distinct.setdefault(shape(line), line)
    return sorted(sorted(distinct.values(), key=lambda line: hashlib.sha256(line.encode()).digest())[:size])


def main() -> None:
    found = all_lines(Path(folder) for folder in sys.argv[1:] if folder != "--all")
    classes = {name: [line for line in found if class_of(line) == name] for name in CLASSES}
    if "--all" in sys.argv:
        for line, page in found.items():
            print(f"{page:40} {line}")
        print(Counter(line.split()[0] for line in found))
        print({name: (len(lines), len({shape(line) for line in lines})) for name, lines in classes.items()})
        return
    parts = [f"\n# --- {name} ---\n" + "\n".join(sample(classes[name], size)) for name, size in CLASSES.items()]
    FILE.write_text(HEADER + "\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
