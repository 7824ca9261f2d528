"""Views of a run: small objects with arrays, which notebooks and terminals show as tables."""
