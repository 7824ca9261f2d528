"""Converted tokenizers produce the same ids as the library that the checkpoint was made with."""

import base64
import hashlib
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference_models
import sentencepiece
import tokenizers
from checkpoints import CHECKPOINTS, NAMES, as_f32, copy_checkpoint, edit_json
from synthetic_vocabularies import BYTE_TOKENS, keys_of, write
from tiny import Field as GgufArray
from tokenizer_texts import tricky

from localinfer import tokenizer
from localinfer.chat_template.builtin_templates import builtin_templates
from localinfer.conversion import open_checkpoint
from localinfer.conversion.checkpoint_folder import CheckpointFolder
from localinfer.conversion.vocabulary import known_tokenizers, read_vocabulary, sentencepiece_file
from localinfer.conversion.vocabulary.json_tokenizer import PRE_TOKENIZERS
from localinfer.conversion.vocabulary.template_programs import string_constants, with_texts
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer
from localinfer.tokenizer.pretokenizers import BY_NAME
from localinfer.tokenizer.segmenters.byte_level import BYTE_OF
from localinfer.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

CONVERTED = [name for name in NAMES if name != "gemma3"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    """Return a function that loads the tokenizer of a checkpoint's GGUF file."""
    folder = tmp_path_factory.mktemp("tokenizers")
    created = {name: open_gguf(as_f32(CHECKPOINTS / name, folder / f"{name}.gguf")) for name in NAMES}
    return lambda name: tokenizer.from_gguf(created[name])


@pytest.mark.parametrize("name", CONVERTED)
def test_ids_are_those_of_tokenizers(name: str, converted: Callable[[str], Tokenizer]) -> None:
    """Texts are in NFC: GGUF has no key for normalization."""
    ours, reference = converted(name), tokenizers.Tokenizer.from_file(str(CHECKPOINTS / name / "tokenizer.json"))
    for text in tricky():
        if unicodedata.is_normalized("NFC", text):
            assert ours.encode(text, parse_special=True) == reference.encode(text).ids, repr(text)


def test_ids_are_those_of_sentencepiece(converted: Callable[[str], Tokenizer]) -> None:
    """Texts have no "▁", which SentencePiece treats as a space if an added token contains one."""
    ours = converted("gemma3")
    reference = sentencepiece.SentencePieceProcessor(model_file=str(CHECKPOINTS / "gemma3" / "tokenizer.model"))
    for text in (text for text in tricky() if "▁" not in text):
        assert ours.encode(text, add_special=False) == reference.encode(text), repr(text)


# ------------------------------------------------------------------------------------- tokens and types


def tokens_of(folder: Path) -> dict[str, int]:
    """Return the type of each token by its text."""
    fields = open_checkpoint(folder).fields
    texts, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"].value
    assert not isinstance(types, int | float | bytes | None)
    return dict(zip(strings(texts.data), types.tolist(), strict=True))


def strings(data: bytes) -> list[str]:
    """Parse an array of strings in the file's encoding."""
    at, actual = 12, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        actual.append(data[at + 8 : at + 8 + size].decode())
        at += 8 + size
    return actual


def test_types_of_byte_level_tokens() -> None:
    types = tokens_of(CHECKPOINTS / "qwen2")
    assert types["<|im_start|>"] == types["<|endoftext|>"] == CONTROL
    assert types["<tool_call>"] == USER_DEFINED
    assert types["Ġ"] == types["a"] == NORMAL
    assert types["[PAD321]"] == types["[PAD325]"] == UNUSED  # the embedding has five extra rows
    assert len(types) == 326


@pytest.mark.parametrize(("name", "user_defined"), [("mistral", []), ("gemma3", ["  ", "<b>"])])
def test_types_of_sentencepiece_tokens(name: str, user_defined: list[str]) -> None:
    types = tokens_of(CHECKPOINTS / name)
    assert types["<unk>"] == UNKNOWN
    assert types["<0x00>"] == types["<0xFF>"] == BYTE
    assert types["▁a"] == NORMAL
    assert [text for text, kind in types.items() if kind == USER_DEFINED] == user_defined


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("file_name", ["added_tokens.json", "tokenizer_config.json", "tokenizer.json"])
def test_added_tokens(file_name: str, special: bool, tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    token = {"content": "<new>", "special": special}
    if file_name == "added_tokens.json":
        (folder / file_name).write_text('{"<new>": 320}')
    elif file_name == "tokenizer_config.json":
        edit_json(folder / file_name, lambda config: config.update(added_tokens_decoder={"320": token}))
    else:
        edit_json(folder / file_name, lambda config: config["added_tokens"].append(token | {"id": 320}))
    known = special and file_name != "added_tokens.json"
    assert tokens_of(folder)["<new>"] == (CONTROL if known else USER_DEFINED)


def test_added_token_beyond_the_embedding_is_dropped(tmp_path: Path) -> None:
    """Gemma's text-only models have such tokens for images."""
    folder = copy_checkpoint("llama", tmp_path)
    picture = {"id": 323, "content": "<image>", "special": True}
    edit_json(folder / "tokenizer.json", lambda file: file["added_tokens"].append(picture))
    edit_json(folder / "tokenizer.json", lambda file: file["model"]["vocab"].update({"<image>": 323}))
    assert tokens_of(folder) == tokens_of(CHECKPOINTS / "llama")


def write_tiktoken(folder: Path, lines: list[str], tokenizer_class: str = "TikTokenTokenizer") -> CheckpointFolder:
    """Write the vocabulary of the tiktoken library, and return the directory."""
    (folder / "tiktoken.model").write_text("\n".join(lines))
    added = {str(len(lines)): {"content": "[EOS]", "special": True}}
    config = {"tokenizer_class": tokenizer_class, "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return CheckpointFolder(folder)


def test_merges_of_a_vocabulary_of_tiktoken(tmp_path: Path) -> None:
    """A vocabulary of the library `tokenizers` whose ids are in the order of the merges, without its merges."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(BYTE_OF, key=BYTE_OF.__getitem__)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(tricky(), trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    texts = [b"".join(BYTE_OF[character] for character in token) for token in tokens]
    lines = [f"{base64.b64encode(text).decode()} {rank}" for rank, text in enumerate(texts)]
    found = read_vocabulary(write_tiktoken(tmp_path, lines), 700)
    assert (found.model, found.pre) == ("gpt2", "kimi-k2")
    assert [token.text for id, token in sorted(found.by_id.items()) if token.type == NORMAL] == tokens
    assert found.merges == [" ".join(pair) for pair in model["merges"]]
    assert (found.by_id[330].text, found.by_id[330].type) == ("[EOS]", CONTROL)
    assert (found.by_id[331].text, found.by_id[331].type) == ("<|reserved_token_331|>", CONTROL)
    assert max(found.by_id) == 330 + 255


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("YQ== 7", "line 2: is not a token and its rank"), ("!! 1", "line 2: is not a token"), (" 1", "line 2: is not"),
        ("YQ==", "line 2: is not a token"), ("YQ== 1", "line 2: has a token of another line"),
        (f"{base64.b64encode(bytes(1025)).decode()} 1", "line 2: is not a token"),
    ],
)  # fmt: skip
def test_invalid_vocabularies_of_tiktoken(line: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match=problem):
        read_vocabulary(write_tiktoken(tmp_path, ["YQ== 0", line]), 700)


def test_vocabularies_of_tiktoken_of_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"tokenizer_class: must be TikTokenTokenizer with tiktoken\.model"):
        read_vocabulary(write_tiktoken(tmp_path, ["YQ== 0"], "QWenTokenizer"), 700)


# -------------------------------------------------------------------------------------- special tokens


def keys(folder: Path) -> dict[str, Any]:
    """Return the metadata keys of tokenizer.ggml, without that prefix."""
    fields = open_checkpoint(folder).fields
    return {key.removeprefix("tokenizer.ggml."): field.value for key, field in fields.items()}


def test_special_tokens_by_text_or_id(tmp_path: Path) -> None:
    assert keys(CHECKPOINTS / "llama")["eos_token_id"] == 2  # <|eot_id|>, although config.json lists 1 first
    folder = copy_checkpoint("llama", tmp_path)
    edit_json(folder / "tokenizer_config.json", lambda config: config.pop("eos_token"))
    assert keys(folder)["eos_token_id"] == 1
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|eot_id|>"}}')
    assert keys(folder)["eos_token_id"] == 2


@pytest.mark.parametrize(("configured", "adds"), [(None, True), (True, True), (False, False)])
def test_add_bos_token(configured: bool | None, adds: bool, tmp_path: Path) -> None:
    """tokenizer_config.json takes precedence over the template in tokenizer.json."""
    folder = copy_checkpoint("llama", tmp_path)
    edit_json(folder / "tokenizer_config.json", lambda config: config.update(add_bos_token=configured))
    assert keys(folder)["add_bos_token"] is adds
    assert keys(folder)["add_eos_token"] is False


def test_no_bos_without_token() -> None:
    assert keys(CHECKPOINTS / "qwen2")["add_bos_token"] is False


def test_several_end_of_generation_tokens(tmp_path: Path) -> None:
    """GGUF has keys for two tokens besides EOS. If config.json has an end of document, that is EOS."""
    folder = copy_checkpoint("llama", tmp_path)
    actual = keys(folder)
    assert (actual["eos_token_id"], actual["eot_token_id"]) == (2, 1)  # of [1, 2]
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 5000, true, -1, 7, 9]}')
    assert keys(folder)["eot_token_id"] == 7
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert "eot_token_id" not in keys(folder)
    edit_json(folder / "config.json", lambda config: config.update(eod_token_id=9))
    assert keys(folder)["eos_token_id"] == 9


def test_end_of_generation_tokens_outside_of_lists(tmp_path: Path) -> None:
    """A list may be in config.json, and generation_config.json may have one token that the tokenizer does not name."""
    folder = copy_checkpoint("llama", tmp_path)
    (folder / "generation_config.json").unlink()
    edit_json(folder / "config.json", lambda config: config.update(eos_token_id=[2, 7, 9]))
    actual = keys(folder)
    assert (actual["eos_token_id"], actual["eot_token_id"], actual["eom_token_id"]) == (2, 7, 9)
    edit_json(folder / "config.json", lambda config: config.update(eos_token_id=1))
    assert "eot_token_id" not in keys(folder)  # may be the default of the class
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    assert keys(folder)["eot_token_id"] == 1
    (folder / "generation_config.json").write_text('{"eos_token_id": 1, "_from_model_config": true}')
    assert "eot_token_id" not in keys(folder)


def test_the_end_of_turn_of_an_architecture(tmp_path: Path) -> None:
    folder = reference_models.checkpoint("dots3note", tmp_path)
    assert "eot_token_id" not in keys(folder)
    added = {"id": 260, "content": "<|endofassistant|>", "special": True}
    edit_json(folder / "tokenizer.json", lambda file: file["added_tokens"].append(added))
    assert keys(folder)["eot_token_id"] == 260


def test_suppressed_tokens(tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    assert "suppress_tokens" not in keys(folder)
    generation = folder / "generation_config.json"
    edit_json(generation, lambda config: config.update(suppress_tokens=[7, 5, 5000, -1, True]))
    assert keys(folder)["suppress_tokens"].tolist() == [7, 5]
    edit_json(generation, lambda config: config.update(suppress_tokens=[5000]))
    assert "suppress_tokens" not in keys(folder)
    edit_json(generation, lambda config: config.update(suppress_tokens=7))
    with pytest.raises(LocalInferError, match=r"generation_config\.json: suppress_tokens: "):
        open_checkpoint(folder)


def test_template_with_several_tokens_before_a_text(tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    names = ["<|begin_of_text|>", "<|eot_id|>"]
    single: list[Any] = [{"SpecialToken": {"id": name, "type_id": 0}} for name in names]
    step = {"type": "TemplateProcessing", "single": [*single, {"Sequence": {"id": "A", "type_id": 0}}]}
    edit_json(folder / "tokenizer.json", lambda file: file.update(post_processor=step))
    with pytest.warns(UserWarning, match="begin_of_text.* TEXT: only the outer tokens are added"):
        assert keys(folder)["add_bos_token"] is True


def test_byte_tokens_that_are_added_tokens_stay_bytes(tmp_path: Path) -> None:
    folder = copy_checkpoint("mistral", tmp_path)
    (folder / "tokenizer.model").unlink(missing_ok=True)
    byte = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]["<0x41>"]
    added = {"id": byte, "content": "<0x41>", "special": True}
    edit_json(folder / "tokenizer.json", lambda file: file["added_tokens"].append(added))
    assert tokens_of(folder)["<0x41>"] == BYTE


def test_replacement_before_byte_level_bpe_is_refused(tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    step = {"type": "Replace", "pattern": {"String": "  "}, "content": " "}
    edit_json(folder / "tokenizer.json", lambda file: file.update(normalizer=step))
    with pytest.raises(UnsupportedError, match=r"normalizer\.type: Replace with byte-level BPE"):
        keys(folder)


@pytest.mark.parametrize("kind", ["RobertaProcessing", "BertProcessing"])
def test_processing_of_roberta_adds_tokens(kind: str, tmp_path: Path) -> None:
    """Byte-level BPE of RoBERTa has no template, but a step with the two tokens."""
    folder = copy_checkpoint("llama", tmp_path)
    step = {"type": kind, "cls": ["<|begin_of_text|>", 0], "sep": ["<|eot_id|>", 2], "trim_offsets": True}
    edit_json(folder / "tokenizer.json", lambda file: file.update(post_processor=step))
    actual = keys(folder)
    assert (actual["add_bos_token"], actual["add_eos_token"]) == (True, True)
    edit_json(folder / "tokenizer.json", lambda file: file["post_processor"].update(sep=[2]))
    with pytest.raises(LocalInferError, match=r"post_processor\.sep: must be a pair of text and id"):
        keys(folder)


def test_end_of_message_token(tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    edit_json(folder / "tokenizer.json", lambda file: file["added_tokens"].append({"id": 320, "content": "<|eom_id|>"}))
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 320, 1]}')
    actual = keys(folder)
    assert (actual["eos_token_id"], actual["eom_token_id"], actual["eot_token_id"]) == (2, 320, 1)


@pytest.mark.parametrize(("program", "name"), [
    ("encoding_dsv32.py", "deepseek3.2"), ("encoding_dsv4.py", "deepseek4"), ("encoding_other.py", ""),
])  # fmt: skip
def test_program_instead_of_a_chat_template(tmp_path: Path, program: str, name: str) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    (folder / "encoding").mkdir()
    (folder / "encoding" / program).write_text("def encode_messages(messages): ...")
    template = open_checkpoint(folder).fields.get("tokenizer.chat_template")
    assert (template.value if template else b"") == builtin_templates().get(name, "").encode()
    (folder / "chat_template.jinja").write_text("C")
    assert open_checkpoint(folder).fields["tokenizer.chat_template"].value == b"C"


def test_texts_of_a_program_are_in_the_template() -> None:
    """Texts whose placeholders are unknown or broken, other values and other names are not used."""
    template = builtin_templates()["deepseek4"]
    source = 'TOOLS_TEMPLATE: str = """Call {dsml_token}!\n{tool_schemas}"""\nREASONING_EFFORT_MAX = ("a" "b{")\n'
    found = with_texts(template, string_constants(source))
    assert "The functions below" not in found
    assert '{{ "Call " }}{{ \'｜DSML｜\' }}{{ "!\\n" }}{% for tool in tools %}' in found
    assert '{{ "ab{" }}{% endmacro %}' in found
    for value in ("'{x}'", "'{'", "1", "", "("):
        other = f"TOOLS_TEMPLATE = {value}\n"
        assert with_texts(template, string_constants(other)) == template


def test_chat_templates(tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    assert "tokenizer.chat_template" not in open_checkpoint(folder).fields
    several = [{"name": "default", "template": "A"}, {"name": "tools", "template": "B"}]
    edit_json(folder / "tokenizer_config.json", lambda config: config.update(chat_template=several))
    fields = open_checkpoint(folder).fields
    assert fields["tokenizer.chat_template"].value == b"A"
    assert fields["tokenizer.chat_template.tools"].value == b"B"
    assert strings(fields["tokenizer.chat_templates"].data) == ["tools"]
    (folder / "chat_template.jinja").write_text("C")
    assert open_checkpoint(folder).fields["tokenizer.chat_template"].value == b"C"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("D")
    fields = open_checkpoint(folder).fields
    assert fields["tokenizer.chat_template.rag"].value == b"D"
    assert strings(fields["tokenizer.chat_templates"].data) == ["rag"]


# ---------------------------------------------------------------------- pre-tokenizers


SMOLLM = [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": False}]
LLAMA3 = json.loads((CHECKPOINTS / "llama" / "tokenizer.json").read_text())["pre_tokenizer"]["pretokenizers"]
PRE_TOKENIZER_JSON = {
    "smollm": ({"type": "Sequence", "pretokenizers": SMOLLM}, False),
    "gpt-2": (SMOLLM[1], False),
    "llama-bpe": ({"type": "Sequence", "pretokenizers": LLAMA3}, True),
    "smaug-bpe": ({"type": "Sequence", "pretokenizers": LLAMA3}, False),
}


@pytest.mark.parametrize("pre", PRE_TOKENIZER_JSON)
def test_pre_tokenizers_are_recognized(pre: str, tmp_path: Path) -> None:
    steps, ignore_merges = PRE_TOKENIZER_JSON[pre]
    folder = copy_checkpoint("llama", tmp_path)

    def change(file: dict[str, Any]) -> None:
        file["pre_tokenizer"], file["model"]["ignore_merges"] = steps, ignore_merges

    edit_json(folder / "tokenizer.json", change)
    assert keys(folder)["pre"] == pre.encode()


def test_known_tokenizers_have_the_name_of_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizers are recognized by a hash of their output for a text; the test adds the hash of a tiny tokenizer."""
    folder = copy_checkpoint("qwen2", tmp_path)
    ids = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(known_tokenizers.TEXT).ids
    sha = hashlib.sha256(str(ids).encode()).hexdigest()
    monkeypatch.setitem(known_tokenizers.BY_HASH, sha[:16], "deepseek-r1-qwen")
    assert keys(folder)["pre"] == b"deepseek-r1-qwen"
    edit_json(folder / "tokenizer.json", lambda file: file["model"]["merges"].pop(0))
    assert keys(folder)["pre"] == b"qwen2"


@pytest.mark.parametrize("file", [{}, {"model": {}}, {"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}])
def test_unusable_tokenizer_is_unknown(file: dict[str, Any]) -> None:
    assert known_tokenizers.identify(file) is None


def test_each_hash_has_one_name() -> None:
    hashes = [each for hashes in known_tokenizers.KNOWN.values() for each in hashes.split()]
    assert len(set(hashes)) == len(hashes)
    assert {len(each) for each in hashes} == {known_tokenizers.DIGITS}


def test_every_name_is_supported() -> None:
    assert {name for names in PRE_TOKENIZERS.values() for name in names} <= BY_NAME.keys()


@pytest.mark.parametrize(
    "steps",
    [
        None,
        {"type": "Whitespace"},
        {"type": "ByteLevel", "add_prefix_space": True},
        {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "a+"}}, SMOLLM[1]]},
        {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"String": " "}}, LLAMA3[1]]},
        {"type": "Sequence", "pretokenizers": [{"type": "Punctuation"}, *LLAMA3]},
    ],
)
def test_unknown_pre_tokenizer(steps: dict[str, Any] | None, tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    edit_json(folder / "tokenizer.json", lambda file: file.update(pre_tokenizer=steps))
    with pytest.raises(UnsupportedError, match=r"tokenizer\.json: pre_tokenizer"):
        open_checkpoint(folder)


# ------------------------------------------------------------------------------------ tokenizer.model


def test_space_prefix_from_the_model_file(tmp_path: Path) -> None:
    assert keys(CHECKPOINTS / "gemma3")["add_space_prefix"] is False
    assert keys(CHECKPOINTS / "mistral")["add_space_prefix"] is True


def test_space_prefix_from_tokenizer_config(tmp_path: Path) -> None:
    folder = copy_checkpoint("gemma3", tmp_path)
    assert keys(folder)["add_space_prefix"] is False
    edit_json(folder / "tokenizer_config.json", lambda config: config.update(add_prefix_space=True))
    assert keys(folder)["add_space_prefix"] is True


def test_truncated_file() -> None:
    """The type of the model is near the end of the file."""
    path = CHECKPOINTS / "gemma3" / "tokenizer.model"
    content = path.read_bytes()
    assert len(sentencepiece_file.read(path, content).by_id) == 480
    for size in range(1, len(content) - 200, 47):
        with pytest.raises(LocalInferError):
            sentencepiece_file.read(path, content[:size])


def test_unsupported_model_type() -> None:
    path = CHECKPOINTS / "gemma3" / "tokenizer.model"
    kind_and_size = b"\x18%c\x20\xe0\x03"  # the fields 3, model_type, and 4, vocab_size
    of_words = path.read_bytes().replace(kind_and_size % 2, kind_and_size % 3)
    with pytest.raises(UnsupportedError, match="model_type: 3 is not supported"):
        sentencepiece_file.read(path, of_words)


@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
def test_unigram_models_of_sentencepiece(rule: str, tmp_path: Path) -> None:
    """T5's checkpoints have such a model, with a normalization map."""
    folder = reference_models.checkpoint("t5encoder", tmp_path)
    (folder / "tokenizer.json").unlink()
    edit_json(folder / "config.json", lambda config: config.update(eos_token_id=1))
    text = "to be or not to be, that is the question: Ⅻ ﬁne ｗｉｄｅ naïve\u0301 日本語"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text] * 9), vocab_size=60, hard_vocab_limit=False, normalization_rule_name=rule,
        model_prefix=str(folder / "spiece"), pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    ours = tokenizer.from_gguf(open_gguf(as_f32(folder, tmp_path / "t5.gguf")))
    reference = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    for text in (*tricky(), "not to  be: ⅻ ﬁｗ\u3000ide", "the question"):
        assert ours.encode(text) == [*reference.encode(text), 1], repr(text)


