"""Compilers get variants of one function, and all kernels are compiled."""

from quant.jit.compiler_pool import KernelQueue
from quant.jit.kernel import Kernel


def kernels(functions: str) -> list[Kernel]:
    """Return a variant of the named function for each letter."""
    return [Kernel("module", name, constants=(("n", number),)) for number, name in enumerate(functions)]


def test_compiler_gets_all_variants_of_a_function() -> None:
    queue = KernelQueue(kernels("abab"))
    first, second = queue.take(None), queue.take(None)
    assert first
    assert second
    assert [first.function, second.function] == ["a", "b"]
    assert [queue.take(second), queue.take(first)] == kernels("abab")[:1:-1]
    assert queue.take(first) is None


def test_idle_compiler_helps_with_the_function_that_fewest_compilers_have() -> None:
    queue = KernelQueue(kernels("aaabb"))
    previous = [queue.take(None), queue.take(None)]
    assert queue.take(previous[1]) == kernels("aaabb")[4]
    assert queue.take(previous[1]) == kernels("aaabb")[1]
    assert queue.take(None) == kernels("aaabb")[2]
    assert queue.take(previous[0]) is None
