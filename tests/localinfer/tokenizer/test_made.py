"""Every kind of vocabulary, and every way to cut words: the ids that llama.cpp has for files made by rule.

Where a digest differs, `python tests/benchmarks/checks/vocabularies.py --made --names` shows the texts.
"""

import contextlib
import json
import random
import re
from pathlib import Path

import pytest
from made_vocabularies import MADE, digest_of_ids, every_pair, mixed_letters, write
from places import DATA
from tokenizer_texts import tricky

from localinfer.errors import LocalInferError
from localinfer.files.gguf import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf
from localinfer.tokenizer.pretokenizers import NAMED

RECORDED = json.loads((DATA / "tokenizer_made.json").read_text())


@pytest.mark.parametrize("name", MADE)
def test_ids_of_every_kind(tmp_path: Path, name: str) -> None:
    tokenizer = from_gguf(open_gguf(write(tmp_path / "made.gguf", MADE[name]())))
    assert digest_of_ids(tokenizer.encode, tricky()) == RECORDED["kinds"][name]


@pytest.mark.parametrize("name", NAMED)
def test_words_of_every_pre_tokenizer(tmp_path: Path, name: str) -> None:
    tokenizer = from_gguf(open_gguf(write(tmp_path / "made.gguf", every_pair() | {"pre": name})))
    assert digest_of_ids(tokenizer.encode, mixed_letters(300)) == RECORDED["pre"][name]


@pytest.fixture(scope="module", params=MADE)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("made") / "made.gguf"
    return from_gguf(open_gguf(write(path, MADE[request.param]())))


@pytest.mark.parametrize("unit", ["a", " ", "字", "<dna>ACGT"])
def test_long_runs(made: Tokenizer, unit: str) -> None:
    """Quadratic time would be seen here as a test that takes minutes, recursion as one that fails."""
    text = unit * (30_000 // len(unit))
    assert len(made.encode(text, add_special=False)) <= len(text.encode())


def test_what_is_not_parsed_is_text(made: Tokenizer) -> None:
    """But for what is simply unknown."""
    special = {
        id: made.token_bytes(id, special=True).decode() for id in range(made.n_vocab) if not made.token_bytes(id)
    }
    for id, text in special.items():
        if text:
            found = made.encode(f"a{text} {text}", add_special=False)
            assert not any(special.get(each) and "unk" not in special[each].lower() for each in found)
            assert id in made.encode(f"a{text} b", parse_special=True)


@pytest.mark.filterwarnings("ignore:.*tokenizer.ggml")
@pytest.mark.parametrize("name", MADE)
def test_any_bytes(tmp_path: Path, name: str) -> None:
    """Bytes of the file changed at random: one error, or a tokenizer that works."""
    generator = random.Random(name)
    path = write(tmp_path / "made.gguf", MADE[name]())
    content = path.read_bytes()
    keys = [key.start() for key in re.finditer(rb"tokenizer\.ggml\.", content)]
    for _ in range(20):
        changed = bytearray(content)
        for start in (generator.choice(keys), generator.randrange(keys[0], len(content))):
            place = min(start + generator.randrange(60), len(content) - 1)
            changed[place] = generator.choice((0, 0x20, 0xFF, generator.randrange(256)))
        path.write_bytes(changed)
        with contextlib.suppress(LocalInferError):
            tokenizer = from_gguf(open_gguf(path))
            ids = tokenizer.encode("Hello, <|im_end|> 日本\0 \n\n<dna>ACG ＡＢ", parse_special=True)
            assert all(0 <= id < tokenizer.n_vocab for id in ids)
            tokenizer.decode(ids)