def test_tokenizer_model_of_another_library(tmp_path: Path) -> None:
    folder = copy_checkpoint("llama", tmp_path)
    (folder / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")
    assert keys(folder)["model"] == b"gpt2"


# ------------------------------------------------------------------------------------ merges of characters


def test_gemma4_follows_merges_of_characters(tmp_path: Path) -> None:
    """Gemma 3 uses scores instead. tokenizer.json looks the same for both, so the architecture decides."""
    letters = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in "é".encode()), *"▁helo wrd\n"]
    pairs = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "w")]
    vocab = {text: id for id, text in enumerate([*letters, *("".join(pair) for pair in pairs)])}
    model = tokenizers.models.BPE(vocab, pairs, unk_token="<unk>", byte_fallback=True)
    reference = tokenizers.Tokenizer(model)
    reference.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    folder = reference_models.checkpoint("gemma4", tmp_path)
    reference.save(str(folder / "tokenizer.json"))
    ours = tokenizer.from_gguf(open_gguf(as_f32(folder, tmp_path / "gemma4.gguf")))
    assert keys(folder)["model"] == b"gemma4"
    for text in ("hello world", "hello  w", "o\nhell é"):
        assert ours.encode(text, add_special=False) == reference.encode(text).ids, repr(text)


# ------------------------------------------------------------------------------------- RWKV's World


