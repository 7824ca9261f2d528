"""Saves the models of `converted_cases.py`, computes what transformers computes, and runs llama.cpp's converter.

    python tests/benchmarks/checks/make_converted.py LLAMA_CPP FOLDER NAME...

A process of its own, as the converter brings another version of the package gguf. Each folder gets model.gguf,
ids.npy or pairs.json, expected.npy, and result.json, whose `problem` says why there is no file.
"""

import json
import runpy
import sys
import traceback
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from converted_cases import CASES, N_VOCAB, Case
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

N_TOKENS = 90
PAIRS = [
    ["What is a panda?", "It is a bear."],
    ["What is a panda?", "It is a fish, and not a small one."],
    ["how many of them", "Attention is all you need: 3.14159 of it, for ever and ever!?"],
]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]


def main() -> None:
    llama_cpp, folder, names = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute(), sys.argv[3:]
    sys.path.insert(0, str(llama_cpp))
    sys.path.insert(0, str(llama_cpp / "gguf-py"))
    transformers.utils.logging.disable_progress_bar()
    for name in names:
        path = folder / name
        path.mkdir(parents=True, exist_ok=True)
        try:
            make(CASES[name], path, llama_cpp)
            result = {}
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            result = {"problem": f"{type(error).__name__}: {error}"[:300]}
        (path / "result.json").write_text(json.dumps(result), encoding="utf-8")


def make(case: Case, folder: Path, llama_cpp: Path) -> None:
    """Save the checkpoint, the expected output and the converted file of a case."""
    checkpoint = folder / "tiny"  # llama.cpp's converter derives settings from names
    torch.manual_seed(0)
    tokenizer = save_tokenizer(case.vocabulary, checkpoint)
    model = make_model(case)
    randomize(model, case.norm)
    model.save_pretrained(checkpoint)
    edit_config(checkpoint / "config.json", case.written)
    np.save(folder / "expected.npy", expected_output(case, model, tokenizer, folder))
    convert(case, checkpoint, folder / "model.gguf", llama_cpp)


# --- models ---


def make_model(case: Case) -> Any:
    config = getattr(transformers, f"{case.config}Config")(**case.values)
    config._attn_implementation = "eager"
    makers = {
        "logits": transformers.AutoModelForCausalLM,
        "states": transformers.AutoModel,
        "scores": transformers.AutoModelForSequenceClassification,
    }
    return makers[case.kind].from_config(config, attn_implementation="eager").to(torch.float32).eval()


def randomize(model: Any, norm: float) -> None:
    """Set weights so that all parts of a model matter: no bias is zero, and no norm is neutral."""
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith(("A_log", "dt_bias", ".D", "inv_freq")):
                continue
            if weights.ndim > 1:
                gain = 1.0 if "embed" in name or "lm_head" in name else 1.5
                weights.copy_(torch.randn_like(weights) * gain * weights.shape[-1] ** -0.5)
            elif name.endswith("bias") or "bias" in name.rsplit(".", 1)[-1]:
                weights.copy_(0.2 * torch.randn_like(weights))
            elif name.endswith("weight") or "norm" in name:
                weights.copy_(norm + 0.2 * torch.randn_like(weights))
            else:
                weights.add_(0.2 * torch.randn_like(weights))
        for name, values in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                values.copy_(0.1 * torch.rand_like(values))


def edit_config(path: Path, changes: dict[str, Any]) -> None:
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    values = {key: value for key, value in values.items() if key not in changes or value is not None}
    path.write_text(json.dumps(values), encoding="utf-8")


