"""The projector: results that are kept, tiles, text around rows, and refusals."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import projectors
import pytest
from made_images import SIZES, made_image
from media_rows import enclosed, lines

from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.multimodal import projector as projector_module
from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder
from localinfer.multimodal.encoders import hunyuanvl
from localinfer.multimodal.media import Image, Sound, digest_of
from localinfer.multimodal.preprocessing.encoder_input import OVERVIEW, EncoderInput, tile_name
from localinfer.multimodal.projector import Projector
from localinfer.multimodal.projector_file import open_projector
from localinfer.options import Options
from localinfer.runtime.media.media_embeddings import MediaEmbeddings


class ReferenceTiles:
    """Stands for a processor: makes the reference image an overview and tiles, which are multiples of it."""

    def __init__(self, name: str, tiles: Sequence[str] = ()) -> None:
        self.case, self.names, self.calls = projectors.reference(name).cases[0], [OVERVIEW, *tiles], 0

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        assert (height, width) == (4, 5)
        return [self.case.grid] * len(self.names)

    def __call__(self, image: Image) -> list[EncoderInput]:
        self.calls += 1
        patches, first = self.case.patches, float(image.pixels[0, 0, 0])
        return [EncoderInput(patches * (first + i), self.case.grid, name) for i, name in enumerate(self.names)]


def image(value: int) -> Image:
    return Image(np.full((4, 5, 3), value, np.uint8))


def open_reference(name: str, folder: Path, tiles: Sequence[str] = ()) -> tuple[Projector, ReferenceTiles]:
    model = open_gguf(projectors.language_model(projectors.reference(name), folder))
    processor = ReferenceTiles(name, tiles)
    file = open_projector(projectors.write(name, folder), model)
    return Projector(file, Options(threads=2), processor=processor), processor


def rows_of(parts: Sequence[str | MediaEmbeddings]) -> list[MediaEmbeddings]:
    return [part for part in parts if isinstance(part, MediaEmbeddings)]


def test_gemma3_has_tokens_around_rows_that_attend_to_each_other(tmp_path: Path) -> None:
    projector, processor = open_reference("gemma3", tmp_path)
    begin, rows, end = projector.encode(image(1))
    assert (begin, end) == ("\n\n<start_of_image>", "<end_of_image>\n\n")
    assert isinstance(rows, MediaEmbeddings)
    assert rows.bidirectional
    assert rows.n_positions == len(rows) == 16
    assert projector.layout(image(1)) == [begin, 16, end]
    assert np.abs(rows.rows - processor.case.rows).max() < 1e-3


@pytest.mark.parametrize("per_layer_length", [0, 32])
def test_gemma4_is_bidirectional_in_models_without_embeddings_of_layers(per_layer_length: int, tmp_path: Path) -> None:
    changes = {"embedding_length_per_layer_input": per_layer_length}
    model = open_gguf(projectors.language_model(projectors.reference("gemma4v"), tmp_path, **changes))
    file = open_projector(projectors.write("gemma4v", tmp_path), model)
    wide = Image(np.full((40, 100, 3), 9, np.uint8))
    projector = Projector(file, Options(threads=2, image_max_tokens=8))
    begin, rows, end = projector.encode(wide)
    assert (begin, end) == ("<|image>", "<image|>")
    assert isinstance(rows, MediaEmbeddings)
    assert rows.bidirectional == (per_layer_length == 0)
    assert [begin, len(rows), end] == projector.layout(wide) == ["<|image>", 4, "<image|>"]


def test_gemma3n_reads_images_though_its_file_has_an_encoder_of_sounds(tmp_path: Path) -> None:
    model = open_gguf(projectors.language_model(projectors.reference("gemma3nv"), tmp_path))
    file = open_projector(projectors.write("gemma3nv", tmp_path), model)
    assert file.f.metadata["clip.audio.projector_type"] == "gemma3na"
    projector, some = Projector(file, Options(threads=2)), Image(np.full((30, 50, 3), 200, np.uint8))
    assert projector.kinds == {"image"}
    begin, rows, end = projector.encode(some)
    assert (begin, end) == ("\n\n<start_of_image>", "<end_of_image>\n\n")
    assert isinstance(rows, MediaEmbeddings)
    assert not rows.bidirectional
    assert projector.layout(some) == [begin, 256, end]
    with pytest.raises(UnsupportedError, match="gemma3nv does not encode sounds"):
        projector.encode(Sound(np.zeros(100, np.float32)))


def test_idefics3_names_tiles_and_puts_the_overview_last(tmp_path: Path) -> None:
    tiles = [tile_name(row, column) for row in (1, 2) for column in (1, 2)]
    projector, _ = open_reference("idefics3", tmp_path, tiles)
    parts = projector.encode(image(1))
    assert sum(len(rows) for rows in rows_of(parts)) == 45
    assert projector.layout(image(1)) == [part if isinstance(part, str) else len(part) for part in parts]
    text = "".join(part if isinstance(part, str) else "*" for part in parts)
    around = "<fake_token_around_image>"
    rows = [f"{around}<row_{row}_col_1>*{around}<row_{row}_col_2>*\n" for row in (1, 2)]
    assert text == f"{rows[0]}{rows[1]}\n{around}<global-img>*{around}"


def test_nemotron_puts_the_whole_image_behind_its_tiles(tmp_path: Path) -> None:
    projector, processor = open_reference("nemotron-vl", tmp_path, [tile_name(1, 1), tile_name(1, 2)])
    begin, *rows, end = projector.encode(image(1))
    assert (begin, end, len(rows)) == ("<img>", "</img>", 3)
    overview = rows_of(rows)[-1].rows
    assert np.abs(overview - processor.case.rows).max() <= 1e-4 * np.abs(processor.case.rows).max()


def test_minicpm_puts_slices_in_rows_behind_the_image(tmp_path: Path) -> None:
    tiles = [tile_name(row, column) for row in (1, 2) for column in (1, 2)]
    projector, processor = open_reference("minicpm-v", tmp_path, tiles)
    parts = projector.encode(image(1))
    assert [len(rows) for rows in rows_of(parts)] == [len(processor.case.rows)] * 5
    text = "".join(part if isinstance(part, str) else "*" for part in parts)
    assert text == "<image>*</image><slice>*</slice><slice>*</slice>\n<slice>*</slice><slice>*</slice>"


def test_a_small_image_of_idefics3_is_the_overview_alone(tmp_path: Path) -> None:
    projector, _ = open_reference("idefics3", tmp_path)
    begin, _, end = projector.encode(image(1))
    assert (begin, end) == ("<fake_token_around_image><global-img>", "<fake_token_around_image>")


@pytest.mark.parametrize("name", [name for name in projectors.NAMES if projectors.reference(name).images])
def test_whole_images_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = projectors.reference(name)
    file = open_projector(projectors.write(name, tmp_path), open_gguf(projectors.language_model(reference, tmp_path)))
    projector = Projector(file, Options(threads=2))
    for number, expected in reference.images.items():
        parts = projector.encode(Image(made_image(number)))
        assert projector.layout(Image(made_image(number))) == [
            part if isinstance(part, str) else len(part) for part in parts
        ]
        rows = np.concatenate([each.rows for each in rows_of(parts)])
        assert len(rows) == expected.n_rows, SIZES[number]
        difference = np.abs(rows[:: projectors.EVERY] - expected.some_rows)
        assert difference.max() <= 1e-4 * np.abs(expected.some_rows).max(), SIZES[number]


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("exaone4_5", "<vision>", "</vision>"),
        ("kimik25", "<|media_begin|>image<|media_content|>", "<|media_end|>"),
        ("kimivl", "<|media_start|>image<|media_content|>", "<|media_end|>"),
        ("minicpm-v4.6", "<image>", "</image>"),
        ("minimax_m3", "]<]start of image[>[", "]<]end of image[>["),
        ("muse-glimmer", "<|image_start|>", "<|image_end|>"),
        ("qwen4exp", "<|vision_start|>", "<|vision_end|>"),
    ],
)
def test_text_around_the_rows_of_an_image(name: str, begin: str, end: str, tmp_path: Path) -> None:
    projector, processor = open_reference(name, tmp_path)
    assert projector.layout(image(1)) == [begin, len(processor.case.rows), end]


def test_the_same_image_is_encoded_once(tmp_path: Path) -> None:
    projector, processor = open_reference("gemma3", tmp_path)
    first, second = projector.encode(image(1)), projector.encode(image(1))
    assert processor.calls == 1
    assert rows_of(first)[0] is rows_of(second)[0]


def test_equal_rows_have_equal_digests_and_others_not(tmp_path: Path) -> None:
    one, _ = open_reference("gemma3", tmp_path)
    digests = [rows_of(one.encode(image(value)))[0].digest for value in (1, 2)]
    other, _ = open_reference("gemma3", tmp_path)
    assert rows_of(other.encode(image(1)))[0].digest == digests[0] != digests[1]


def test_kept_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector_module, "MAX_KEPT_BYTES", 2 * 16 * 64 * 4)  # the rows of two images
    projector, processor = open_reference("gemma3", tmp_path)
    for value in (1, 2, 1, 3, 1, 2):  # 3 displaces 2, which was used before 1
        projector.encode(image(value))
    assert processor.calls == 4


def test_rows_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    model = open_gguf(projectors.language_model(projectors.reference("gemma3"), tmp_path))
    file, case = open_projector(projectors.write("gemma3", tmp_path), model), projectors.reference("gemma3").cases[0]
    results = []
    for threads in (1, 2, 3):
        with CompiledEncoder(*file.build(case.grid, Options(threads=threads))) as encoder:
            results += [encoder.run(case.patches), encoder.run(case.patches)]
    assert all(np.array_equal(rows, results[0]) for rows in results)


def test_a_file_that_is_read_into_memory_gives_the_same_rows(tmp_path: Path) -> None:
    mapped, processor = open_reference("gemma3", tmp_path)
    read = Projector(mapped._file, replace(mapped._options, mmap=False), processor=processor)
    assert rows_of(read.encode(image(1)))[0].digest == rows_of(mapped.encode(image(1)))[0].digest


def test_sounds_and_closed_projectors_are_refused(tmp_path: Path) -> None:
    projector, _ = open_reference("gemma3", tmp_path)
    assert projector.kinds == {"image"}
    with pytest.raises(UnsupportedError, match="gemma3 does not encode sounds"):
        projector.encode(Sound(np.zeros(16, np.float32)))
    projector.close()
    with pytest.raises(LocalInferError, match="the projector is closed"):
        projector.encode(image(1))


def test_the_projector_of_another_model_is_refused(tmp_path: Path) -> None:
    path, reference = projectors.write("gemma3", tmp_path), projectors.reference("gemma3")
    other_size = open_gguf(projectors.language_model(reference, tmp_path, embedding_length=128))
    with pytest.raises(UsageError, match=r"projection_dim: is 64; the embedding length of model\.gguf is 128"):
        open_projector(path, other_size)
    other = open_gguf(projectors.language_model(replace(reference, architecture="qwen2"), tmp_path))
    with pytest.raises(UsageError, match="gemma3 belongs to gemma3 models, not to qwen2"):
        open_projector(path, other)
    with pytest.raises(UsageError, match=r"general\.architecture: is 'qwen2'; the file of a projector has 'clip'"):
        open_projector(other.path, other)


def test_rows_in_two_dimensions_need_a_model_with_positions_in_two_dimensions(tmp_path: Path) -> None:
    text_only = open_gguf(projectors.language_model(projectors.reference("glm4v"), tmp_path, has_mrope=False))
    with pytest.raises(UsageError, match=r"glm4\.rope\.dimension_sections: is missing: glm4v needs"):
        open_projector(projectors.write("glm4v", tmp_path), text_only)


def test_deepseek_ocr_weaves_the_lines_of_tiles(tmp_path: Path) -> None:
    """The order is that of published code, which views the rows as arrays of lines."""
    names = [tile_name(row, column) for row in (1, 2) for column in (1, 2, 3)]
    projector, processor = open_reference("deepseekocr", tmp_path, names)
    woven, end = projector.encode(image(1))
    assert projector.layout(image(1)) == [len(woven), end] == [4 * 7 + 2 * 3 + 1, "\n"]
    assert isinstance(woven, MediaEmbeddings)
    inputs = {each.name: each.patches for each in processor(image(1))}
    model = open_gguf(projectors.language_model(projectors.reference("deepseekocr"), tmp_path))
    file = open_projector(projectors.write("deepseekocr", tmp_path), model)
    with CompiledEncoder(*file.build(processor.case.grid, Options(threads=2))) as encoder:
        rows = {name: encoder.run(patches) for name, patches in inputs.items()}
    *_, newline, separator = rows[OVERVIEW]
    local = np.stack([rows[name][:-2] for name in names])  # (tiles, rows, n)
    n = local.shape[2]
    lines = local.reshape(2, 3, 2, 2, n).transpose(0, 2, 1, 3, 4).reshape(4, 6, n)
    whole = rows[OVERVIEW][:-2].reshape(2, 2, n)
    expected = [np.concatenate([each, np.tile(newline, (len(each), 1, 1))], 1) for each in (lines, whole)]
    assert np.array_equal(woven.rows, np.concatenate([*(each.reshape(-1, n) for each in expected), separator[None]]))
    assert woven.n_positions == len(woven)
    alone, _ = open_reference("deepseekocr", tmp_path)
    rows_alone = rows_of(alone.encode(image(1)))[0]
    assert np.array_equal(rows_alone.rows, woven.rows[28:])


def test_deepseek_ocr_2_puts_the_rows_of_tiles_before_those_of_the_whole_image(tmp_path: Path) -> None:
    names = [tile_name(row, column) for row in (1, 2) for column in (1, 2)]
    projector, processor = open_reference("deepseekocr2", tmp_path, names)
    rows, end = projector.encode(image(1))
    assert projector.layout(image(1)) == [len(rows), end] == [5 * 144 + 1, "\n"]
    assert isinstance(rows, MediaEmbeddings)
    inputs = {each.name: each.patches for each in processor(image(1))}
    file = open_projector(tmp_path / "mmproj-deepseekocr2.gguf", open_gguf(tmp_path / "model.gguf"))
    with CompiledEncoder(*file.build(processor.case.grid, Options(threads=2))) as encoder:
        found = [encoder.run(inputs[name]) for name in (*names, OVERVIEW)]
    assert np.array_equal(rows.rows, np.concatenate([*(each[:-1] for each in found[:-1]), found[-1]]))
    assert file.build((48, 48), Options())[1].rows.capacity == 145  # a tile
    assert file.build((64, 64), Options())[1].rows.capacity == 257  # an image


def test_hunyuan_has_places_in_lines(tmp_path: Path) -> None:
    """Other places make other digests, though the rows may be equal."""
    projector, processor = open_reference("hunyuanvl", tmp_path)
    begin, rows, end = projector.encode(image(1))
    assert (begin, end) == ("<｜hy_place▁holder▁no▁100｜>", "<｜hy_place▁holder▁no▁101｜>")
    assert isinstance(rows, MediaEmbeddings)
    assert processor.case.grid == (6, 6)
    assert rows.coordinates is not None
    assert np.array_equal(rows.coordinates, lines(3, 3))
    assert rows.n_positions == len(rows) == 3 * 4 + 2
    assert rows.digest != digest_of(rows.rows)
    assert projector.layout(image(1)) == [begin, 14, end]
    assert np.array_equal(hunyuanvl.coordinates((4, 10), 2 * 6 + 2), lines(2, 5))
    assert np.array_equal(hunyuanvl.coordinates((4, 6), 4 * 7 + 2), lines(4, 6))


def test_rows_of_an_image_of_cogvlm_share_a_position(tmp_path: Path) -> None:
    projector, processor = open_reference("cogvlm", tmp_path)
    [rows] = projector.encode(image(1))
    assert isinstance(rows, MediaEmbeddings)
    assert processor.case.grid == (6, 6)
    assert rows.coordinates is not None
    assert np.array_equal(rows.coordinates, enclosed(36))
    assert rows.n_positions == 3
    assert rows.digest != digest_of(rows.rows)
    assert projector.layout(image(1)) == [38]