def world(folder: Path, *lines: str) -> Path:
    """Write a checkpoint with RWKV's vocabulary file, with these first lines, and return its path."""
    path = reference_models.checkpoint("rwkv7", folder)
    (path / "tokenizer.json").unlink()
    (path / "rwkv_vocab_v20230424.txt").write_text("\n".join(lines), encoding="utf-8")
    return path


def test_rwkv_tokens_are_python_literals(tmp_path: Path) -> None:
    lines = ["1 '\\x00' 1", "2 '\\n\\n' 2", "3 ' a' 2", "4 b'\\xe6\\x97' 2", "5 '\"' 1", "6 'ä' 2", '7 "\'" 1']
    fields = open_checkpoint(world(tmp_path, *lines)).fields
    assert fields["tokenizer.ggml.model"].value == b"rwkv"
    ours = tokenizer.from_gguf(open_gguf(as_f32(tmp_path / "rwkv7", tmp_path / "rwkv7.gguf")))
    assert ours.encode("\n\n a\"ä'", add_special=False) == [2, 3, 5, 6, 7]
    assert ours.decode([4]) == "\ufffd"
    assert fields["tokenizer.ggml.eos_token_id"].value == 0
    assert fields["tokenizer.ggml.eot_token_id"].value == 2


@pytest.mark.parametrize("line", ["2 'a' 1", "1 'a' 2", "1 a 1", "1 1 1", "1", "", "1 '" + "a" * 5000 + "' 5000"])
def test_invalid_rwkv_lines(line: str, tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match="line 1: is not a token"):
        open_checkpoint(world(tmp_path, line, "2 'b' 1"))


