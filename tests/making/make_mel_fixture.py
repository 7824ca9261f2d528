"""Write tests/data/mel.npz: every 50th frame of the spectrograms that feature extractors of transformers make of the
sounds in tests/models/made_sounds.py, float32 (frames, bands): NAME_BANDS are those of Whisper with 80 and 128 bands,
NAME_nemo those of Parakeet with 128 bands, as LFM2-Audio has, NAME_gemma4 those of Gemma 4, NAME_gemma3n those of Gemma
3n. The latter three are computed in float64: without the lower limit that Whisper's have, rounding of float32 is
visible where the sounds have pauses.
NAME_granite are what GraniteSpeechFeatureExtractor computes; it needs torchaudio, so its lines are repeated here.

    python tests/making/make_mel_fixture.py

Needs torch and transformers.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.audio_utils import mel_filter_bank, window_function

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "models"))

from made_sounds import SOUNDS, STRIDE  # noqa: E402


class Parakeet(transformers.ParakeetFeatureExtractor):
    """Computes the energies in double precision."""

    def _torch_extract_fbank_features(self, waveform: torch.Tensor, device: str = "cpu") -> torch.Tensor:
        window = torch.hann_window(self.win_length, periodic=False, dtype=torch.float64)
        spectrum = torch.stft(
            waveform.double(), self.n_fft, hop_length=self.hop_length, win_length=self.win_length, window=window,
            return_complex=True, pad_mode="constant",
        )  # fmt: skip
        return torch.log(self.mel_filters.double() @ spectrum.abs() ** 2 + 2**-24).mT


class Gemma4(transformers.Gemma4AudioFeatureExtractor):
    """Computes the magnitudes in double precision."""

    def _extract_spectrogram(self, waveform: Any, attention_mask: Any) -> Any:
        self.window = window_function(self.frame_length)
        return super()._extract_spectrogram(waveform.astype(np.float64), attention_mask)


class Gemma3n(transformers.Gemma3nAudioFeatureExtractor):
    """Computes the magnitudes in double precision."""

    def _extract_spectrogram(self, waveform: Any, attention_mask: Any) -> Any:
        self.window = window_function(self.frame_length)
        return super()._extract_spectrogram(waveform.astype(np.float64), attention_mask)


arrays = {}
for bands in (80, 128):
    extract = transformers.WhisperFeatureExtractor(feature_size=bands)
    for name, make in SOUNDS.items():
        found = extract(
            make(), sampling_rate=16_000, truncation=False, padding="longest", pad_to_multiple_of=480_000,
            return_tensors="np",
        )  # fmt: skip
        arrays[f"{name}_{bands}"] = found["input_features"][0].T[::STRIDE]
parakeet = Parakeet(feature_size=128)
for name, make in SOUNDS.items():
    found = parakeet(make(), sampling_rate=16_000, return_tensors="np")
    arrays[f"{name}_nemo"] = found["input_features"][0][::STRIDE].astype(np.float32)
granite = mel_filter_bank(257, 80, 0.0, 8000.0, 16_000, mel_scale="htk", triangularize_in_mel_space=False)
for name, make in SOUNDS.items():
    spectrum = torch.stft(
        torch.tensor(make()).double(), 512, hop_length=160, win_length=400, window=torch.hann_window(400).double(),
        return_complex=True,
    )  # fmt: skip
    energies = spectrum.abs().mT ** 2 @ torch.tensor(granite)
    logarithms = energies.clip(min=1e-10).log10()
    levels = torch.maximum(logarithms, logarithms.max() - 8) / 4 + 1
    arrays[f"{name}_granite"] = levels[: len(levels) // 2 * 2].reshape(-1, 160)[::STRIDE].float().numpy()
gemma4 = Gemma4()
for name, make in SOUNDS.items():
    found = gemma4([make()], max_length=None, truncation=False, return_tensors="np")
    arrays[f"{name}_gemma4"] = found["input_features"][0][found["input_features_mask"][0]][::STRIDE]
gemma3n = Gemma3n()
for name, make in SOUNDS.items():
    found = gemma3n([make()], max_length=None, truncation=False, return_tensors="np")
    arrays[f"{name}_gemma3n"] = found["input_features"][0][found["input_features_mask"][0]][::STRIDE]
np.savez_compressed(TESTS / "data" / "mel.npz", **arrays)
