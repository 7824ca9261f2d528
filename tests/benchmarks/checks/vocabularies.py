"""Compares tokenization and detokenization with llama.cpp, on random and natural texts.

    python tests/benchmarks/checks/vocabularies.py                             # everything described below
    python tests/benchmarks/checks/vocabularies.py model.gguf -n 2000 --seed 2 # only these files
    python tests/benchmarks/checks/vocabularies.py --made --names              # only what needs no download
    python tests/benchmarks/checks/vocabularies.py model.gguf --code-points    # all of Unicode, in seven contexts

Without files, it compares llama.cpp's vocabularies, which are downloaded with the source distribution of
llama-cpp-python (--folder keeps them); synthetic vocabularies of the other kinds
(tests/models/synthetic_vocabularies.py); and for each name of tokenizer.ggml.pre a vocabulary in which any two bytes of
a word may merge. Texts are encoded with and without special tokens parsed and added. Intended differences are ignored:

    Text that is not parsed becomes no control token; llama.cpp produces them from plain text in rwkv and plamo2.
    There is no space after a first token that is not shown; llama.cpp's detokenization has one.
    Spaces before punctuation stay; llama.cpp removes them for most BPE vocabularies.
    A character that stands for no byte remains; llama.cpp shows [UNK_BYTE_0x...], or a byte for white space.

The columns `pieces` and `ends` count tokens with another text, and tokens that differ in ending the generation. Prints
a Markdown table and the first differences of each row, shortened. Any difference is a failure. Needs the dependency
groups `test` and `bench`.
"""

import argparse
import itertools
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[2]))
from locations import DATA, PYTHONPATH

sys.path[:0] = PYTHONPATH

from llama_cpp_vocabulary import Vocabulary, tidied  # noqa: E402
from synthetic_vocabularies import VOCABULARIES, every_pair, write  # noqa: E402
from tokenizer_texts import random_texts, tricky  # noqa: E402

from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.tokenizer import Tokenizer, from_gguf  # noqa: E402
from localinfer.tokenizer.pretokenizers import BY_NAME  # noqa: E402

PACKAGE = "llama-cpp-python"
MODELS = "vendor/llama.cpp/models/ggml-vocab-"
NATURAL = (DATA / "varied.txt").read_text(encoding="utf-8").split("\n\n")
ENCODE_FLAGS = ((False, False), (False, True), (True, True))  # add_special, parse_special
BACK = ((False, True), (True, False), (True, True))  # (parse_special, special)
SHOWN = 3  # differences per row
TEXT_CODE_POINTS = 16  # code points per text
LONGEST = 4000  # characters; llama.cpp's std::regex recurses for each


class Row(NamedTuple):
    """The number of texts and of differences."""

    name: str
    texts: int
    encoded: int
    decoded: int
    pieces: int
    ends: int


class Pair:
    """A vocabulary loaded with localinfer and llama.cpp."""

    def __init__(self, path: Path) -> None:
        self.ours: Tokenizer = from_gguf(open_gguf(path))
        self.theirs = Vocabulary(path)
        self.hidden = {id for id in range(self.ours.n_vocab) if not self.ours.token_bytes(id)}

    def encodings_differ(self, text: str, add_special: bool, parse_special: bool) -> bool:
        flags = {"add_special": add_special, "parse_special": parse_special}
        ours, reference = self.ours.encode(text, **flags), self.theirs.encode(text, **flags)
        return ours != reference and (parse_special or not self.hidden & (set(reference) - set(ours)))

    def decodings_differ(self, ids: list[int], special: bool) -> bool:
        ours = self.ours.decode(ids, special=special)
        if self.ours.add_bos and ids[:1] == [self.ours.bos] and not special:
            ids = ids[1:]
        reference = self.theirs.decode(ids, special=special)
        if "[UNK_BYTE_" in reference:
            reference = b"".join(self.theirs.piece(id, special=special) for id in ids).decode("utf-8", "replace")
        return reference not in (ours, tidied(ours))

    def other_pieces(self) -> int:
        return sum(
            self.ours.token_bytes(id, special=special) != self.theirs.piece(id, special=special)
            for id in range(self.ours.n_vocab)
            for special in (False, True)
        )

    def special_texts(self) -> list[str]:
        """Return about a hundred of the tokens that are not shown."""
        return [self.ours.decode([id], special=True) for id in sorted(self.hidden)[:200]]


