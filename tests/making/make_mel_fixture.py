"""Write tests/data/mel.npz: every 50th frame of the spectrograms that transformers' WhisperFeatureExtractor makes of
the sounds in tests/models/made_sounds.py, with 80 and 128 bands: NAME_BANDS, float32 (frames, bands).

    python tests/making/make_mel_fixture.py

Needs torch and transformers.
"""

import sys
from pathlib import Path

import numpy as np
import transformers

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "models"))

from made_sounds import SOUNDS, STRIDE  # noqa: E402

arrays = {}
for bands in (80, 128):
    extract = transformers.WhisperFeatureExtractor(feature_size=bands)
    for name, make in SOUNDS.items():
        found = extract(
            make(), sampling_rate=16_000, truncation=False, padding="longest", pad_to_multiple_of=480_000,
            return_tensors="np",
        )  # fmt: skip
        arrays[f"{name}_{bands}"] = found["input_features"][0].T[::STRIDE]
np.savez_compressed(TESTS / "data" / "mel.npz", **arrays)
