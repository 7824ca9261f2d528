"""Compares the codebooks of the IQ formats with those of the gguf package."""

import numpy as np
import pytest
from make_codebooks import TABLES, table

from quant.packing.codebooks import load_codebook


@pytest.mark.parametrize("name", TABLES)
def test_codebooks_are_those_of_the_gguf_package(name: str) -> None:
    np.testing.assert_array_equal(load_codebook(name.lower()), table(name))