def compare(name: str, path: Path, texts: Callable[[Pair], Iterator[str]], *, back: bool = True) -> Row:
    """Compare texts and print the first differences, shortened. With `back`, compare detokenization, too."""
    pair = Pair(path)
    n = encoded = decoded = 0
    for text in texts(pair):
        n += 1
        for alternative in ENCODE_FLAGS:
            if pair.encodings_differ(text, *alternative):
                encoded += 1
                if encoded <= SHOWN:
                    show(
                        name,
                        pair,
                        shortened(
                            text, lambda text, alternative=alternative: pair.encodings_differ(text, *alternative)
                        ),
                        alternative,
                    )
        for parse_special, special in BACK if back else ():
            ids = pair.theirs.encode(text, add_special=False, parse_special=parse_special)
            if pair.decodings_differ(ids, special):
                decoded += 1
                if decoded <= SHOWN:
                    ours, reference = (each.decode(ids, special=special) for each in (pair.ours, pair.theirs))
                    print(f"{name}: {ids[:20]} {ours[:80]!a} {reference[:80]!a}", file=sys.stderr)
    pieces = pair.other_pieces() if back else 0
    row = Row(name, n, encoded, decoded, pieces, len(pair.ours.eog ^ set(pair.theirs.eog())))
    pair.theirs.close()
    return row


def show(name: str, pair: Pair, text: str, alternative: tuple[bool, bool]) -> None:
    flags = dict(zip(("add_special", "parse_special"), alternative, strict=True))
    ours, reference = pair.ours.encode(text, **flags), pair.theirs.encode(text, **flags)
    print(f"{name}: {text!a} {flags}\n  ours   {ours}\n  theirs {reference}", file=sys.stderr)


def shortened(text: str, differs: Callable[[str], bool]) -> str:
    """Shorten `text` as far as it still `differs`."""
    size = len(text) // 2
    while size:
        for start in range(len(text) - size, -1, -size):
            without = text[:start] + text[start + size :]
            text = without if differs(without) else text
        size //= 2
    return text


# ------------------------------------------------------------------------------------------------- texts


def mixtures(n: int, seed: int) -> Callable[[Pair], Iterator[str]]:
    """Return a generator of `n` texts: edge cases, natural texts, and random mixtures with the vocabulary's tokens."""

    def texts(pair: Pair) -> Iterator[str]:
        tokens = [pair.ours.decode([id], special=True) for id in range(0, pair.ours.n_vocab, 7)]
        endless = itertools.chain(tricky(), NATURAL, random_texts(seed, tokens, pair.special_texts()))
        return itertools.islice((text for text in endless if len(text) <= LONGEST), n)

    return texts


def code_points(_: Pair) -> Iterator[str]:
    """Yield texts in which each code point occurs between letters, digits, spaces and symbols."""
    contexts = ("a{0}b", "1{0}2", " {0} ", "{0}{0}", "'{0}s\n{0}!", "A{0}\n", "-{0} {0}a")
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(codes), TEXT_CODE_POINTS):
        chars = [chr(code) for code in codes[start : start + TEXT_CODE_POINTS]]
        yield "|".join(context.format(char) for char in chars for context in contexts)


# ----------------------------------------------------------------------------------------- vocabularies


def fetched(folder: Path) -> list[Path]:
    """Return llama.cpp's vocabularies from the source distribution of the installed version."""
    actual = sorted(folder.glob("ggml-vocab-*.gguf"))
    if not actual:
        expected = f"{PACKAGE}=={version(PACKAGE)}"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", expected]
        subprocess.run([*command, "-d", folder], check=True)
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            for member in tar:
                if MODELS in member.name and member.name.endswith(".gguf"):
                    member.name = Path(member.name).name
                    tar.extract(member, folder, filter="data")
        actual = sorted(folder.glob("ggml-vocab-*.gguf"))
    return actual


def rows(arguments: argparse.Namespace, folder: Path) -> Iterator[Row]:
    texts = code_points if arguments.code_points else mixtures(arguments.n, arguments.seed)
    everything = not (arguments.files or arguments.made or arguments.names)
    for path in arguments.files or (fetched(arguments.folder or folder) if everything else []):
        yield compare(path.stem.removeprefix("ggml-vocab-"), path, texts)
    for name, keys in VOCABULARIES.items() if everything or arguments.made else ():
        yield compare(f"made: {name}", write(folder / "made.gguf", keys()), texts, back=name != "whitespace")
    for name in BY_NAME if everything or arguments.names else ():
        yield compare(f"pre: {name}", write(folder / "made.gguf", every_pair() | {"pre": name}), texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="GGUF files, with or without weights")
    parser.add_argument("-n", type=int, default=10_000, help="texts for each vocabulary (default: 10000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--made", action="store_true", help="only synthetic vocabularies of the kinds that llama.cpp has no file of"
    )
    parser.add_argument("--names", action="store_true", help="every name of tokenizer.ggml.pre")
    parser.add_argument("--code-points", action="store_true", help="every code point instead of mixtures")
    parser.add_argument("--folder", type=Path, help="folder of llama.cpp's vocabularies, for reading or downloading")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # two of the files are older than tokenizer.ggml.pre
    with tempfile.TemporaryDirectory() as folder:
        print("| vocabulary | texts | encoded | decoded | pieces | ends |\n|---|---:|---:|---:|---:|---:|")
        different = 0
        for row in rows(arguments, Path(folder)):
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
            different += sum(row[2:])
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
