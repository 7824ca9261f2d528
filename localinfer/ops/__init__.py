"""The kernels of a forward pass, apart from the matrix products: compiled on demand, never imported at run time.

Every function here makes a kernel body for `quant.jit.kernel.Kernel`. `tile` is 0 for a few tokens, else the tokens of
a tile: it chooses the layout in which quantized activations are left for the next matrix product
(`quant.products.activations`). Arguments are addresses and counts; `tokens` is the address of the number of tokens.
"""
