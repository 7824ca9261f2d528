"""Seconds for encoding 30 s of sound, beside libmtmd with as many threads, in turns; and how much the rows differ.

    python tests/benchmarks/sound_encoders.py                       # the shape of Whisper large v3 (1.3 GB, F16)
    python tests/benchmarks/sound_encoders.py --layers 4 --rounds 5
    python tests/benchmarks/sound_encoders.py --type Q8_0

The weights are random numbers in a projector file of Qwen2-Audio. The preprocessing is not timed. Needs the group
`test`, and the package llama_cpp with libmtmd.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "models"), str(TESTS / "oracles"), str(TESTS / "harness")]

from libmtmd_peer import Peer, compare_encoders, quantized  # noqa: E402
from tiny import tiny_qwen2  # noqa: E402

from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder  # noqa: E402
from localinfer.multimodal.media import SAMPLE_RATE, Sound  # noqa: E402
from localinfer.multimodal.projector_file import open_projector  # noqa: E402
from localinfer.options import Options  # noqa: E402

BANDS, OUTPUT = 128, 64  # mel bands; the embedding length of the language model
FRAMES = 3000


def write_projector(path: Path, n: int, layers: int, heads: int) -> None:
    """Write a projector file of Qwen2-Audio with random weights: matrices in F16, vectors in F32."""
    random = np.random.default_rng(20)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_string("clip.projector_type", "qwen2a")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    counts = {
        "projection_dim": OUTPUT, "embedding_length": n, "feed_forward_length": 4 * n, "block_count": layers,
        "attention.head_count": heads, "num_mel_bins": BANDS,
    }  # fmt: skip
    for key, count in counts.items():
        writer.add_uint32(f"clip.audio.{key}", count)

    def matrix(name: str, *shape: int) -> None:
        deviation = np.prod(shape[1:]) ** -0.5
        writer.add_tensor(name, (random.standard_normal(shape, np.float32) * deviation).astype(np.float16))

    def vector(name: str, *shape: int, around: float = 0.0) -> None:
        writer.add_tensor(name, random.standard_normal(shape, np.float32) * np.float32(0.02) + np.float32(around))

    for number, n_in in ((1, BANDS), (2, n)):
        matrix(f"a.conv1d.{number}.weight", n, n_in, 3)
        vector(f"a.conv1d.{number}.bias", n, 1)
    vector("a.position_embd.weight", FRAMES // 2, n)
    for number in range(layers):
        blk = f"a.blk.{number}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            matrix(f"{blk}.{name}.weight", n, n)
            if name != "attn_k":
                vector(f"{blk}.{name}.bias", n)
        for name, n_out, n_in in (("ffn_up", 4 * n, n), ("ffn_down", n, 4 * n)):
            matrix(f"{blk}.{name}.weight", n_out, n_in)
            vector(f"{blk}.{name}.bias", n_out)
        for name in ("ln1", "ln2"):
            vector(f"{blk}.{name}.weight", n, around=1.0)
            vector(f"{blk}.{name}.bias", n)
    vector("a.post_ln.weight", n, around=1.0)
    vector("a.post_ln.bias", n)
    matrix("mm.a.fc.weight", OUTPUT, n)
    vector("mm.a.fc.bias", OUTPUT)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--heads", type=int, default=20)
    parser.add_argument("--type", default="F16", help="type of the matrices, such as Q8_0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        projector = Path(folder) / "mmproj.gguf"
        write_projector(projector, given.width, given.layers, given.heads)
        if given.type != "F16":
            projector = quantized(projector, given.type)
        model = tiny_qwen2(Path(folder) / "model.gguf", n_embd=OUTPUT, n_ff=128, n_head=1, n_head_kv=1)
        compare(model, projector, Path(folder), given.threads, given.rounds)


def compare(model: Path, projector: Path, folder: Path, threads: int, rounds: int) -> None:
    """Print the seconds of both, and the largest difference of their rows."""
    t = np.arange(FRAMES * 160) / 16_000
    samples = (0.3 * np.sin(2 * np.pi * (200 + 90 * np.sin(t)) * t) * (np.sin(3 * t) > -0.5)).astype(np.float32)
    samples[-SAMPLE_RATE:] = 0  # libmtmd gets 29 s, and pads them to 30 s itself; it would begin another window
    encoder = open_projector(projector, open_gguf(model)).sound_encoder
    features = encoder.make_processor()(Sound(samples)).features
    inputs = encoder.family.prepare(features, encoder.framing.lengths(FRAMES))
    with CompiledEncoder(*encoder.build(FRAMES, Options(threads=threads))) as compiled:
        peer = Peer(model, projector, samples[:-SAMPLE_RATE], folder, threads)
        print(compare_encoders(lambda: compiled.run(inputs), peer, rounds))


if __name__ == "__main__":
    main()
