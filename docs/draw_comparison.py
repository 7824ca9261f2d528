"""Draw docs/images/comparison.svg from docs/data/comparison.json: the speed of localinfer relative to llama.cpp.

    python docs/draw_comparison.py [OUT]

Needs matplotlib. The bars are ratios, and the dashed line is llama.cpp; labels show the tokens per second
of both programs.
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parent
PANELS = {"prefill": "Prefill (512 tokens)", "decode": "Decode (128 tokens)"}


def main(out: Path) -> None:
    data = json.loads((DOCS / "data" / "comparison.json").read_text())
    mpl.rcParams["svg.hashsalt"] = "localinfer"  # the same bytes in every run
    mpl.rcParams["svg.fonttype"] = "none"
    figure, panels = plt.subplots(1, len(PANELS), figsize=(11, 2.8), layout="constrained")
    for axes, (name, title) in zip(panels, PANELS.items(), strict=True):
        rows = data[name]
        bars = axes.barh(range(len(rows)), [ratio for *_, ratio in rows], height=0.6, color="#2f6f9f")
        labels = [f"{ratio:.2f}x  ({ours:g} : {theirs:g} tokens/s)" for _, ours, theirs, ratio in rows]
        axes.bar_label(bars, labels, padding=4, fontsize=8)
        axes.axvline(1, color="#888888", linewidth=1, linestyle="--")
        axes.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=9)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.6 * max(ratio for *_, ratio in rows))
        axes.set_title(f"{title}, relative to llama.cpp", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "images" / "comparison.svg")