def expected_output(case: Case, model: Any, tokenizer: Any, folder: Path) -> Any:
    """Return what transformers computes, and save its input."""
    if case.kind == "scores":
        (folder / "pairs.json").write_text(json.dumps(PAIRS), encoding="utf-8")
        with torch.no_grad():
            inputs = [tokenizer(*pair, return_tensors="pt") for pair in PAIRS]
            return np.array([model(**each).logits[0, 0].item() for each in inputs], np.float32)
    ids = np.random.default_rng(0).integers(len(SPECIAL), N_VOCAB, N_TOKENS).astype(np.int32)
    np.save(folder / "ids.npy", ids)
    with torch.no_grad():
        output = model(torch.from_numpy(ids.astype(np.int64))[None])
    return (output.logits if case.kind == "logits" else output.last_hidden_state)[0].numpy()


# --- tokenizers ---


def save_tokenizer(kind: str, folder: Path) -> Any:
    """Save a vocabulary of N_VOCAB tokens, and return the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "sentencepiece":
        return save_sentencepiece(folder)
    fast = word_piece() if kind == "wordpiece" else byte_level(kind)
    fast.add_special_tokens(special_tokens(kind))
    names = dict(zip(("pad", "bos", "eos", "unk", "mask"), SPECIAL, strict=True))
    if kind == "wordpiece":
        names = {key: value for key, value in names.items() if key not in ("bos", "eos")}
    more = {} if kind == "bpe" else {"cls_token": "<s>", "sep_token": "</s>"}
    saved = transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast, **{f"{name}_token": text for name, text in names.items()}, **more
    )
    if kind in ("modern", "roberta"):
        saved.model_input_names = ["input_ids", "attention_mask"]
    saved.save_pretrained(folder)
    return saved


def special_tokens(kind: str) -> list[str]:
    """Return the first tokens: RoBERTa numbers positions by the padding token, which must be its own."""
    return ["<s>", "<pad>", *SPECIAL[2:]] if kind == "roberta" else SPECIAL


def byte_level(kind: str) -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(a, b) for a in "Ġetaoin" for b in "etaoinshr"][: N_VOCAB - len(letters) - len(SPECIAL)]
    tokens = [*special_tokens(kind), *letters, *(a + b for a, b in merges)]
    tokens += [f"unused{number}" for number in range(N_VOCAB - len(tokens))]
    fast = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "roberta":
        fast.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    if kind == "modern":
        fast.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return fast


def word_piece() -> Any:
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    tokens = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    tokens += [a + b for a in "etaoinshr" for b in "etaoinshrdlcum"][: N_VOCAB - len(tokens)]
    tokens += [f"unused{number}" for number in range(N_VOCAB - len(tokens))]
    fast = Tokenizer(models.WordPiece({token: id for id, token in enumerate(tokens)}, unk_token="<unk>"))
    fast.normalizer = normalizers.BertNormalizer()
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return fast


def save_sentencepiece(folder: Path) -> None:
    import sentencepiece

    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the rain in spain stays mainly in the plain", "an ideal day in the land"]),
        model_writer=model, model_type="bpe", vocab_size=N_VOCAB, character_coverage=1.0, byte_fallback=True,
        minloglevel=2, hard_vocab_limit=False, pad_id=0, bos_id=1, eos_id=2, unk_id=3,
    )  # fmt: skip
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


# --- conversion ---


def convert(case: Case, checkpoint: Path, file: Path, llama_cpp: Path) -> None:
    """Run llama.cpp's converter. It knows published vocabularies by a hash, and takes ours for GPT-2's."""
    from conversion import ModelType, get_model_architecture, get_model_class
    from conversion.base import ModelBase, TextModel

    original = ModelBase.load_hparams

    hparams = ModelBase.load_hparams(checkpoint, False) | case.written  # transformers drops keys of earlier versions
    ModelBase.load_hparams = staticmethod(lambda *_, **__: dict(hparams))
    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    if case.vocabulary == "none":
        maker = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
        maker.set_vocab = TextModel._set_vocab_none
    script = llama_cpp / "convert_hf_to_gguf.py"
    sys.argv = [str(script), str(checkpoint), "--outfile", str(file), "--outtype", "f32", *case.options]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        ModelBase.load_hparams = staticmethod(original)


if __name__ == "__main__":
    main()
