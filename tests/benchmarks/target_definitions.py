"""The definitions of the performance targets: workload, model, baseline and required ratio.

performance_targets.py measures them.
"""

from dataclasses import dataclass, replace

from interleaved import Workload

PP512, PP16, TG128 = Workload(512, is_prefill=True), Workload(16, is_prefill=True), Workload(128, is_prefill=False)
LLAMA, LLAMA_FLASH, LLAMA_AVX2 = "llama.cpp", "llama.cpp with flash attention", "llama.cpp for AVX2"
IK, MEMORY, FAST = "ik_llama.cpp", "read bandwidth", "--precision fast"


@dataclass(frozen=True)
class SpeedTarget:
    """A target for tokens per second of one workload on one model, relative to a baseline."""

    model: str
    test: Workload
    baseline: str
    min_ratio: float | None = None  # None: for information only
    threads: int = 0  # 0: one for each core
    precision: str = "fast"

    @property
    def name(self) -> str:
        """The name of the row, whose words select it on the command line."""
        kind = "prefill" if self.test.is_prefill else "decode"
        threads = {0: "all threads", 1: "1 thread"}.get(self.threads, f"{self.threads} threads")
        ours = ("AVX2, " if self.baseline == LLAMA_AVX2 else "") + ("high precision, " * (self.precision == "high"))
        return f"{kind} {self.test.name}, {self.model}, {ours}{threads}, against {self.baseline}"

    @property
    def requirement(self) -> str:
        """The requirement as text."""
        return f">= {self.min_ratio:g}x" if self.min_ratio else ""

    @property
    def estimated_seconds(self) -> float:
        """The approximate duration of the measurement on two cores."""
        return 40.0 if self.test.depth else {"1B": 35.0, "1B/4": 18.0}.get(self.model.split()[0], 10.0)


@dataclass(frozen=True)
class StartupTarget:
    """A target for the seconds of a whole process, `generate -p Hello -n 1`, absolute or relative to the baseline."""

    model: str
    max_seconds: float | None = None
    max_ratio: float | None = None
    cold: bool = False  # with an empty kernel cache

    @property
    def name(self) -> str:
        """The name of the row, whose words select it on the command line."""
        what = "first run ever, empty kernel cache" if self.cold else "whole process, kernels cached"
        return f"start, {what}, {self.model}"

    @property
    def requirement(self) -> str:
        """The requirement as text."""
        return f"<= {self.max_seconds:g} s" if self.max_seconds else f"<= {self.max_ratio:g}x"

    @property
    def estimated_seconds(self) -> float:
        """The approximate duration of the measurement on two cores."""
        return 20.0 if self.cold else 10.0


Target = SpeedTarget | StartupTarget
SMOLLM2, GEMMA3 = "SmolLM2 Q4_1", "Gemma 3 270M Q4_K_M"
HUB_NAMES = {SMOLLM2: "smollm2", GEMMA3: "gemma3-270m"}
TYPES_WITH_TARGET = (
    "Q2_K", "Q3_K", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "MXFP4"
)  # fmt: skip
TYPES_WITHOUT_TARGET = ("Q4_1", "Q5_0", "Q5_1", "Q5_K", "IQ4_NL")

TARGETS: list[Target] = [
    *(SpeedTarget(f"1B {name}", PP512, LLAMA, 2.0) for name in ("Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "IQ4_XS")),
    *(SpeedTarget(f"1B {name}", PP512, LLAMA, 1.3) for name in ("F16", "BF16")),
    SpeedTarget(SMOLLM2, PP512, LLAMA, 4.0),
    SpeedTarget(SMOLLM2, PP512, IK, 1.3),
    SpeedTarget(GEMMA3, PP512, LLAMA, 2.0),
    SpeedTarget(GEMMA3, PP512, IK, 1.3),
    SpeedTarget(SMOLLM2, PP16, LLAMA, 1.3),
    SpeedTarget("1B Q4_K_M", PP16, LLAMA, 1.3),
    *(SpeedTarget(f"1B {name}", TG128, MEMORY, 0.95) for name in ("Q4_K_M", "Q4_0", "Q8_0")),
    *(SpeedTarget(f"1B {name}", TG128, LLAMA, 0.98) for name in ("Q4_K_M", "Q4_0", "Q8_0")),
    SpeedTarget("1B Q4_K_M", TG128, LLAMA, 1.1, threads=1),
    SpeedTarget(SMOLLM2, TG128, LLAMA, 1.8),
    SpeedTarget(SMOLLM2, TG128, IK),
    SpeedTarget(GEMMA3, TG128, LLAMA, 1.5),
    SpeedTarget(GEMMA3, TG128, IK),
    SpeedTarget(SMOLLM2, replace(TG128, depth=4096), LLAMA_FLASH, 2.5),
    *(SpeedTarget("1B Q4_K_M", test, LLAMA_AVX2, 1.1) for test in (PP512, TG128)),
    *(SpeedTarget(f"1B/4 {name}", test, LLAMA, 1.0) for name in TYPES_WITH_TARGET for test in (PP512, TG128)),
    *(SpeedTarget(f"1B/4 {name}", test, LLAMA) for name in TYPES_WITHOUT_TARGET for test in (PP512, TG128)),
    *(SpeedTarget(model, TG128, FAST, 0.9, precision="high") for model in (SMOLLM2, GEMMA3, "1B Q4_K_M")),
    *(SpeedTarget(model, PP512, LLAMA, 1.0, precision="high") for model in (SMOLLM2, GEMMA3, "1B Q4_K_M")),
    StartupTarget(SMOLLM2, max_seconds=15, cold=True),
    StartupTarget(GEMMA3, max_seconds=20, cold=True),
    StartupTarget(SMOLLM2, max_seconds=0.6),
    StartupTarget(GEMMA3, max_ratio=0.9),
]
