"""Matrix products: quantization of activations, and kernels for few tokens (matvec) and for many tokens (matmul)."""
