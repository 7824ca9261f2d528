"""Random texts through our tokenizer and llama.cpp's: any difference is printed, and fails.

    python tests/peer_tokenizer_fuzz.py model.gguf --peer python-with-llama-cpp -n 10000 --seed 1
    python tests/peer_tokenizer_fuzz.py model.gguf --code-points        every code point of Unicode

llama.cpp runs in a process of its own, in whatever environment has it (tests/llama_cpp_vocabulary.py).
"""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tokenizer_texts import random_texts

from localinfer.files import gguf
from localinfer.tokenizer import Tokenizer, from_gguf

ORACLE = Path(__file__).with_name("llama_cpp_vocabulary.py")
BOTH = (False, True)
SHOWN = 10  # differences
AT_ONCE = 32  # code points in a text


class Peer:
    """llama.cpp's ids for a text, from a process that waits for questions."""

    def __init__(self, python: str, model: Path) -> None:
        if subprocess.run([python, "-c", "import llama_cpp"], capture_output=True).returncode:
            print(f"skipped: {python} has no llama-cpp-python; name one that has with --peer")
            sys.exit(0)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([python, ORACLE, model], stdin=pipe, stdout=pipe, text=True)

    def encode(self, text: str, **flags: bool) -> list[int]:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps({"text": text, **flags}), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"llama.cpp gave up on {text!r}")
        ids: list[int] = json.loads(answer)
        return ids


def code_points() -> Iterator[str]:
    """Texts in which every code point stands between letters, digits, spaces and symbols."""
    contexts = ("a{0}b", "1{0}2", " {0} ", "{0}{0}", "'{0}s\n{0}!", "A{0}\n", "-{0} {0}a")
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(codes), AT_ONCE):
        chars = [chr(code) for code in codes[start : start + AT_ONCE]]
        yield "|".join(context.format(char) for char in chars for context in contexts)


def compare(tokenizer: Tokenizer, peer: Peer, texts: Iterable[str]) -> tuple[int, int]:
    """How many comparisons were made, and how many differed; the first ones are shown, shortened."""
    done = different = 0
    for text, add_special, parse_special in itertools.product(texts, BOTH, BOTH):
        flags = {"add_special": add_special, "parse_special": parse_special}

        def differs(text: str, flags: dict[str, bool] = flags) -> bool:
            return tokenizer.encode(text, **flags) != peer.encode(text, **flags)

        done += 1
        if differs(text):
            different += 1
            if different <= SHOWN:
                text = shortened(text, differs)
                print(f"{text!a} {flags}\n  ours   {tokenizer.encode(text, **flags)}")
                print(f"  theirs {peer.encode(text, **flags)}")
    return done, different


def shortened(text: str, differs: Callable[[str], bool]) -> str:
    """`text` without all that can be left out while it still `differs`."""
    size = len(text) // 2
    while size:
        for start in range(len(text) - size, -1, -size):
            without = text[:start] + text[start + size :]
            text = without if differs(without) else text
        size //= 2
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", default=sys.executable, help="a Python that has llama-cpp-python")
    parser.add_argument("-n", type=int, default=2000, help="number of texts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--code-points", action="store_true")
    arguments = parser.parse_args()

    tokenizer = from_gguf(gguf.open_gguf(arguments.model))
    tokens = [tokenizer.decode([id], special=True) for id in range(tokenizer.n_vocab)]
    mixtures = itertools.islice(random_texts(arguments.seed, tokens), arguments.n)
    texts = code_points() if arguments.code_points else mixtures
    done, different = compare(tokenizer, Peer(arguments.peer, arguments.model), texts)
    print(f"{arguments.model.name}: {done} comparisons, {different} different")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
