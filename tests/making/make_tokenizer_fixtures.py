"""Write tests/data/tokenizer_*.json.xz: llama.cpp's ids for the texts of tokenizer_texts.py.

    python tests/making/make_tokenizer_fixtures.py tokenizer_smollm2 path/to/smollm2.gguf
    python tests/making/make_tokenizer_fixtures.py tokenizer_gemma3 path/to/gemma3-270m.gguf
    python tests/making/make_tokenizer_fixtures.py tokenizer_made   # every tokenizer model and pre-tokenizer

Needs llama-cpp-python. For a real model each text has its ids as plain text, and with BOS added and special tokens
parsed; `pieces` are digests of the bytes of all tokens, with control tokens hidden and shown. Synthetic vocabularies
have only digests: if one differs, tests/benchmarks/checks/vocabularies.py shows the texts.
"""

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import recorded  # noqa: E402
from llama_cpp_vocabulary import Vocabulary  # noqa: E402
from synthetic_vocabularies import VOCABULARIES, digest_of_ids, every_pair, mixed_letters, write  # noqa: E402
from tokenizer_texts import tricky  # noqa: E402

from localinfer.tokenizer.pretokenizers import BY_NAME  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("model", type=Path, nargs="?")
    arguments = parser.parse_args()
    recorded.write(arguments.name, of_a_model(arguments.model) if arguments.model else of_made_ones())


def of_a_model(path: Path) -> dict[str, Any]:
    vocabulary = Vocabulary(path)
    return {
        "llama_cpp_python": version("llama-cpp-python"),
        "eog": list(vocabulary.eog()),
        "pieces": {"hidden": digest(vocabulary, special=False), "shown": digest(vocabulary, special=True)},
        "texts": [ids_of(vocabulary, text) for text in tricky()],
    }


def of_made_ones() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.gguf"

        def digest_of(keys: dict[str, Any], texts: Iterable[str]) -> str:
            return digest_of_ids(Vocabulary(write(path, keys)).encode, texts)

        return {
            "llama_cpp_python": version("llama-cpp-python"),
            "kinds": {name: digest_of(keys(), tricky()) for name, keys in VOCABULARIES.items()},
            "pre": {name: digest_of(every_pair() | {"pre": name}, mixed_letters(300)) for name in BY_NAME},
        }


def ids_of(vocabulary: Vocabulary, text: str) -> dict[str, Any]:
    plain = vocabulary.encode(text, add_special=False, parse_special=False)
    parsed = vocabulary.encode(text, add_special=True, parse_special=True)
    return {"text": text, "plain": plain, "parsed": parsed}


def digest(vocabulary: Vocabulary, *, special: bool) -> str:
    """Return a digest of all pieces, each preceded by its length as decimal text."""
    pieces = (vocabulary.piece(id, special=special) for id in range(vocabulary.n_vocab))
    return hashlib.sha256(b"".join(b"%d %b" % (len(piece), piece) for piece in pieces)).hexdigest()


if __name__ == "__main__":
    main()
