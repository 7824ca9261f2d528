"""Write tests/data/reranker: a tiny XLM-R reranker with a unigram vocabulary, and its scores.

    python tests/making/make_reranker.py

Needs torch, transformers and sentencepiece, which trains the vocabulary on data/varied.txt. The checkpoint has
random weights and a tokenizer.json like published models (for example BGE's rerankers). expected.json has
sentencepiece's ids of some texts, and transformers' scores of documents, computed in float32.
"""

import json
import shutil
import tempfile
from io import BytesIO
from pathlib import Path

import sentencepiece
import torch
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

DATA = Path(__file__).parents[1] / "data"
FOLDER = DATA / "reranker"
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
RULES = {"ﬁ": "fi", "½": "1/2", "Ａ": "A", "e\u0301": "é", "\u00a0": " ", "\u200b": ""}  # a few of NFKC's rules
TEXTS = [
    "", " ", "Hello world", "  two   spaces ", "ﬁne ½ Ａ cafe\u0301", "naïve 日本語 🙂", "a\u00a0b\u200bc",
    "The quick brown fox, 12345 of them, isn't here.", "</s> ▁a",
]  # fmt: skip
QUERIES = ["What is a panda?", "日本語", ""]
DOCUMENTS = ["It is a bear.", "It is a fish, and not a small one.", "What is a panda?", "naïve 日本語 ½ 🙂", "", " "]


def main() -> None:
    """Write the reranker."""
    transformers.utils.logging.disable_progress_bar()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    torch.manual_seed(0)
    trained = train()
    tokenizer = save_tokenizer(trained)
    save_model(len(tokenizer))
    for file in FOLDER.glob("*.json"):
        values = json.loads(file.read_text(encoding="utf-8"))
        values.pop("transformers_version", None)
        write_json(file, values)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=trained)
    write_json(
        FOLDER / "expected.json",
        {
            "ids": {text: [shifted(id) for id in pieces.encode(text)] for text in TEXTS},
            "documents": DOCUMENTS,
            "scores": {query: scores(tokenizer, query) for query in QUERIES},
        },
    )
    print({file.name: file.stat().st_size for file in FOLDER.iterdir()})


def train() -> bytes:
    """Return a unigram model with a few normalization rules: NFKC's take 200 kB."""
    model = BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        for before, after in RULES.items():
            rules.write("\t".join(" ".join(f"{ord(each):X}" for each in text) for text in (before, after)) + "\n")
        rules.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter((DATA / "varied.txt").read_text(encoding="utf-8").splitlines()), model_writer=model,
            model_type="unigram", vocab_size=400, character_coverage=0.98, normalization_rule_tsv=rules.name,
            minloglevel=2,
        )  # fmt: skip
    return model.getvalue()


def shifted(id: int) -> int:
    """sentencepiece has <unk>, <s> and </s> before its pieces, XLM-R has one special token more."""
    return id + 1 if id > 2 else SPECIAL.index("<unk>")


def save_tokenizer(trained: bytes) -> transformers.PreTrainedTokenizerFast:
    proto = sentencepiece_model_pb2.ModelProto.FromString(trained)
    pieces = [(piece.piece, piece.score) for piece in proto.pieces[3:]]
    vocabulary = [*((token, 0.0) for token in SPECIAL), *pieces, ("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=SPECIAL.index("<unk>"), byte_fallback=False))
    characters = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    tokenizer.normalizer = normalizers.Sequence([characters, normalizers.Replace(Regex(" {2,}"), " ")])
    steps = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", prepend_scheme="always")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens([*SPECIAL, "<mask>"])
    names = dict(zip(("bos", "pad", "eos", "unk", "mask"), [*SPECIAL, "<mask>"], strict=True))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="<s>", sep_token="</s>", model_max_length=64,
        **{f"{name}_token": text for name, text in names.items()},
    )  # fmt: skip
    fast.save_pretrained(FOLDER)
    return fast


def save_model(n_vocab: int) -> None:
    """Save random weights: scores have a standard deviation near one, biases and norms are not neutral."""
    config = transformers.XLMRobertaConfig(
        vocab_size=n_vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=66, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1, bos_token_id=0,
        eos_token_id=2, num_labels=1,
    )  # fmt: skip
    model = transformers.XLMRobertaForSequenceClassification(config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim == 1:
                weights.add_(0.2 * torch.randn_like(weights))
            else:
                weights.copy_(weights.shape[1] ** -0.5 * torch.randn_like(weights) * (4 if "classifier" in name else 1))
    model.to(torch.float16).save_pretrained(FOLDER)


def scores(tokenizer: transformers.PreTrainedTokenizerFast, query: str) -> list[float]:
    """Return the scores of all documents."""
    model = transformers.XLMRobertaForSequenceClassification.from_pretrained(FOLDER, dtype=torch.float32)
    pairs = tokenizer([query] * len(DOCUMENTS), DOCUMENTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(pairs["input_ids"], attention_mask=pairs["attention_mask"]).logits[:, 0].tolist()


def write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
