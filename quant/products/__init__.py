"""Matrix products: activations as what instructions multiply, and kernels for few and for many tokens."""
