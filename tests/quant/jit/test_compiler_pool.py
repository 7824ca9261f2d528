"""Compilers get variants of one function, and all kernels are compiled."""

from quant.jit.compiler_pool import KernelQueue
from quant.jit.kernel import Kernel


def kernels(functions: str) -> list[Kernel]:
    """Return a variant of the named function for each letter."""
    return [Kernel("module", name, constants=(("n", number),)) for number, name in enumerate(functions)]


def test_compiler_gets_all_variants_of_a_function() -> None:
    queue = KernelQueue(kernels("abab"))
    first, second = queue.take([]), queue.take([])
    assert first
    assert second
    assert [first.function, second.function] == ["a", "b"]
    assert [queue.take([second]), queue.take([first])] == kernels("abab")[:1:-1]
    assert queue.take([first]) is None


def test_compiler_remembers_all_of_its_functions() -> None:
    queue = KernelQueue(kernels("abc"))
    compiled = [*kernels("cx")]
    assert queue.take(compiled) == kernels("abc")[2]


def test_idle_compiler_helps_with_the_function_that_fewest_compilers_have() -> None:
    queue = KernelQueue(kernels("aaabb"))
    first, second = queue.take([]), queue.take([])
    assert first
    assert second
    assert queue.take([second]) == kernels("aaabb")[4]
    assert queue.take([second]) == kernels("aaabb")[1]
    assert queue.take([]) == kernels("aaabb")[2]
    assert queue.take([first]) is None
