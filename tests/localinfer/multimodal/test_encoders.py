"""Every encoder computes the rows that transformers computes, for all of its reference images."""

from pathlib import Path

import numpy as np
import projectors
import pytest

from localinfer.gguf.reader import open_gguf
from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder
from localinfer.multimodal.projector_file import ProjectorFile, open_projector
from localinfer.options import Options

TOLERANCE = 1e-4  # of the largest value


def opened(name: str, folder: Path) -> ProjectorFile:
    """Return the projector file of a reference."""
    model = open_gguf(projectors.language_model(projectors.reference(name), folder))
    return open_projector(projectors.write(name, folder), model)


@pytest.mark.parametrize("name", projectors.NAMES)
def test_rows_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    file = opened(name, tmp_path)
    for case in projectors.reference(name).cases:
        with CompiledEncoder(*file.build(case.grid, Options(threads=2))) as encoder:
            rows = encoder.run(case.patches)
        assert rows.shape == case.rows.shape
        assert np.abs(rows - case.rows).max() <= TOLERANCE * np.abs(case.rows).max()
