"""Every sound encoder computes the rows that transformers computes, for all of its reference sounds."""

from pathlib import Path

import numpy as np
import pytest
import sound_projectors

from localinfer.multimodal.media import Sound
from localinfer.multimodal.projector import Projector
from localinfer.options import Options
from localinfer.runtime.media.media_embeddings import MediaEmbeddings

TOLERANCE = 1e-4  # of the largest value


@pytest.mark.parametrize("name", sound_projectors.NAMES)
def test_rows_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    file = sound_projectors.opened(name, tmp_path)
    for case in sound_projectors.cases(name):
        projector = Projector(file, Options(threads=2), sound_processor=sound_projectors.ReferenceProcessor(case))
        sound = Sound(np.zeros(1, np.float32))
        parts = [part for part in projector.encode(sound) if isinstance(part, MediaEmbeddings)]
        rows = np.concatenate([part.rows for part in parts])
        assert rows.shape == case.rows.shape
        assert len(rows) == sum(part for part in projector.layout(sound) if isinstance(part, int))
        assert np.abs(rows - case.rows).max() <= TOLERANCE * np.abs(case.rows).max()
