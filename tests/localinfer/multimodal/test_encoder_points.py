"""Every encoder has points: their activations are those of transformers and of exact arithmetic, and patches of them
change the output."""

from collections.abc import Callable

import numpy as np
import projectors
import pytest
import sound_projectors
from encoder_layers import expected_layers, sample
from numpy.typing import NDArray

from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.reader import open_gguf
from localinfer.graph.points import kind
from localinfer.graph.recording.points import Point
from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder
from localinfer.multimodal.projector_file import ALL_POINTS, ProjectorFile, open_projector
from localinfer.naive import formulas
from localinfer.options import Options

Floats = NDArray[np.float32]
TOLERANCE = 1e-4  # of the largest value
WITHOUT_LAYERS = ("gemma3nv", "gemma4uv", "gemma4ua")  # of a transformer
WITH_MORE_ROWS = ("parakeet", "qwen2a", "qwen3a")  # in transformers: of silence, and of further windows
FORMULAS = ("dots_ocr", "dots_ocr-large")  # transformers has no such layers


def is_of_sounds(name: str) -> bool:
    return name in sound_projectors.NAMES


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ProjectorFile]:
    def made(name: str) -> ProjectorFile:
        folder = tmp_path_factory.mktemp(name)
        if is_of_sounds(name):
            return sound_projectors.opened(name, folder)
        model = open_gguf(projectors.language_model(projectors.reference(name), folder))
        return open_projector(projectors.write(name, folder), model)

    return made


def compiled(name: str, file: ProjectorFile) -> tuple[CompiledEncoder, Floats, Floats]:
    """Return the encoder with all points, the patches of the first window of a reference input, and the rows of
    transformers."""
    if not is_of_sounds(name):
        case = projectors.reference(name).cases[0]
        return CompiledEncoder(*file.build(case.grid, Options(threads=2), hooks=ALL_POINTS)), case.patches, case.rows
    sound, found = file.sound_encoder, sound_projectors.cases(name)[0]
    _, n_frames = sound.framing.windows(found.spectrogram.n_frames)[0]
    seen = found.spectrogram.features[: sound.framing.window]
    patches = sound.family.prepare(seen, sound.framing.lengths(n_frames))
    return CompiledEncoder(*sound.build(n_frames, Options(threads=2), ALL_POINTS)), patches, found.rows


def captured(name: str, file: ProjectorFile) -> tuple[dict[str, Floats], Floats]:
    """Return the activations at all points, and the rows of transformers."""
    found: dict[str, Floats] = {}
    encoder, patches, expected = compiled(name, file)
    with encoder:
        rows = encoder.run(
            patches, on_point=lambda point: found.update({point.name: point.read(slice(0, point.rows.capacity))})
        )
    np.testing.assert_array_equal(found["a.output" if is_of_sounds(name) else "v.output"], rows)
    return found, expected


@pytest.mark.parametrize("name", [*projectors.NAMES, *sound_projectors.NAMES])
def test_activations_are_those_of_transformers(name: str, opened: Callable[[str], ProjectorFile]) -> None:
    points, expected = captured(name, opened(name))
    rows = points["a.output" if is_of_sounds(name) else "v.output"]
    assert np.abs(rows - expected[: len(rows)]).max() <= TOLERANCE * np.abs(expected).max()
    layers = expected_layers(name)
    assert bool(layers) != (name in (*WITHOUT_LAYERS, *FORMULAS))
    read = {each.removesuffix(".resid_post") for each in points if each.endswith(".resid_post")}
    assert layers.keys() >= read or name in (*WITHOUT_LAYERS, *FORMULAS)
    for layer in read & layers.keys():
        compared = slice(1) if name in WITH_MORE_ROWS else slice(None)
        actual, values = sample(points[f"{layer}.resid_post"])[compared], layers[layer][compared]
        assert np.abs(actual - values).max() <= TOLERANCE * np.abs(values).max(), layer
    in_layers = {kind(each) for each in points if "blk." in each}
    if name not in WITHOUT_LAYERS:
        assert in_layers >= {"resid_pre", "resid_post", "attn_q", "attn_k", "attn_v", "attn_heads", "ffn_act"}


