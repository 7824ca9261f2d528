"""The tables of the IQ formats, against those that the gguf package has."""

import numpy as np
import pytest
from make_codebooks import TABLES, table

from quant.codes.codebooks import codebook


@pytest.mark.parametrize("name", TABLES)
def test_codebooks_are_those_of_the_gguf_package(name: str) -> None:
    np.testing.assert_array_equal(codebook(name.lower()), table(name))
