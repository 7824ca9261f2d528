"""Write tests/data/tokenizer_*.json: llama.cpp's ids for the texts of tokenizer_texts.py.

    python tests/make_tokenizer_fixtures.py tokenizer_smollm2 path/to/smollm2.gguf
    python tests/make_tokenizer_fixtures.py tokenizer_gemma3 path/to/gemma3-270m.gguf

Needs llama-cpp-python, and nothing of localinfer. Each text has its ids as plain text, and with the first token
added and special tokens parsed. `pieces` are digests of what all tokens stand for, hidden and shown.
"""

import argparse
import hashlib
import json
from importlib.metadata import version
from pathlib import Path

from llama_cpp_vocabulary import Vocabulary
from tokenizer_texts import tricky

DATA = Path(__file__).with_name("data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("model", type=Path)
    arguments = parser.parse_args()
    vocabulary = Vocabulary(arguments.model)
    fixture = {
        "llama_cpp_python": version("llama-cpp-python"),
        "eog": list(vocabulary.eog()),
        "pieces": {"hidden": digest(vocabulary, special=False), "shown": digest(vocabulary, special=True)},
    }
    lines = [json.dumps(fixture)[:-1] + ', "texts": [', ",\n".join(line(vocabulary, text) for text in tricky())]
    (DATA / f"{arguments.name}.json").write_text("\n".join([*lines, "]}\n"]), encoding="ascii")


def line(vocabulary: Vocabulary, text: str) -> str:
    plain = vocabulary.encode(text, add_special=False, parse_special=False)
    parsed = vocabulary.encode(text, add_special=True, parse_special=True)
    return json.dumps({"text": text, "plain": plain, "parsed": parsed}, separators=(",", ":"))


def digest(vocabulary: Vocabulary, *, special: bool) -> str:
    """Of all pieces, each behind its length as decimal text."""
    pieces = (vocabulary.piece(id, special=special) for id in range(vocabulary.n_vocab))
    return hashlib.sha256(b"".join(b"%d %b" % (len(piece), piece) for piece in pieces)).hexdigest()


if __name__ == "__main__":
    main()
