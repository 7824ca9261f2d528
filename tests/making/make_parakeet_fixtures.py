"""Write tests/data/parakeet/NAME.npz: what transformers computes with the checkpoints of parakeet_checkpoints.py of a
sound, in float32.

    python tests/making/make_parakeet_fixtures.py

`rows` are those of the encoder, `logits` those of the head for its first rows (of a transducer: with the prediction for
the blank), `tokens` and `durations` what `generate` returns, `text` what the processor makes of it, and `starts` and
`ends` the times in seconds that it gives each token. Needs torch and transformers.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.append(str(Path(__file__).parents[1] / "models"))

import parakeet_checkpoints as checkpoints


def results(name: str, folder: Path) -> dict[str, Any]:
    """Return the arrays of a fixture."""
    config = checkpoints.CONFIGS[name]
    model = getattr(transformers, config["architectures"][0]).from_pretrained(folder, dtype=torch.float32).eval()
    model.set_attn_implementation("eager")
    blank = "<pad>" if name == "ctc" else "<blank>"
    tokenizer = transformers.ParakeetTokenizer(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token=blank if name == "ctc" else "<pad>", unk_token="<unk>"
    )
    extractor = transformers.ParakeetFeatureExtractor(feature_size=config["encoder_config"]["num_mel_bins"])
    processor = transformers.ParakeetProcessor(extractor, tokenizer, blank_token=blank, decoder_type=name)
    inputs = extractor(checkpoints.sound(), sampling_rate=16_000, return_tensors="pt")
    inputs = {key: inputs[key] for key in ("input_features", "attention_mask")}
    with torch.no_grad():
        encoded = model.encoder(**inputs)
        count = int(encoded.attention_mask.sum())
        found = {"features": inputs["input_features"][0].numpy(), "rows": encoded.last_hidden_state[0, :count].numpy()}
        if name == "ctc":
            logits = model.ctc_head(encoded.last_hidden_state)[0, :count]
            tokens = model.generate(**inputs)[0, :count]
            text = processor.decode(tokens, skip_special_tokens=True)
            return found | {"logits": logits.numpy(), "tokens": tokens.numpy(), "text": text}
        predicted = model.decoder(torch.tensor([[config["blank_token_id"]]]))
        projected = model.encoder_projector(encoded.last_hidden_state)
        logits = model.joint(predicted[:, None], projected[:, :, None])[0, :count, 0]
        out = model.generate(**inputs, decoder_start_token_id=config["blank_token_id"])
    text, times = processor.decode(out.sequences, durations=out.durations, skip_special_tokens=True)
    spans = np.array([[each["start"], each["end"]] for each in times[0]])
    found |= {"logits": logits.numpy(), "tokens": out.sequences[0].numpy(), "durations": out.durations[0].numpy()}
    return found | {"text": text[0], "starts": spans[:, 0], "ends": spans[:, 1]}


for name in checkpoints.CONFIGS:
    with tempfile.TemporaryDirectory() as directory:
        arrays = results(name, checkpoints.write_checkpoint(name, Path(directory)))
    features = arrays.pop("features")
    checkpoints.DATA.mkdir(exist_ok=True)
    path = checkpoints.DATA / f"{name}.npz"
    np.savez_compressed(path, **arrays)
    print(f"{name}: {path.stat().st_size:,} bytes, {len(arrays['rows'])} rows, {arrays['text']!r}")
    print(arrays["tokens"].tolist(), arrays.get("durations", np.zeros(0)).tolist(), features.shape)
