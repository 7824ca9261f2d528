"""The block formats, one module each, named as ggml names the type, and `floats` for F32, F16 and BF16.

Each module has the format's specification `SPEC` and `make_row_encoder(effort)`. `quant.packing.format_spec.FormatSpec`
documents the functions `codes64`, `scales` and so on.
"""
