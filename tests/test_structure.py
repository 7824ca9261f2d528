"""The checkout stays small: tests/data has a limit."""

from locations import DATA

LIMIT = 8_000_000  # bytes


def test_data_is_small() -> None:
    """Data is stored only if a test cannot make it: weights follow from names or from a seed
    (tests/models/reference_models.py, tests/models/generated_weights.py)."""
    sizes = {str(path.relative_to(DATA)): path.stat().st_size for path in DATA.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < LIMIT, sorted(sizes, key=lambda name: -sizes[name])[:10]
