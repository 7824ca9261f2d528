"""The notebooks of the documentation, and their execution."""

import os
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from locations import CHECKOUT

NOTEBOOKS = sorted((CHECKOUT / "docs" / "notebooks").glob("*.ipynb"))
INLINE = "module://matplotlib_inline.backend_inline"  # pictures are outputs of the cells
SECONDS = 300  # for a cell: kernels may have to be compiled


def executed(path: Path, **changed: str) -> Any:
    """Run a notebook in a process of its own, with `changed` environment variables, and return it with its outputs.

    They have nothing that differs between two runs of the same program: no times, and no text of the standard error,
    where progress is shown. Raises CellExecutionError if a cell fails.
    """
    book = nbformat.read(path, as_version=4)
    search_path = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": search_path, "MPLBACKEND": INLINE} | changed
    client = nbclient.NotebookClient(
        book, timeout=SECONDS, kernel_name="python3", record_timing=False, coalesce_streams=True
    )
    client.execute(cwd=str(path.parent), env=environment)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    book.metadata.language_info = {"name": "python"}
    return book