def heads_of(x: Floats, n: int) -> NDArray[np.float64]:
    return formulas.split_heads(x.astype(np.float64), n)


# Plain layers, rotary positions, layer scales, gates, padded matrices, class rows, sounds.
@pytest.mark.parametrize(
    ("name", "prefix"),
    [("gemma3", "v.blk.1."), ("qwen2vl", "v.blk.1."), ("internvl", "v.blk.2."), ("pixtral", "v.blk.0."),
     ("llava-next", "v.blk.0."), ("deepseekocr", "v.blk.0."), ("ultravox", "a.blk.1."), ("qwen2a", "a.blk.0.")],
)  # fmt: skip
def test_points_of_a_layer_follow_from_each_other(
    name: str, prefix: str, opened: Callable[[str], ProjectorFile]
) -> None:
    """Each point of a layer is what exact arithmetic makes of the points before it."""
    file = opened(name)
    points, _ = captured(name, file)
    at = {each.removeprefix(prefix): values.astype(np.float64) for each, values in points.items()}

    def tensor(each: str) -> NDArray[np.float64] | float:
        found = file.f.tensors.get(f"{prefix}{each}")
        return dequantize(found).reshape(found.shape).astype(np.float64) if found else 0.0

    def product(each: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
        weight = tensor(f"{each}.weight")
        assert not isinstance(weight, float)
        return x @ weight.T + tensor(f"{each}.bias")

    def scaled(each: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return x * scale if not isinstance(scale := tensor(f"{each}.weight"), float) else x

    count = file.f.get(f"clip.{'audio' if is_of_sounds(name) else 'vision'}.attention.head_count", int)
    q, k, v = (heads_of(points[f"{prefix}{each}"], count) for each in ("attn_q_rope", "attn_k_rope", "attn_v"))
    attended = formulas.softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[2])) @ v
    expected = {
        "resid_mid": at["resid_pre"] + scaled("ls1", at["attn_out"]),
        "attn_heads": formulas.join_heads(attended), "attn_out": product("attn_out", at["attn_heads"]),
        "ffn_up": product("ffn_up", at["ln2"]), "ffn_down": product("ffn_down", at["ffn_act"]),
        "resid_post": at["resid_mid"] + scaled("ls2", at["ffn_down"]),
    }  # fmt: skip
    for each, values in expected.items():
        assert np.abs(at[each] - values).max() <= TOLERANCE * np.abs(values).max(), each
    assert f"{prefix}attn_q.weight" not in file.f.tensors or np.abs(
        at["attn_q"] - product("attn_q", at["ln1"])
    ).max() <= TOLERANCE * np.abs(at["attn_q"]).max()


@pytest.mark.parametrize("name", ["gemma3nv", "gemma4v", "granite_speech_plus", "idefics3", "minicpm-v", "qwen3a"])
def test_changed_activations_change_the_output(name: str, opened: Callable[[str], ProjectorFile]) -> None:
    """Each point has an effect of its own, and only while it is changed."""
    encoder, patches, _ = compiled(name, opened(name))
    first = "a.blk.0" if is_of_sounds(name) else "v.blk.0"
    names, changed = list[str](), ""

    def change(point: Point) -> None:
        names.append(point.name)
        if point.name == changed:
            every = slice(0, point.rows.capacity)
            point.write(every, -point.read(every))

    with encoder:
        rows = encoder.run(patches, on_point=change)
        for each in {name for name in names if name.startswith(first) or "blk" not in name}:
            changed = each
            assert np.abs(encoder.run(patches, on_point=change) - rows).max() > 1e-4 * np.abs(rows).max(), each
        changed = ""
        np.testing.assert_array_equal(encoder.run(patches, on_point=change), rows)
