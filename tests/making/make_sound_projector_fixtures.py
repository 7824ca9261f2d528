"""Write tests/data/sound_projectors: tiny projector files with sound encoders, and the output rows that transformers
computes.

    LLAMA_CPP=path/to/llama.cpp python tests/making/make_sound_projector_fixtures.py            # all of them
    LLAMA_CPP=path/to/llama.cpp python tests/making/make_sound_projector_fixtures.py voxtral    # these

Needs torch and transformers, and the converter of llama.cpp's source. NAME.gguf.xz is the file that llama.cpp's
converter makes in F32 of a checkpoint with random weights, without those that `generated_weights` draws again. NAME.npz
has, of some sounds, the levels of a spectrogram (features_0, int8 (frames, bands); its values are half of them), the
number of frames that are sound (frames_0) and the output rows (rows_0), computed in float32 with eager attention, and
`embedding_length` and `architecture` of the language model.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gemma_encoders
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from sound_models import (
    ODD_CONFORMER,
    SMALL_CONFORMER,
    TEXT,
    Lfm2Audio,
    NemotronOmni,
    Tensors,
    config_of_thinker,
    granite_speech,
    granite_speech_rows,
    lfm2_audio_rows,
    names_of_granite_speech,
    names_of_thinker,
    nemotron_omni_rows,
    qwen25_omni,
    qwen25_omni_rows,
)
from torch.nn.functional import silu

sys.path.append(str(Path(__file__).parents[1] / "models"))

from generated_weights import LARGEST, SEED, pack

DATA = Path(__file__).parents[1] / "data" / "sound_projectors"
CONVERTER = Path(os.environ.get("LLAMA_CPP", ".")) / "convert_hf_to_gguf.py"
BANDS, CHUNK = 32, 3000  # bands of the spectrogram, frames of 30 s
WHISPER = {  # the converter needs more layers than convolutions
    "d_model": 32, "encoder_layers": 3, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "num_mel_bins": BANDS,
    "max_source_positions": CHUNK // 2, "dropout": 0.0,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A projector. `model` makes the checkpoint's model, `encode` computes the output rows from a spectrogram
    (1, bands, CHUNK) of which some frames are sound."""

    architecture: str  # GGUF's name of the language model's architecture
    model: Callable[[], Any]
    encode: Callable[[Any, torch.Tensor, int], torch.Tensor]
    frames: Sequence[int]  # of each sound
    renamed: Callable[[Tensors], dict[str, torch.Tensor]] | None = None  # changes the names of the saved tensors
    written: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # changes config.json
    preprocessor: Mapping[str, Any] | None = None  # preprocessor_config.json
    embedding_length: int = 64
    bands: int = BANDS
    within: bool = False  # whether the spectrogram ends with the sound
    ends: bool = False  # whether the spectrogram ends with the sound, after a frame of zeros


class Ultravox(torch.nn.Module):
    """Ultravox: transformers has its encoder, which is Whisper's, but not its projector."""

    stack, epsilon = 8, 1e-6

    def __init__(self) -> None:
        super().__init__()
        config = transformers.WhisperConfig(**WHISPER)
        self.audio_tower = transformers.models.whisper.modeling_whisper.WhisperEncoder(config)
        self.multi_modal_projector = torch.nn.ModuleDict(
            {
                "ln_pre": torch.nn.RMSNorm(32 * self.stack, self.epsilon),
                "linear_1": torch.nn.Linear(32 * self.stack, 128, bias=False),
                "ln_mid": torch.nn.RMSNorm(64, self.epsilon),
                "linear_2": torch.nn.Linear(64, 64, bias=False),
            }
        )

    def set_attn_implementation(self, name: str) -> None:
        self.audio_tower.set_attn_implementation(name)

    def save_pretrained(self, folder: str) -> None:
        kept = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(kept, Path(folder, "model.safetensors"), {"format": "pt"})
        config = {
            "architectures": ["UltravoxModel"], "model_type": "ultravox", "stack_factor": self.stack,
            "audio_config": {"model_type": "whisper", **WHISPER}, "text_config": {"model_type": "llama", **TEXT},
        }  # fmt: skip
        Path(folder, "config.json").write_text(json.dumps(config))


