"""`localinfer doctor`: what the program finds on this machine, and whether it can run here.

Made for when something is broken: every line is found out for itself, and one that cannot be says why.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from cli import screen
from localinfer.version import VERSION

Fact: TypeAlias = "str | int | float | bool | list[str] | Mapping[str, Fact] | None"

PACKAGES = ("numpy", "numba", "llvmlite")
LEAST_MEMORY = 256 << 20  # bytes; less than that, and hardly any model runs


@dataclass(frozen=True, slots=True)
class Finding:
    """What a line says to people and, as `facts`, to programs; `trouble`, if there is any."""

    text: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    trouble: str = ""


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
) -> None:
    """Show what localinfer finds on this machine, and whether it can run here.

    Compiles and runs a few kernels. The exit code is 0 if models can run here, else 1.

    \b
      localinfer doctor
      localinfer doctor --json > report.json
    """
    status = screen.Status()
    findings: dict[str, Finding] = {}
    for name, (find_out, _) in CHECKS.items():
        with status.busy(f"looking at the {name}"):
            findings[name] = examined(find_out)
    broken = [name for name, (_, needed) in CHECKS.items() if needed and findings[name].trouble]
    if as_json:
        facts = {name.lower().replace(" ", "_"): as_object(finding) for name, finding in findings.items()}
        screen.write(json.dumps({"can_run": not broken, **facts}, indent=1) + "\n")
    else:
        screen.write("".join(f"{name:13} {line(finding)}\n" for name, finding in findings.items()))
        screen.write(
            "\n" + (f"models cannot run here: {', '.join(broken)}" if broken else "models can run here") + "\n"
        )
    if broken:
        raise typer.Exit(1)


def examined(find_out: Callable[[], Finding]) -> Finding:
    """A finding, whatever happens."""
    try:
        return find_out()
    except Exception as error:
        return Finding("cannot be found out", trouble=f"{type(error).__name__}: {error}")


def line(finding: Finding) -> str:
    return screen.one_line(": ".join(part for part in (finding.text, finding.trouble) if part))


def as_object(finding: Finding) -> Mapping[str, Fact]:
    return {**finding.facts, **({"trouble": finding.trouble} if finding.trouble else {})}


# ---- the lines ---------------------------------------------------------------------------------------------


def program() -> Finding:
    here = str(Path(__file__).parent.parent)
    return Finding(f"localinfer {VERSION} in {here}", {"version": VERSION, "path": here})


def python() -> Finding:
    number = platform.python_version()
    return Finding(
        f"{number}, {sys.executable or 'not started from a file'}", {"version": number, "path": sys.executable}
    )


def packages() -> Finding:
    """Those that machine code comes from. They are imported where they are used: see `speed`."""
    found = {name: version(name) for name in PACKAGES}
    return Finding(", ".join(f"{name} {number}" for name, number in found.items()), dict(found))


def system() -> Finding:
    found = {"system": platform.system(), "release": platform.release(), "machine": platform.machine()}
    return Finding(" ".join(found.values()), dict(found))


def cpu() -> Finding:
    """The instruction set that kernels are compiled for, and what it was chosen by."""
    import llvmlite.binding as llvm

    from localinfer.engine import machine
    from quant.jit.cpu import target

    name, host, isa = machine.cpu_name(), llvm.get_host_cpu_name(), target().isa
    chosen = os.environ.get("NUMBA_CPU_NAME", "")
    why = f"because NUMBA_CPU_NAME is {chosen}" if chosen else f"the best that LLVM knows of {host}"
    facts = {"name": name, "llvm_name": host, "instruction_set": isa, "numba_cpu_name": chosen or None}
    return Finding(f"{name or 'without a name'}; instructions: {isa}, {why}", facts)


def threads() -> Finding:
    from localinfer.engine import machine

    steps, count = machine.narrowing(), machine.default_threads()
    text = ", ".join(f"{number} {step}" for step, number in steps.items())
    return Finding(f"{count} by default; CPUs: {text}", {"default": count, "cpus": dict(steps)})


def memory() -> Finding:
    from localinfer.engine import machine

    free = machine.available_memory()
    trouble = f"less than the {screen.mib(LEAST_MEMORY)} that small models take" if free < LEAST_MEMORY else ""
    return Finding(f"{free / 2**30:.1f} GiB available", {"available_bytes": free}, trouble)


def speed() -> Finding:
    """The proof that kernels can be compiled, loaded and run by threads; and how fast they can be at best."""
    from localinfer.engine import machine
    from localinfer.judging.roofline import measured

    found = measured(machine.default_threads())
    facts: dict[str, Fact] = {
        "threads": found.threads, "bytes_per_second": found.bandwidth,
        "int_macs_per_second": found.dots, "float_macs_per_second": found.fmas,
        "bfloat16_macs_per_second": found.pairs,
    }  # fmt: skip
    text = (
        f"{found.bandwidth / 1e9:.1f} GB/s read from memory, {found.dots / 1e9:.0f} GMAC/s of small integers, "
        f"{found.fmas / 1e9:.0f} of floats, {found.pairs / 1e9:.0f} of bfloat16"
    )
    return Finding(text, facts)


def kernel_cache() -> Finding:
    """Where compiled kernels are kept, and whether they can be: without, each start compiles them again."""
    from localinfer import paths
    from quant.jit.kernel_cache import Cache, generations

    root = paths.jit_dir()
    cache = Cache(root)
    if cache.directory is None:
        return Finding("", {"path": str(root), "writable": False}, cache.warnings[0])
    sizes = [path.stat().st_size for path in cache.directory.glob("*.o")]
    others = [path for path in generations(root) if path != cache.directory]
    text = f"{cache.directory}: {len(sizes)} kernels, {screen.mib(sum(sizes))}"
    facts: dict[str, Fact] = {
        "path": str(cache.directory), "writable": True, "kernels": len(sizes), "bytes": sum(sizes),
        "other_versions": len(others),
    }  # fmt: skip
    return Finding(text + f"; {len(others)} directories of other versions or CPUs" * bool(others), facts)


def models() -> Finding:
    from localinfer import paths
    from localinfer.models import registry

    folder = paths.models_dir()
    entries = registry.catalogue().entries.values()
    here = [entry.name for entry in entries if entry.present]
    facts: dict[str, Fact] = {"path": str(folder), "present": here, "known": [entry.name for entry in entries]}
    return Finding(f"{folder}: {', '.join(here) or 'none yet; `localinfer pull` fetches the default one'}", facts)


def settings() -> Finding:
    from localinfer.models import registry
    from localinfer.options import from_environment

    path = registry.user_toml()
    given = from_environment(os.environ)
    text = f"{path}{'' if path.exists() else ' (not there)'}"
    if given:
        text += "; from the environment: " + ", ".join(f"{name} = {value}" for name, value in given.items())
    return Finding(text, {"path": str(path), "present": path.exists(), "environment": sorted(given)})


# What each line is called, who finds it out, and whether models need it.
CHECKS: dict[str, tuple[Callable[[], Finding], bool]] = {
    "program": (program, False),
    "Python": (python, False),
    "packages": (packages, True),
    "system": (system, False),
    "CPU": (cpu, True),
    "threads": (threads, True),
    "memory": (memory, True),
    "speed": (speed, True),
    "kernel cache": (kernel_cache, False),
    "models": (models, False),
    "settings": (settings, True),
}
