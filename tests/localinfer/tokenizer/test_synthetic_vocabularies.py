"""Synthetic vocabularies of every tokenizer model and pre-tokenizer: the ids equal llama.cpp's.

If a digest differs, `python tests/benchmarks/checks/vocabularies.py --made --names` shows the texts.
"""

import contextlib
import random
import re
from pathlib import Path

import pytest
import recorded
from synthetic_vocabularies import VOCABULARIES, digest_of_ids, every_pair, mixed_letters, write
from tokenizer_texts import tricky

from localinfer.errors import LocalInferError
from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf
from localinfer.tokenizer.pretokenizers import BY_NAME

RECORDED = recorded.read("tokenizer_made")


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_of_every_tokenizer_model(tmp_path: Path, name: str) -> None:
    tokenizer = from_gguf(open_gguf(write(tmp_path / "made.gguf", VOCABULARIES[name]())))
    assert digest_of_ids(tokenizer.encode, tricky()) == RECORDED["kinds"][name]


@pytest.mark.parametrize("name", BY_NAME)
def test_words_of_every_pre_tokenizer(tmp_path: Path, name: str) -> None:
    tokenizer = from_gguf(open_gguf(write(tmp_path / "made.gguf", every_pair() | {"pre": name})))
    assert digest_of_ids(tokenizer.encode, mixed_letters(300)) == RECORDED["pre"][name]


@pytest.fixture(scope="module", params=VOCABULARIES)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("made") / "made.gguf"
    return from_gguf(open_gguf(write(path, VOCABULARIES[request.param]())))


@pytest.mark.parametrize("unit", ["a", " ", "字", "<dna>ACGT"])
def test_long_runs(tokenizer: Tokenizer, unit: str) -> None:
    """With quadratic time the test would take minutes; with recursion it would fail."""
    text = unit * (30_000 // len(unit))
    assert len(tokenizer.encode(text, add_special=False)) <= len(text.encode())


def test_special_tokens_stay_text_unless_parsed(tokenizer: Tokenizer) -> None:
    """The unknown token is the exception."""
    special = {
        id: tokenizer.token_bytes(id, special=True).decode()
        for id in range(tokenizer.n_vocab)
        if not tokenizer.token_bytes(id)
    }
    for id, text in special.items():
        if text:
            actual = tokenizer.encode(f"a{text} {text}", add_special=False)
            assert not any(special.get(each) and "unk" not in special[each].lower() for each in actual)
            assert id in tokenizer.encode(f"a{text} b", parse_special=True)


@pytest.mark.filterwarnings("ignore:.*tokenizer.ggml")
@pytest.mark.parametrize("name", VOCABULARIES)
def test_random_bytes(tmp_path: Path, name: str) -> None:
    """Random changes of the file's bytes result in a one-line error or a working tokenizer."""
    generator = random.Random(name)
    path = write(tmp_path / "made.gguf", VOCABULARIES[name]())
    content = path.read_bytes()
    keys = [key.start() for key in re.finditer(rb"tokenizer\.ggml\.", content)]
    for _ in range(20):
        changed = bytearray(content)
        for start in (generator.choice(keys), generator.randrange(keys[0], len(content))):
            offset = min(start + generator.randrange(60), len(content) - 1)
            changed[offset] = generator.choice((0, 0x20, 0xFF, generator.randrange(256)))
        path.write_bytes(changed)
        with contextlib.suppress(LocalInferError):
            tokenizer = from_gguf(open_gguf(path))
            ids = tokenizer.encode("Hello, <|im_end|> 日本\0 \n\n<dna>ACG ＡＢ", parse_special=True)
            assert all(0 <= id < tokenizer.n_vocab for id in ids)
            tokenizer.decode(ids)
