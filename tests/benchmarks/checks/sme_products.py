"""Compares the products of all block formats on an emulated Apple M4 with those of this CPU, to the bit.

    tests/arm64/setup.sh FOLDER
    python tests/benchmarks/checks/sme_products.py FOLDER               # all formats
    python tests/benchmarks/checks/sme_products.py FOLDER Q4_K Q6_K

The kernels for many tokens use SME2, those for few tokens NEON. Both are compared, for both precisions and for shapes
that fill tiles, records and superblocks only partly. A difference is a failure.
"""

import sys
import tempfile
from itertools import cycle, product
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

from emulation import Products, differing_products  # noqa: E402
from kernels import NUMBERS  # noqa: E402

from quant.ggml import TYPES  # noqa: E402

FLOATS = {"F32", "F16", "BF16"}
SHAPES = [(67, 9, 33), (32, 2, 32), (3, 1, 5), (17, 40, 7), (35, 18, 70)]  # rows, blocks of columns, tokens


def main() -> None:
    """Print the products that differ, and fail if there are any."""
    python, names = Path(sys.argv[1]).resolve() / "python", sys.argv[2:] or sorted(set(NUMBERS) - FLOATS)
    products: Products = {
        (name, passes): (n_out, blocks * max(32, TYPES[NUMBERS[name]].elements), tokens)
        for (name, passes), (n_out, blocks, tokens) in zip(product(names, (1, 2)), cycle(SHAPES), strict=False)
    }
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for function in ("matmul", "matvec"):
            differing = differing_products(python, "apple-m4", function, products, Path(folder))
            print(f"{function}: {len(products) - len(differing)} of {len(products)} products are equal to the bit")
            found += [f"{function} {each}" for each in differing]
    if found:
        sys.exit(f"other bits: {', '.join(found)}")


if __name__ == "__main__":
    main()
