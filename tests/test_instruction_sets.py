"""The kernel tests once more for every other instruction set that this CPU can run, in a process of its own each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quant import cpu

NEEDS = {
    "icelake-client": ("avx512vnni", "avx512vl"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512vl"),
    "haswell": ("avx2", "fma", "f16c"),
    "x86-64-v2": ("sse4.2",),
}


@pytest.mark.parametrize("name", NEEDS)
def test_kernels_on(name: str) -> None:
    missing = [feature for feature in NEEDS[name] if not cpu.host_features().get(feature)]
    if missing:
        pytest.skip(f"this CPU has no {', '.join(missing)}")
    environment = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ""}
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(here / "test_kernels.py")]
    result = subprocess.run(command, env=environment, cwd=here.parent, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    assert "passed" in result.stdout


def test_a_named_cpu_gets_its_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, isa in {"haswell": "avx2", "x86-64-v2": "generic", "no-such-cpu": "generic"}.items():
        cpu.target.cache_clear()
        monkeypatch.setenv("NUMBA_CPU_NAME", name)
        assert cpu.target().isa == isa
    cpu.target.cache_clear()