def ultravox_rows(model: Ultravox, features: torch.Tensor, frames: int) -> torch.Tensor:
    """Return the rows of the frames of the sound alone: the encoder's positions are fewer then."""
    encoder, count = model.audio_tower, frames // 2
    whole = encoder.embed_positions
    encoder.embed_positions = torch.nn.Embedding.from_pretrained(whole.weight[:count])
    encoder.config.max_source_positions = count
    states = encoder(features[..., : 2 * count]).last_hidden_state[0]
    encoder.embed_positions, encoder.config.max_source_positions = whole, CHUNK // 2
    states = torch.nn.functional.pad(states, (0, 0, 0, -count % model.stack))
    part = model.multi_modal_projector
    up, gate = part["linear_1"](part["ln_pre"](states.reshape(-1, 32 * model.stack))).chunk(2, -1)
    return part["linear_2"](part["ln_mid"](silu(gate) * up))


def voxtral() -> Any:
    audio = {
        "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2,
        "num_mel_bins": BANDS, "max_source_positions": CHUNK // 2,
    }  # fmt: skip
    config = transformers.VoxtralConfig(audio_config=audio, text_config={"model_type": "llama", **TEXT})
    return transformers.VoxtralForConditionalGeneration(config)


def voxtral_rows(model: Any, features: torch.Tensor, _frames: int) -> torch.Tensor:
    return model.model.get_audio_features(features).pooler_output


def qwen2_audio() -> Any:
    config = transformers.Qwen2AudioConfig(audio_config=WHISPER, text_config={"model_type": "qwen2", **TEXT})
    return transformers.Qwen2AudioForConditionalGeneration(config)


