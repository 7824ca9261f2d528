"""The bars themselves, as data: what is measured, on which model, against whom, and how much is asked for.

Knows no engine. How a row is measured is bars.py.
"""

from dataclasses import dataclass, replace

from contest import Test

PP512, PP16, TG128 = Test(512, at_once=True), Test(16, at_once=True), Test(128, at_once=False)
LLAMA, LLAMA_FLASH, LLAMA_AVX2 = "llama.cpp", "llama.cpp with flash attention", "llama.cpp for AVX2"
IK, MEMORY, FAST = "ik_llama.cpp", "read bandwidth", "--precision fast"


@dataclass(frozen=True)
class SpeedBar:
    """Tokens a second of one test on one model, and how many times the rival's they have to be."""

    model: str
    test: Test
    rival: str
    at_least: float | None = None  # without: for information
    threads: int = 0  # 0: one for each core
    precision: str = "fast"

    @property
    def name(self) -> str:
        """What the row is about, in words that can be selected by."""
        kind = "prefill" if self.test.at_once else "decode"
        threads = {0: "all threads", 1: "1 thread"}.get(self.threads, f"{self.threads} threads")
        ours = ("AVX2, " if self.rival == LLAMA_AVX2 else "") + ("high precision, " * (self.precision == "high"))
        return f"{kind} {self.test.name}, {self.model}, {ours}{threads}, against {self.rival}"

    @property
    def need(self) -> str:
        """The bar."""
        return f">= {self.at_least:g}x" if self.at_least else ""

    @property
    def seconds(self) -> float:
        """About how long it takes on two cores."""
        return 40.0 if self.test.depth else {"1B": 35.0, "1B/4": 18.0}.get(self.model.split()[0], 10.0)


@dataclass(frozen=True)
class StartBar:
    """Seconds of a whole process, `generate -p Hello -n 1`, at most so many, or so many times the rival's."""

    model: str
    at_most: float | None = None
    ratio_at_most: float | None = None
    cold: bool = False  # with an empty kernel cache

    @property
    def name(self) -> str:
        """What the row is about."""
        what = "first run ever, empty kernel cache" if self.cold else "whole process, kernels cached"
        return f"start, {what}, {self.model}"

    @property
    def need(self) -> str:
        """The bar."""
        return f"<= {self.at_most:g} s" if self.at_most else f"<= {self.ratio_at_most:g}x"

    @property
    def seconds(self) -> float:
        """About how long it takes on two cores."""
        return 20.0 if self.cold else 10.0


Bar = SpeedBar | StartBar
SMOLLM2, GEMMA3 = "SmolLM2 Q4_1", "Gemma 3 270M Q4_K_M"
NAMED = {SMOLLM2: "smollm2", GEMMA3: "gemma3-270m"}
WITH_BAR = (
    "Q2_K", "Q3_K", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "MXFP4"
)  # fmt: skip
WITHOUT_BAR = ("Q4_1", "Q5_0", "Q5_1", "Q5_K", "IQ4_NL")

BARS: list[Bar] = [
    *(SpeedBar(f"1B {name}", PP512, LLAMA, 2.0) for name in ("Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "IQ4_XS")),
    *(SpeedBar(f"1B {name}", PP512, LLAMA, 1.3) for name in ("F16", "BF16")),
    SpeedBar(SMOLLM2, PP512, LLAMA, 4.0),
    SpeedBar(SMOLLM2, PP512, IK, 1.3),
    SpeedBar(GEMMA3, PP512, LLAMA, 2.0),
    SpeedBar(GEMMA3, PP512, IK, 1.3),
    SpeedBar(SMOLLM2, PP16, LLAMA, 1.3),
    SpeedBar("1B Q4_K_M", PP16, LLAMA, 1.3),
    *(SpeedBar(f"1B {name}", TG128, MEMORY, 0.95) for name in ("Q4_K_M", "Q4_0", "Q8_0")),
    *(SpeedBar(f"1B {name}", TG128, LLAMA, 0.98) for name in ("Q4_K_M", "Q4_0", "Q8_0")),
    SpeedBar("1B Q4_K_M", TG128, LLAMA, 1.1, threads=1),
    SpeedBar(SMOLLM2, TG128, LLAMA, 1.8),
    SpeedBar(SMOLLM2, TG128, IK),
    SpeedBar(GEMMA3, TG128, LLAMA, 1.5),
    SpeedBar(GEMMA3, TG128, IK),
    SpeedBar(SMOLLM2, replace(TG128, depth=4096), LLAMA_FLASH, 2.5),
    *(SpeedBar("1B Q4_K_M", test, LLAMA_AVX2, 1.1) for test in (PP512, TG128)),
    *(SpeedBar(f"1B/4 {name}", test, LLAMA, 1.0) for name in WITH_BAR for test in (PP512, TG128)),
    *(SpeedBar(f"1B/4 {name}", test, LLAMA) for name in WITHOUT_BAR for test in (PP512, TG128)),
    *(SpeedBar(model, TG128, FAST, 0.9, precision="high") for model in (SMOLLM2, GEMMA3, "1B Q4_K_M")),
    *(SpeedBar(model, PP512, LLAMA, 1.0, precision="high") for model in (SMOLLM2, GEMMA3, "1B Q4_K_M")),
    StartBar(SMOLLM2, at_most=15, cold=True),
    StartBar(GEMMA3, at_most=20, cold=True),
    StartBar(SMOLLM2, at_most=0.6),
    StartBar(GEMMA3, ratio_at_most=0.9),
]
