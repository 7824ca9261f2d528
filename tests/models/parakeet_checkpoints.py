"""Tiny checkpoints of Parakeet with random weights: one for each kind of head, of unlike sizes. Weights are computed
here; data/parakeet/NAME.npz has what transformers makes of them (make_parakeet_fixtures.py)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from hearing_model import speech
from numpy.typing import NDArray
from safetensors.numpy import save_file

Floats = NDArray[np.float32]
DATA = Path(__file__).parents[1] / "data" / "parakeet"
N_PIECES = 45
LETTERS = "abcdefghijklmnopqrst"
PIECES = ["<unk>", "<pad>", "<0xC3>", "<0xA9>", ".", ",", "?", "▁", *LETTERS, *(f"▁{each}" for each in LETTERS)]
PIECES = PIECES[:N_PIECES]
CONFIGS: dict[str, dict[str, Any]] = {
    "tdt": {
        "architectures": ["ParakeetForTDT"], "model_type": "parakeet_tdt", "vocab_size": N_PIECES + 1,
        "blank_token_id": N_PIECES, "pad_token_id": 1, "decoder_hidden_size": 24, "num_decoder_layers": 2,
        "durations": [0, 1, 2, 3, 4], "max_symbols_per_step": 10, "hidden_act": "relu",
        "encoder_config": {
            "model_type": "parakeet_encoder", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 48, "subsampling_conv_channels": 32, "num_mel_bins": 32, "scale_input": False,
            "attention_bias": True, "convolution_bias": True, "conv_kernel_size": 9, "subsampling_factor": 8,
        },
    },
    "ctc": {
        "architectures": ["ParakeetForCTC"], "model_type": "parakeet_ctc", "vocab_size": N_PIECES + 1,
        "pad_token_id": N_PIECES,
        "encoder_config": {
            "model_type": "parakeet_encoder", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 1,
            "intermediate_size": 40, "subsampling_conv_channels": 64, "num_mel_bins": 24, "scale_input": True,
            "attention_bias": False, "convolution_bias": False, "conv_kernel_size": 5, "subsampling_factor": 8,
        },
    },
}  # fmt: skip
CONFIGS["rnnt"] = {
    **CONFIGS["tdt"], "architectures": ["ParakeetForRNNT"], "model_type": "parakeet_rnnt", "num_decoder_layers": 1,
    "max_symbols_per_step": 3, "encoder_config": CONFIGS["tdt"]["encoder_config"] | {"num_hidden_layers": 1},
}  # fmt: skip
del CONFIGS["rnnt"]["durations"]
SECONDS = 5.03
BLANK_BIAS = {"tdt": 12, "ctc": 20, "rnnt": 8}
FACTORS = {  # of weights, so that tokens and durations vary
    "ctc_head.weight": 8, "joint.head.weight": 8, "encoder_projector.weight": 2, "decoder.embedding": 8,
    "decoder.lstm.weight": 4, "decoder.decoder_projector.weight": 8, "subsampling.linear.weight": 8,
}  # fmt: skip


def sound() -> Floats:
    """Return the sound that the fixtures are computed of."""
    return speech(SECONDS, pauses=(1.5, 3.2), seed=5)


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors by transformers' names."""
    encoder, classes = config["encoder_config"], config["vocab_size"]
    n, ff, c = encoder["hidden_size"], encoder["intermediate_size"], encoder["subsampling_conv_channels"]
    linear, found = encoder["attention_bias"], {}

    def add(name: str, *shape: int, bias: bool = True) -> None:
        found[f"{name}.weight"] = shape
        if bias:
            found[f"{name}.bias"] = shape[:1]

    for number in (0, 2, 5):
        add(f"encoder.subsampling.layers.{number}", c, 1, 3, 3)
    for number in (3, 6):
        add(f"encoder.subsampling.layers.{number}", c, c, 1, 1)
    add("encoder.subsampling.linear", n, c * encoder["num_mel_bins"] // 8)
    for number in range(encoder["num_hidden_layers"]):
        blk = f"encoder.layers.{number}."
        for half in "12":
            add(f"{blk}feed_forward{half}.linear1", ff, n, bias=linear)
            add(f"{blk}feed_forward{half}.linear2", n, ff, bias=linear)
        for letter in "qkvo":
            add(f"{blk}self_attn.{letter}_proj", n, n, bias=linear)
        add(f"{blk}self_attn.relative_k_proj", n, n, bias=False)
        heads = encoder["num_attention_heads"]
        found |= {f"{blk}self_attn.bias_{letter}": (heads, n // heads) for letter in "uv"}
        add(f"{blk}conv.pointwise_conv1", 2 * n, n, 1, bias=encoder["convolution_bias"])
        add(f"{blk}conv.depthwise_conv", n, 1, encoder["conv_kernel_size"], bias=encoder["convolution_bias"])
        add(f"{blk}conv.pointwise_conv2", n, n, 1, bias=encoder["convolution_bias"])
        add(f"{blk}conv.norm", n)
        found |= {f"{blk}conv.norm.running_{kind}": (n,) for kind in ("mean", "var")}
        found[f"{blk}conv.norm.num_batches_tracked"] = ()
        for norm in ("feed_forward1", "self_att", "conv", "feed_forward2", "out"):
            add(f"{blk}norm_{norm}", n)
    if "decoder_hidden_size" not in config:
        add("ctc_head", classes, n, 1)
        return found
    m = config["decoder_hidden_size"]
    found["decoder.embedding.weight"] = classes, m
    for number in range(config["num_decoder_layers"]):
        found |= {f"decoder.lstm.weight_{kind}_l{number}": (4 * m, m) for kind in ("ih", "hh")}
        found |= {f"decoder.lstm.bias_{kind}_l{number}": (4 * m,) for kind in ("ih", "hh")}
    add("decoder.decoder_projector", m, m)
    add("encoder_projector", m, n)
    add("joint.head", classes + len(config.get("durations", ())), m)
    return found


def weights(name: str) -> dict[str, NDArray[Any]]:
    """Return the tensors of a checkpoint by transformers' names. The blank is often the most probable token."""
    config, generator = CONFIGS[name], np.random.default_rng(20)
    found: dict[str, NDArray[Any]] = {}
    for key, shape in shapes(config).items():
        values = generator.integers(-15, 16, shape).astype(np.float32)
        fan_in = max(1, int(np.prod(shape[1:])))
        scale = 2.0**-6 if len(shape) == 1 else 2.0 ** -np.ceil(np.log2(8 * fan_in**0.5))
        is_norm = ("norm" in key) and key.endswith("weight")
        found[key] = values * np.float32(scale) + np.float32(is_norm)
        if key.endswith("running_var"):
            found[key] = np.abs(values) / 16 + np.float32(0.25)
        if key.endswith("num_batches_tracked"):
            found[key] = np.zeros(shape, np.int64)
    for key, values in found.items():
        values *= next((factor for part, factor in FACTORS.items() if part in key), 1)
    found["ctc_head.bias" if name == "ctc" else "joint.head.bias"][N_PIECES] += np.float32(BLANK_BIAS[name])
    return found


def write_checkpoint(name: str, folder: Path) -> Path:
    """Write a checkpoint directory and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(name), folder / "model.safetensors", {"format": "pt"})
    write_files(folder, CONFIGS[name], PIECES)
    return folder


def write_files(folder: Path, config: dict[str, Any], pieces: list[str]) -> None:
    """Write the files of a checkpoint apart from the tensors."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(config, pieces)))


def tokenizer(config: dict[str, Any], pieces: list[str]) -> dict[str, Any]:
    """Return tokenizer.json: SentencePiece's BPE, as transformers converts it. CTC has its blank for padding."""
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    blank = "<pad>" if config["model_type"] == "parakeet_ctc" else "<blank>"
    pieces = [piece if piece != blank else "<unused>" for piece in pieces]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [(0, pieces[0]), (1, pieces[1]), (len(pieces), blank)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": space,
        "post_processor": None,
        "added_tokens": [{"id": id, "content": text, **flags} for id, text in special],
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": {text: id for id, text in enumerate(pieces)}, "merges": [],
        },
    }  # fmt: skip