# ------------------------------------------------------------------------------------- PLaMo's lines of JSON


def plamo(folder: Path, *lines: str) -> Path:
    """Write a checkpoint with PLaMo's vocabulary file, with these lines, and return its path."""
    path = reference_models.checkpoint("plamo3", folder)
    (path / "tokenizer.json").unlink()
    (path / "tokenizer.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (path / "tokenizer_config.json").write_text('{"bos_token": "<|plamo:bos|>", "eos_token": "<|plamo:eos|>"}')
    return path


def test_plamo_tokens_are_lines_of_json(tmp_path: Path) -> None:
    special, pieces = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:op|>"], {"abra": -3.0, "cad": -1.5}
    rows = [
        *([text, 0.0, "UNKNOWN" if text == special[0] else "NORMAL", 0] for text in special),
        *([text, 0.0, "BYTE"] for text in BYTE_TOKENS), *([text, score, "NORMAL"] for text, score in pieces.items()),
    ]  # fmt: skip
    path = plamo(tmp_path, *(json.dumps(row) for row in rows))
    fields = open_checkpoint(path).fields
    assert fields["tokenizer.ggml.model"].value == b"plamo2"
    assert [fields[f"tokenizer.ggml.{name}_token_id"].value for name in ("bos", "eos", "eot")] == [1, 2, 3]
    assert fields["tokenizer.ggml.token_type"].value.tolist()[:5] == [UNKNOWN, CONTROL, CONTROL, CONTROL, BYTE]
    ours = tokenizer.from_gguf(open_gguf(as_f32(path, tmp_path / "plamo3.gguf")))
    synthetic = keys_of("plamo2", special, [*BYTE_TOKENS, *pieces], pre="default")
    synthetic["scores"] = GgufArray("ARRAY", [row[1] for row in rows], "FLOAT32")
    synthetic["token_type"].value[0] = UNKNOWN
    reference = tokenizer.from_gguf(open_gguf(write(tmp_path / "synthetic.gguf", synthetic)))
    for text in ("abracadabra", "cad bra", "é"):
        assert ours.encode(text, add_special=False) == reference.encode(text, add_special=False)
    assert ours.encode("abracad", add_special=False) == [260, 261]


@pytest.mark.parametrize(
    "line", ["[]", "{", '["a", 1, "LETTER"]', '["a", "1", "NORMAL"]', '[1, 1, "NORMAL"]', "1" * 70_000]
)
def test_invalid_plamo_lines(line: str, tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match=r"tokenizer\.jsonl: line 2: is not a token"):
        open_checkpoint(plamo(tmp_path, '["a", 0, "NORMAL"]', line))
