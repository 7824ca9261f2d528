"""Configuration of the Sphinx documentation: `python -m sphinx -W docs build/docs`."""

from localinfer.version import VERSION

project = "localinfer"
author = "localinfer authors"
version = release = VERSION
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "localinfer"
html_static_path: list[str] = []
autodoc_typehints = "description"
autodoc_member_order = "bysource"
suppress_warnings = ["myst.xref_missing"]  # links to source files, which the repository's web page resolves
linkcheck_ignore = [r"http://localhost.*", r"https://HOST.*", r"https://example\.org.*", r"\.\./.*"]
