"""The JIT compiler: kernels written as inlined numba functions are compiled to machine code for this CPU, cached and
loaded.
"""
