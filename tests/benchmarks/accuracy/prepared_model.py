"""A model prepared for measuring quantizers: a source off all grids, importance matrices, labs, and evaluation texts.

    model = PreparedModel("smollm2", folder)
    _, imatrix = model.calibration_files(chunks=16)
    model.divergence_evaluator(file)["prose"]       # nats for each scored token

The files are created when first needed, and remain in the folder for the next run: 0.9, 3 and 8 GB for SmolLM2, Gemma 3
270M and Qwen2.5-Coder-1.5B with a lab.
"""

import hashlib
from functools import cached_property
from pathlib import Path

from calibration import CALIBRATIONS, KINDS, QUALITY, truncate_to_chunks
from dither import write_dithered
from divergence import DivergenceEvaluator
from quantizers import run_localinfer

from localinfer.hub.resolve import find

CALIBRATION_CHUNKS = 16  # of the importance matrix, where nothing else is said


class PreparedModel:
    """One model with one noise seed. `calibration` is a key of CALIBRATIONS; `eval_chunks` of each text are scored."""

    def __init__(
        self, model: str, folder: Path, *, seed: int = 1, threads: int = 2, calibration: str = "mixed",
        eval_chunks: int = 2,
    ) -> None:  # fmt: skip
        self.seed = seed
        self.name, self.path = Path(model).stem if model.endswith(".gguf") else model, find(model)
        self.folder, self.threads, self.calibration, self.eval_chunks = folder, threads, calibration, eval_chunks

    @cached_property
    def source(self) -> Path:
        """The dithered model in F32."""
        stat = self.path.stat()
        digest = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:8]
        return write_dithered(self.path, self.folder / f"{self.name}-{digest}-{self.seed}.gguf", self.seed)

    @cached_property
    def divergence_evaluator(self) -> DivergenceEvaluator:
        """Measures the divergence of a file from the source on texts that are used for nothing else."""
        texts = {kind: QUALITY / f"{kind}_a.txt" for kind in KINDS}
        return DivergenceEvaluator(
            self.source, texts, chunks=self.eval_chunks, folder=self.folder, threads=self.threads
        )

    def calibration_text(self, chunks: int) -> tuple[int, str]:
        """Return the beginning of the calibration text with up to `chunks` chunks, and how many it has."""
        return truncate_to_chunks(self.path, CALIBRATIONS[self.calibration](), chunks)

    def calibration_files(self, chunks: int) -> tuple[Path, Path]:
        """Return the paths of the calibration text and of the importance matrix."""
        chunks, text = self.calibration_text(chunks)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        stem = self.folder / f"{self.source.stem}-{self.calibration}-{chunks}-{digest}"
        file, imatrix = stem.with_name(f"{stem.name}.txt"), stem.with_name(f"{stem.name}.imatrix")
        if not imatrix.exists():
            file.write_text(text, encoding="utf-8")
            run_localinfer("imatrix", self.source, "-f", file, "--chunks", str(chunks), "-o", imatrix,
                       "--output-format", "gguf", "-t", str(self.threads))  # fmt: skip
        return file, imatrix

    def lab(self, chunks: int, n_ctx: int, layers_at_once: int) -> Path:
        """Return the lab file, measured on the beginning of the calibration text of `chunks` chunks."""
        text, imatrix = self.calibration_files(chunks)
        lab = imatrix.with_name(f"{imatrix.stem}-lab-{n_ctx}-{layers_at_once}.json")
        if not lab.exists():
            source = imatrix.with_name(f"{self.source.stem}-bf16.gguf")  # evaluated faster than F32
            if not source.exists():
                run_localinfer("quantize", self.source, source, "BF16", str(self.threads))
            run_localinfer(
                "lab", source, "-f", text, "--imatrix", imatrix, "-c", str(n_ctx), "-o", lab, "-t", str(self.threads),
                "--layers-at-once", str(layers_at_once),
            )  # fmt: skip
        return lab
