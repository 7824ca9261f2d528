"""Seconds for transcribing sound with the shape of parakeet-tdt-0.6b-v3 and random weights: the real-time factor.

    python tests/benchmarks/speech_recognition.py                          # Q8_0: 0.7 GB, made of 2.5 GB
    python tests/benchmarks/speech_recognition.py --type F16 --seconds 60 --layers 8
    python tests/benchmarks/speech_recognition.py --model /tmp/parakeet.gguf     # keeps the file for the next run

The spectrogram and the encoder are timed, and decoding on its own. Each step of decoding finds a token that lasts four
rows, so there are 3.1 steps per second; that is the rate of tokens in fast speech. Needs the group `test`.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "models"), str(TESTS / "harness")]

import parakeet_checkpoints  # noqa: E402
from hearing_model import speech  # noqa: E402

import localinfer  # noqa: E402
from localinfer.multimodal.media import Sound  # noqa: E402
from localinfer.options import Options  # noqa: E402
from localinfer.speech_recognition import decoding  # noqa: E402
from localinfer.speech_recognition.encoder import encode  # noqa: E402
from localinfer.speech_recognition.prediction_network import read_head  # noqa: E402
from localinfer.speech_recognition.recognition_file import open_recognition_file  # noqa: E402
from localinfer.transcription.recognizer import CHUNK_SECONDS  # noqa: E402

TOKENS = 8192


def published_shape(layers: int) -> dict[str, Any]:
    """Return config.json of parakeet-tdt-0.6b-v3 with this number of layers."""
    config = parakeet_checkpoints.CONFIGS["tdt"]
    encoder = config["encoder_config"] | {
        "hidden_size": 1024, "num_hidden_layers": layers, "num_attention_heads": 8, "intermediate_size": 4096,
        "subsampling_conv_channels": 256, "num_mel_bins": 128, "attention_bias": False, "convolution_bias": False,
    }  # fmt: skip
    sizes = {"vocab_size": TOKENS + 1, "blank_token_id": TOKENS, "decoder_hidden_size": 640}
    return config | sizes | {"encoder_config": encoder}


def write_model(path: Path, layers: int, type: str) -> None:
    """Write a checkpoint with random weights, and convert it."""
    random, config = np.random.default_rng(20), published_shape(layers)
    tensors = {
        name: random.standard_normal(shape, np.float32) * np.float32(max(1, np.prod(shape[1:])) ** -0.5)
        for name, shape in parakeet_checkpoints.shapes(config).items()
        if shape
    }
    tensors = {name: np.abs(each) + 1 if name.endswith("running_var") else each for name, each in tensors.items()}
    tensors["joint.head.bias"][-1] = 1e4  # the largest duration
    tensors["joint.head.bias"][TOKENS] = -1e4  # the blank
    with tempfile.TemporaryDirectory() as folder:
        save_file(tensors, Path(folder, "model.safetensors"), {"format": "pt"})
        parakeet_checkpoints.write_files(Path(folder), config, [f"▁{number}" for number in range(TOKENS)])
        localinfer.quantize(folder, path, type)


def measure(path: Path, seconds: float, rounds: int, options: Options) -> tuple[list[tuple[float, float]], int]:
    """Return the seconds of the encoder and of decoding for each round, and the number of tokens."""
    file, sound = open_recognition_file(path), Sound(speech(seconds))
    weights, times = read_head(file), []
    for _ in range(rounds + 1):  # the first one compiles kernels
        started = time.perf_counter()
        rows = np.concatenate(list(encode(file, sound, CHUNK_SECONDS, options)))
        encoded = time.perf_counter()
        tokens = [*decoding.make_decoding(file, weights).feed(rows)]
        times.append((encoded - started, time.perf_counter() - encoded))
    return times[1:], len(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=64.0, help="of sound")
    parser.add_argument("--type", default="Q8_0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path, help="file with the model, which is written if it is missing")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.model or Path(folder, "model.gguf")
        if not path.exists():
            write_model(path, given.layers, given.type)
        times, n_tokens = measure(path, given.seconds, given.rounds, Options(threads=given.threads))
    encoder, decoder = np.median(times, axis=0)
    print(f"{given.type}, {given.layers} layers, {given.threads} threads: {given.seconds:g} s of sound")
    print(f"spectrogram and encoder {encoder:.2f} s, decoding {decoder:.2f} s ({n_tokens} tokens)")
    print(f"real-time factor {(encoder + decoder) / given.seconds:.3f}")


if __name__ == "__main__":
    main()