def qwen2_audio_rows(model: Any, features: torch.Tensor, frames: int) -> torch.Tensor:
    """Return the rows of the sound: attention ignores what follows it."""
    inner = getattr(model, "model", model)
    count, n_rows = inner.audio_tower._get_feat_extract_output_lengths(torch.tensor(frames))
    mask = torch.zeros(1, 1, CHUNK // 2, CHUNK // 2)
    mask[..., count:] = -torch.inf
    states = inner.audio_tower(features, attention_mask=mask).last_hidden_state
    return inner.multi_modal_projector(states)[0, :n_rows]


def qwen3_asr() -> Any:
    audio = {
        "num_mel_bins": BANDS, "encoder_layers": 4, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "d_model": 32,
        "output_dim": 64, "downsample_hidden_size": 32,
    }  # fmt: skip
    config = transformers.Qwen3ASRConfig(
        audio_config={"model_type": "qwen3_asr_encoder", **audio}, text_config={"model_type": "qwen3", **TEXT}
    )
    return transformers.Qwen3ASRForConditionalGeneration(config)


def qwen3_asr_rows(model: Any, features: torch.Tensor, frames: int) -> torch.Tensor:
    """Return the rows of the sound; zeros follow it to the end of its last second."""
    seen = features[..., : -(-frames // 100) * 100].clone()
    seen[..., frames:] = 0
    mask = (torch.arange(seen.shape[-1]) < frames).long()[None]
    return model.model.get_audio_features(seen, mask).pooler_output


def names_of_qwen3_asr(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors of the encoder with the names of the first checkpoints, which the converter knows."""
    names = {
        "model.audio_tower.": "thinker.audio_tower.",
        "model.multi_modal_projector.linear_": "thinker.audio_tower.proj",
    }
    return {
        name.replace(old, new): tensor for name, tensor in tensors.items() for old, new in names.items() if old in name
    }


OMNI = {
    "architecture": "qwen2vl", "encode": qwen25_omni_rows, "renamed": names_of_thinker, "written": config_of_thinker,
    "preprocessor": {"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
}  # fmt: skip
SPECS = {
    "ultravox": Spec(architecture="llama", model=Ultravox, encode=ultravox_rows, frames=[CHUNK, 76]),
    "voxtral": Spec(architecture="llama", model=voxtral, encode=voxtral_rows, frames=[CHUNK]),
    "qwen2a": Spec(architecture="qwen2", model=qwen2_audio, encode=qwen2_audio_rows, frames=[1201, 98]),
    "parakeet": Spec(
        architecture="nemotron_h", model=lambda: NemotronOmni(48, **{**SMALL_CONFORMER, "num_hidden_layers": 2}),
        encode=nemotron_omni_rows, frames=[400, 77], within=True,
    ),
    "parakeet_of_odd_size": Spec(
        architecture="nemotron_h", model=lambda: NemotronOmni(40, **{**ODD_CONFORMER, "num_hidden_layers": 3}),
        encode=nemotron_omni_rows, frames=[9, 318], within=True, bands=24,
    ),
    "qwen2_5o": Spec(frames=[630, 98], model=lambda: qwen25_omni(**WHISPER), **OMNI),
    "qwen2_5o_of_odd_size": Spec(
        frames=[401, 3], bands=24, **OMNI,
        model=lambda: qwen25_omni(
            d_model=32, encoder_layers=2, encoder_attention_heads=1, encoder_ffn_dim=40, num_mel_bins=24,
            max_source_positions=1500,
        ),
    ),
    "qwen3a": Spec(
        architecture="qwen3vl", model=qwen3_asr, encode=qwen3_asr_rows, frames=[930, 98], renamed=names_of_qwen3_asr,
        written=lambda config: {**TEXT, "architectures": config["architectures"], "thinker_config": config},
    ),
    "gemma4a": Spec(
        architecture="gemma4", model=gemma_encoders.hearing_gemma4, encode=gemma_encoders.gemma4_sound_rows,
        frames=[403, 2, 97], ends=True, preprocessor=gemma_encoders.UNCHANGED,
    ),
    "gemma4a_of_odd_size": Spec(
        architecture="gemma4", model=gemma_encoders.odd_hearing_gemma4, encode=gemma_encoders.gemma4_sound_rows,
        frames=[122, 48], ends=True, bands=64, preprocessor=gemma_encoders.UNCHANGED,
    ),
    "gemma4ua": Spec(
        architecture="gemma4", model=gemma_encoders.unified_gemma4, encode=gemma_encoders.unified_sound_rows,
        frames=[7, 2], ends=True, bands=640, preprocessor=gemma_encoders.UNCHANGED,
    ),
    "gemma3na": Spec(
        architecture="gemma3n", encode=gemma_encoders.gemma3n_sound_rows, frames=[403, 2], ends=True,
        model=lambda: gemma_encoders.HearingGemma3n(
            hidden_size=32, conf_num_hidden_layers=1, conf_num_attention_heads=2, sscp_conv_channel_size=[32, 32],
            input_feat_size=32, conf_conv_kernel_size=5,
        ),
    ),
    "gemma3na_of_odd_size": Spec(
        architecture="gemma3n", encode=gemma_encoders.gemma3n_sound_rows, frames=[122, 48], ends=True, bands=24,
        model=lambda: gemma_encoders.HearingGemma3n(
            hidden_size=32, conf_num_hidden_layers=1, conf_num_attention_heads=1, sscp_conv_channel_size=[32, 32],
            input_feat_size=24, conf_conv_kernel_size=3,
        ),
    ),
    "lfm2a": Spec(
        architecture="lfm2", model=lambda: Lfm2Audio(64, **SMALL_CONFORMER), encode=lfm2_audio_rows, frames=[401, 9],
        ends=True,
    ),
    "granite_speech": Spec(
        architecture="granite", encode=granite_speech_rows, frames=[101, 7], ends=True, renamed=names_of_granite_speech,
        model=lambda: granite_speech(
            15, 5, {"num_attention_heads": 2, "intermediate_size": 48}, input_dim=32, num_layers=4, hidden_dim=32,
            num_heads=2, context_size=20, max_pos_emb=30, conv_kernel_size=7,
        ),
    ),
    "granite_speech_plus": Spec(
        architecture="granite", encode=granite_speech_rows, frames=[33], ends=True, renamed=names_of_granite_speech,
        model=lambda: granite_speech(
            15, 5, {"num_attention_heads": 2, "intermediate_size": 48, "encoder_hidden_size": 96}, kind="Plus",
            input_dim=32, num_layers=3, hidden_dim=32, num_heads=2, context_size=20, max_pos_emb=30, conv_kernel_size=7,
            feedforward_mult=2, cat_hidden_layers=[0, 1],
        ),
    ),
    "granite_speech_of_odd_size": Spec(
        architecture="granite", encode=granite_speech_rows, frames=[50, 83], ends=True, bands=48,
        renamed=names_of_granite_speech,
        model=lambda: granite_speech(
            9, 3, {"num_attention_heads": 1, "intermediate_size": 40}, input_dim=48, num_layers=3, hidden_dim=32,
            num_heads=1, context_size=25, max_pos_emb=25, conv_kernel_size=4, conv_expansion_factor=1, output_dim=13,
            feedforward_mult=1,
        ),
    ),
    "lfm2a_of_odd_size": Spec(
        architecture="lfm2", model=lambda: Lfm2Audio(96, **ODD_CONFORMER), encode=lfm2_audio_rows, frames=[318, 77],
        ends=True, bands=24, embedding_length=96,
    ),
}  # fmt: skip


def random_weights(model: torch.nn.Module) -> None:
    """Replace all weights by integers times a power of two."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            values = torch.randint(-LARGEST, LARGEST + 1, tensor.shape, generator=generator).float()
            is_norm = tensor.dim() == 1 and name.endswith("weight")
            scale = 2.0**-6 if tensor.dim() == 1 else 2.0 ** -np.ceil(np.log2(4 * tensor[0].numel() ** 0.5))
            if "embed_positions" in name:
                values, scale = torch.sign(values), 2.0**-2
            tensor.copy_(values * scale + float(is_norm))
        for name, tensor in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                values = torch.randint(1, 8, tensor.shape, generator=generator).float()
                tensor.copy_(values / 4 if name.endswith("running_var") else (values - 4) / 8)


def convert(model: Any, name: str, spec: Spec) -> bytes:
    """Return the projector file that llama.cpp's converter makes of the model."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        if spec.preprocessor:
            Path(folder, "preprocessor_config.json").write_text(json.dumps(spec.preprocessor))
        if spec.written:
            path = Path(folder, "config.json")
            path.write_text(json.dumps(spec.written(json.loads(path.read_text()))))
        if spec.preprocessor:
            Path(folder, "preprocessor_config.json").write_text(json.dumps(spec.preprocessor))
        if spec.renamed:
            path = Path(folder, "model.safetensors")
            save_file(spec.renamed(load_file(path)), path, {"format": "pt"})
        out = Path(folder, "mmproj.gguf")
        command = [sys.executable, str(CONVERTER), folder, "--mmproj", "--outtype", "f32", "--outfile", str(out)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(f"{name}: {run.stderr[-2000:]}")
        return next(Path(folder).glob("*.gguf")).read_bytes()


def levels_of(spec: Spec, frames: int, generator: np.random.Generator) -> Any:
    """Return the spectrogram of the next sound, int8 (frames, bands), in halves."""
    length = frames if spec.ends or spec.within else CHUNK
    levels = generator.integers(-2, 3, (length, spec.bands)).astype(np.int8)
    levels[frames - 1 if spec.ends else CHUNK :] = 0
    levels[frames + 2 :] = -2  # two frames of the silence still contain sound
    return levels


def make(name: str, spec: Spec) -> None:
    """Write the fixtures of one projector."""
    torch.manual_seed(SEED)
    model = spec.model().eval().float()
    model.set_attn_implementation("eager")
    random_weights(model)
    arrays: dict[str, Any] = {"architecture": spec.architecture, "embedding_length": spec.embedding_length}
    generator = np.random.default_rng(SEED)
    for number, frames in enumerate(spec.frames):
        levels = levels_of(spec, frames, generator)
        with torch.no_grad():
            rows = spec.encode(model, torch.tensor(levels.T / 2).float()[None], frames)
        arrays |= {f"features_{number}": levels, f"frames_{number}": frames, f"rows_{number}": rows.numpy()}
    DATA.mkdir(exist_ok=True)
    content = model.file() if hasattr(model, "file") else convert(model, name, spec)
    file = pack(content)
    (DATA / f"{name}.gguf.xz").write_bytes(file)
    np.savez_compressed(DATA / f"{name}.npz", **arrays)
    size = (DATA / f"{name}.npz").stat().st_size
    print(f"{name}: {len(file):,} and {size:,} bytes; largest value {np.abs(arrays['rows_0']).max():.3f}")


if __name__ == "__main__":
    for each in sys.argv[1:] or SPECS:
        make(each, SPECS[each])
