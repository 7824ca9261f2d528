"""The command `localinfer doctor`: check this machine and the installation.

Each check is independent. If one fails, its line shows the error and the others still run.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from cli.terminal import screen
from localinfer.version import VERSION

if TYPE_CHECKING:
    from localinfer.evaluation.self_test import SelfTest

Fact: TypeAlias = "str | int | float | bool | list[str] | Mapping[str, Fact] | None"

PACKAGES = ("numpy", "numba", "llvmlite")
TRANSLATED = "this Python is for Intel CPUs, and macOS translates it; Python for arm64 is several times as fast"
MIN_MEMORY = 256 << 20  # bytes; the need of the smallest models


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check: `text` for people, `facts` for JSON, and `trouble` if something is wrong."""

    text: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    trouble: str = ""


def doctor_command(
    tests_kernels: Annotated[
        bool, typer.Option("--self-test", help="Also compare the kernels of this machine with float64.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check this machine and the installation.

    The command compiles and runs a few kernels. The exit code is 0 if models can run on this machine, otherwise 1.

    With `--self-test`, it also runs a small model with random weights: its logits must be those of float64 within the
    rounding of activations, they must not depend on the number of threads, and a new process must load the same kernels
    from the cache. It needs no network, and takes about five seconds if its kernels are cached. Paste the output into a
    bug report.

    \b
    Examples:
      localinfer doctor
      localinfer doctor --self-test
      localinfer doctor --json > report.json
    """
    status = screen.Status()
    findings: dict[str, CheckResult] = {}
    for name, check in CHECKS.items():
        with status.busy(f"checking {name}"):
            findings[name] = run_check(check)
    if tests_kernels:
        findings |= run_self_test(status)
    broken = [name for name, finding in findings.items() if finding.trouble and name not in OPTIONAL_CHECKS]
    if as_json:
        facts = {name.lower().replace(" ", "_"): as_object(finding) for name, finding in findings.items()}
        screen.write(json.dumps({"can_run": not broken, **facts}, indent=1) + "\n")
    else:
        screen.write("".join(f"{name:13} {result_line(finding)}\n" for name, finding in findings.items()))
        verdict = (
            f"models cannot run on this machine: {', '.join(broken)}" if broken else "models can run on this machine"
        )
        screen.write(f"\n{verdict}\n")
    if broken:
        raise typer.Exit(1)


def run_check(check: Callable[[], CheckResult]) -> CheckResult:
    """Run a check and return its result, also if it raises an error."""
    try:
        return check()
    except Exception as error:
        return failed_check(error)


def failed_check(error: Exception) -> CheckResult:
    return CheckResult("check failed", trouble=f"{type(error).__name__}: {error}")


def result_line(finding: CheckResult) -> str:
    return screen.one_line(": ".join(filter(None, [finding.text, finding.trouble])))


def as_object(finding: CheckResult) -> Mapping[str, Fact]:
    return {**finding.facts, **({"trouble": finding.trouble} if finding.trouble else {})}


# ---- checks ------------------------------------------------------------------------------------------------


def check_program() -> CheckResult:
    here = str(Path(__file__).parents[2])
    return CheckResult(f"localinfer {VERSION} in {here}", {"version": VERSION, "path": here})


def check_python() -> CheckResult:
    number = platform.python_version()
    return CheckResult(
        f"{number}, {sys.executable or 'unknown executable'}", {"version": number, "path": sys.executable}
    )


def check_packages() -> CheckResult:
    """Return the versions of the packages that compile kernels. The check `speed` imports them."""
    found = {name: version(name) for name in PACKAGES}
    return CheckResult(", ".join(f"{name} {number}" for name, number in found.items()), dict(found))


def check_system() -> CheckResult:
    found = {"system": platform.system(), "release": platform.release(), "machine": platform.machine()}
    return CheckResult(" ".join(found.values()), dict(found))


def check_cpu() -> CheckResult:
    """Return the CPU, the instruction set that kernels are compiled for, and why it was chosen."""
    import llvmlite.binding as llvm

    from localinfer.machine import resources
    from quant.jit.cpu import process_triple, target, used_features

    name, llvm_name, isa, features = resources.cpu_name(), llvm.get_host_cpu_name(), target().isa, used_features()
    forced = os.environ.get("NUMBA_CPU_NAME", "")
    reason = f"set by NUMBA_CPU_NAME={forced}" if forced else f"the best that LLVM reports for {llvm_name}"
    facts: dict[str, Fact] = {
        "name": name, "llvm_name": llvm_name, "instruction_set": isa, "numba_cpu_name": forced or None,
        "features": features, "triple": process_triple(), "is_translated": resources.is_translated(),
    }  # fmt: skip
    reported = " ".join(features) or "not reported by LLVM"
    text = f"{name or 'unknown'}; instructions: {isa}, {reason}; features: {reported}"
    return CheckResult(text + f"; {TRANSLATED}" * resources.is_translated(), facts)


def check_threads() -> CheckResult:
    from localinfer.machine import resources, thread_priority

    steps, count = resources.thread_count_steps(), resources.default_threads()
    text = f"{count} by default; CPUs: {', '.join(f'{number} {step}' for step, number in steps.items())}"
    facts: dict[str, Fact] = {"default": count, "cpus": dict(steps)}
    if sys.platform in ("darwin", "win32"):
        facts["prefer_performance_cores"] = accepted = thread_priority.prefer_performance_cores()
        text += f"; the request for performance cores is {'accepted' if accepted else 'refused'}"
    return CheckResult(text, facts)


def check_memory() -> CheckResult:
    from localinfer.machine import resources

    free = resources.available_memory()
    trouble = f"less than {screen.mib(MIN_MEMORY)}, the need of small models" if free < MIN_MEMORY else ""
    return CheckResult(f"{free / 2**30:.1f} GiB available", {"available_bytes": free}, trouble)


def check_speed() -> CheckResult:
    """Compile, load and run kernels on threads, and measure their peak speed."""
    from localinfer.evaluation.roofline import measure
    from localinfer.machine import resources

    found = measure(resources.default_threads())
    facts: dict[str, Fact] = {
        "threads": found.threads, "bytes_per_second": found.bandwidth,
        "int_macs_per_second": found.dots, "float_macs_per_second": found.fmas,
        "bfloat16_macs_per_second": found.pairs,
    }  # fmt: skip
    text = (
        f"{found.bandwidth / 1e9:.1f} GB/s read from memory, {found.dots / 1e9:.0f} GMAC/s of small integers, "
        f"{found.fmas / 1e9:.0f} of floats, {found.pairs / 1e9:.0f} of bfloat16"
    )
    return CheckResult(text, facts)


def check_kernel_cache() -> CheckResult:
    """Return the directory of cached kernels, and whether it is writable. Without it, each start recompiles them."""
    from localinfer import paths
    from quant.jit.kernel_cache import KernelCache, cache_directories

    root = paths.jit_dir()
    cache = KernelCache(root)
    if cache.directory is None:
        return CheckResult("", {"path": str(root), "writable": False}, cache.warnings[0])
    sizes = [path.stat().st_size for path in cache.directory.glob("*.o")]
    others = [path for path in cache_directories(root) if path != cache.directory]
    text = f"{cache.directory}: {len(sizes)} kernels, {screen.mib(sum(sizes))}"
    facts: dict[str, Fact] = {
        "path": str(cache.directory), "writable": True, "kernels": len(sizes), "bytes": sum(sizes),
        "other_versions": len(others),
    }  # fmt: skip
    return CheckResult(text + f"; {len(others)} directories of other versions or CPUs" * bool(others), facts)


def check_tuning() -> CheckResult:
    """Return how kernels read weights on this machine, as it was measured for the models that have run."""
    from localinfer import paths
    from localinfer.runtime.row_access.tuning_table import TuningTable, format_key

    entries = {format_key(*key): tuned for key, tuned in TuningTable(paths.jit_dir()).read_all().items()}
    facts: dict[str, Fact] = {
        key: {**tuned.access._asdict(), "bytes_per_second": tuned.bytes_per_second} for key, tuned in entries.items()
    }
    if not entries:
        return CheckResult("nothing measured yet", {"measured": facts})
    speeds = [tuned.bytes_per_second / 1e9 for tuned in entries.values()]
    ways = f"a way of reading chosen for {len(entries)} kinds of rows"
    text = f"{ways}, {min(speeds):.1f} to {max(speeds):.1f} GB/s; --json lists them"
    return CheckResult(text, {"measured": facts})


def check_models() -> CheckResult:
    from localinfer import paths
    from localinfer.hub import resolve

    folder = paths.models_dir()
    entries = resolve.model_registry().entries.values()
    here = [entry.name for entry in entries if entry.is_present]
    facts: dict[str, Fact] = {"path": str(folder), "present": here, "known": [entry.name for entry in entries]}
    return CheckResult(f"{folder}: {', '.join(here) or 'none; `localinfer pull` downloads the default model'}", facts)


def check_settings() -> CheckResult:
    from localinfer.hub import resolve
    from localinfer.options import from_environment

    path = resolve.user_registry_path()
    given = from_environment(os.environ)
    text = f"{path}{'' if path.exists() else ' (does not exist)'}"
    if given:
        text += "; from the environment: " + ", ".join(f"{name} = {value}" for name, value in given.items())
    return CheckResult(text, {"path": str(path), "present": path.exists(), "environment": sorted(given)})


# ---- the self-test -----------------------------------------------------------------------------------------------


def run_self_test(status: screen.Status) -> dict[str, CheckResult]:
    """Return the results of SELF_TEST_CHECKS. If the model cannot run at all, the first one has the error."""
    from localinfer.evaluation.self_test import self_test

    findings: dict[str, CheckResult] = {}
    try:
        with self_test(status) as test:
            for name, check in SELF_TEST_CHECKS.items():
                with status.busy(f"checking {name}"):
                    findings[name] = run_check(partial(check, test))
    except Exception as error:
        findings["kernels"] = failed_check(error)
    return findings


def check_kernels(test: "SelfTest") -> CheckResult:
    """Compare logits with those of float64."""
    from localinfer.evaluation.self_test import MAX_ERROR

    error, compiled = test.error(), test.tested.n_compiled
    text = f"logits of a small model differ by {error:.2%} from float64 (limit {MAX_ERROR:.0%})"
    if compiled:
        text += f"; {compiled} kernels compiled in {test.tested.seconds:.1f} s"
    facts: dict[str, Fact] = {"error": error, "limit": MAX_ERROR, "compiled": compiled, "sha256": test.tested.digest}
    return CheckResult(text, facts, "" if error <= MAX_ERROR else "kernels compute wrong results on this machine")


def check_same_bits(test: "SelfTest") -> CheckResult:
    """Compare logits of a batch on all threads with those of single tokens on one thread."""
    is_equal, threads = test.has_equal_bits(), test.threads
    trouble = "" if is_equal else "results depend on the number of threads or on the size of batches"
    text = f"logits of a batch on {threads} threads and of single tokens on one thread are "
    return CheckResult(text + ("equal" if is_equal else "different"), {"equal": is_equal, "threads": threads}, trouble)


def check_small_model(test: "SelfTest") -> CheckResult:
    """Measure the speed of a model that fits in the caches."""
    prefill, decode, n_bytes = test.speed()
    facts: dict[str, Fact] = {
        "prefill_tokens_per_second": prefill, "decode_tokens_per_second": decode, "model_bytes": n_bytes,
    }  # fmt: skip
    return CheckResult(
        f"{prefill:,.0f} tokens/s of prefill, {decode:,.0f} of decode, with a model of {screen.mib(n_bytes)}", facts)


def check_new_process(test: "SelfTest") -> CheckResult:
    """Run the model in a new process, which loads the kernels from the cache."""
    found = test.run_in_new_process()
    text = f"loaded the kernels from the cache in {found.seconds:.2f} s"
    if found.n_compiled:
        text = f"compiled {found.n_compiled} kernels again: the kernel cache is not used"
    facts: dict[str, Fact] = {"equal": found.is_equal, "compiled": found.n_compiled, "load_seconds": found.seconds}
    return CheckResult(text, facts, "" if found.is_equal else "kernels from the cache compute other results")


# The name of each check, and its function.
CHECKS: dict[str, Callable[[], CheckResult]] = {
    "program": check_program,
    "Python": check_python,
    "packages": check_packages,
    "system": check_system,
    "CPU": check_cpu,
    "threads": check_threads,
    "memory": check_memory,
    "speed": check_speed,
    "kernel cache": check_kernel_cache,
    "tuning": check_tuning,
    "models": check_models,
    "settings": check_settings,
}
SELF_TEST_CHECKS: dict[str, Callable[["SelfTest"], CheckResult]] = {
    "kernels": check_kernels,
    "same bits": check_same_bits,
    "new process": check_new_process,
    "small model": check_small_model,
}
OPTIONAL_CHECKS = {"program", "Python", "system", "kernel cache", "tuning", "models"}  # models run if these fail
