"""Write tests/data/checkpoints: a tiny checkpoint with random weights of each architecture, and what it computes.

    python tests/making/make_checkpoints.py

Needs torch, transformers and sentencepiece. Each directory is what `save_pretrained` writes, with tokenizers trained on
data/varied.txt; expected.npz beside it has the ids of a text and transformers' logits after every second
token, computed in float32.
"""

import json
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

DATA = Path(__file__).parents[1] / "data"
TEXT = (DATA / "varied.txt").read_text(encoding="utf-8")
SAMPLE = "The quick brown fox, 12345 of them, isn't here; naïve 日本語 text follows the end."
N_TOKENS = 24  # three windows of the gemma3 below
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
CONTRACTION, LINES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{LINES}"
LLAMA3, QWEN2 = WORDS % r"\p{N}{1,3}", WORDS % r"\p{N}"
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CARD = "---\nlicense: apache-2.0\nlanguage:\n- en\n- fr\ntags: [tiny, random]\n---\n# A model for tests\n"


def main() -> None:
    """Write all checkpoints."""
    transformers.utils.logging.disable_progress_bar()
    for make in (llama, mistral, gemma3, qwen2, qwen3):
        folder = DATA / "checkpoints" / make.__name__
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        torch.manual_seed(0)
        make(folder)
        tidy(folder)
        record(folder)
        print(folder, sum(file.stat().st_size for file in folder.iterdir()))


# --- the models ---


def llama(folder: Path) -> None:
    """Like Llama 3: byte-level BPE, rope factors, a separate output layer, BF16 in two files."""
    tokenizer = byte_level(LLAMA3, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], ignore_merges=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    save_tokenizer(folder, tokenizer, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")
    config = transformers.LlamaConfig(
        **SIZES, num_hidden_layers=2, vocab_size=tokenizer.get_vocab_size() + 3, max_position_embeddings=256,
        rope_parameters=LLAMA3_ROPE, bos_token_id=0, eos_token_id=[1, 2], pad_token_id=None,
    )  # fmt: skip
    save(folder, transformers.LlamaForCausalLM(config), torch.bfloat16, max_shard_size="60KB")
    (folder / "README.md").write_text(CARD)


def mistral(folder: Path) -> None:
    """SentencePiece BPE in the format of the library `tokenizers`, without scores; F16."""
    tokenizer = fast(train_sentencepiece(unk_id=0, bos_id=1, eos_id=2))
    save_tokenizer(folder, tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    config = transformers.MistralConfig(
        **SIZES, num_hidden_layers=2, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}, sliding_window=None,
    )  # fmt: skip
    save(folder, transformers.MistralForCausalLM(config), torch.float16)


def gemma3(folder: Path) -> None:
    """SentencePiece's own file, layers with a window of 8 tokens and a global one with scaled rope; tied, BF16."""
    proto = train_sentencepiece(
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, add_dummy_prefix=False, pad_piece="<pad>", eos_piece="<eos>",
        bos_piece="<bos>", control_symbols=["<start_of_turn>", "<end_of_turn>"], user_defined_symbols=["▁▁", "<b>"],
    )  # fmt: skip
    (folder / "tokenizer.model").write_bytes(proto)
    n_vocab = sentencepiece.SentencePieceProcessor(model_proto=proto).vocab_size()
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    image = {str(n_vocab): {"content": "<image_soft_token>", "special": True}}
    write_json(folder / "tokenizer_config.json", {"add_bos_token": True, "added_tokens_decoder": image, **tokens})
    two_heads = SIZES | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    config = transformers.Gemma3TextConfig(
        **two_heads, num_hidden_layers=3, vocab_size=n_vocab + 4, max_position_embeddings=256, sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], query_pre_attn_scalar=64,
        rope_parameters=GEMMA3_ROPE,
    )  # fmt: skip
    save(folder, transformers.Gemma3ForCausalLM(config), torch.bfloat16)


def qwen2(folder: Path) -> None:
    """Biases, tied embeddings, F32; head size = embedding length / heads, which llama.cpp requires of qwen2."""
    tokenizer = qwen_tokenizer(folder)
    even = SIZES | {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.Qwen2Config(
        **even, num_hidden_layers=2, vocab_size=tokenizer.get_vocab_size() + 5, max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=True,
    )  # fmt: skip
    save(folder, transformers.Qwen2ForCausalLM(config), torch.float32)


def qwen3(folder: Path) -> None:
    """Normalized query and key heads, a separate output layer, BF16."""
    tokenizer = qwen_tokenizer(folder)
    config = transformers.Qwen3Config(
        **SIZES, num_hidden_layers=2, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=False,
    )  # fmt: skip
    save(folder, transformers.Qwen3ForCausalLM(config), torch.bfloat16)


def save(folder: Path, model: Any, dtype: torch.dtype, **options: Any) -> None:
    """Save random weights: logits have a standard deviation near one, biases and norms are not neutral."""
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith("norm.weight"):
                weights.add_(0.2 * torch.randn_like(weights))
            elif name.endswith(".bias"):
                weights.copy_(0.5 * torch.randn_like(weights))
            else:
                weights.copy_(weights.shape[1] ** -0.5 * torch.randn_like(weights))
    model.to(dtype).save_pretrained(folder, **options)


# --- the tokenizers ---


def byte_level(pattern: str, special: list[str], **options: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**options))
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def qwen_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = byte_level(QWEN2, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    save_tokenizer(folder, tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML)
    return tokenizer


def train_sentencepiece(**options: Any) -> bytes:
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()), model_writer=model, model_type="bpe", vocab_size=480,
        byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity",
        remove_extra_whitespaces=False, minloglevel=2, **options,
    )  # fmt: skip
    return model.getvalue()


def fast(proto: bytes) -> Tokenizer:
    """Return the same vocabulary with merges instead of scores."""
    pieces = sentencepiece.SentencePieceProcessor(model_proto=proto)
    ids = {pieces.id_to_piece(id): id for id in range(pieces.vocab_size())}
    scored = sorted(ids, key=lambda piece: -pieces.get_score(ids[piece]))
    halves = [(piece[:cut], piece[cut:]) for piece in scored for cut in range(1, len(piece))]
    merges = [pair for pair in halves if set(pair) <= ids.keys() and ids["".join(pair)] > 258]
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    space, bytes_ = decoders.Replace("▁", " "), decoders.ByteFallback()
    tokenizer.decoder = decoders.Sequence([space, bytes_, decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def save_tokenizer(folder: Path, tokenizer: Tokenizer, **options: Any) -> None:
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options).save_pretrained(folder)


# --- expected values ---


def tidy(folder: Path) -> None:
    """Remove what changes between library versions, and spaces, from the JSON files."""
    for file in folder.glob("*.json"):
        values = json.loads(file.read_text())
        values.pop("transformers_version", None)
        write_json(file, values)


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def record(folder: Path) -> None:
    """Write ids and logits at positions, float32 (N_TOKENS / 2, n_vocab)."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    ids = encoder(folder)(SAMPLE)[:N_TOKENS]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].numpy()
    positions = np.arange(1, N_TOKENS, 2)
    np.savez_compressed(folder / "expected.npz", ids=np.array(ids), positions=positions, logits=logits[positions])


def encoder(folder: Path) -> Callable[[str], list[int]]:
    if (folder / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return lambda text: tokenizer.encode(text).ids
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return lambda text: [pieces.bos_id(), *pieces.encode(text)]


if __name__ == "__main__":
    main()
