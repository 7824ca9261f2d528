"""What a user can choose: one dataclass that feeds the command line, the environment and the Python API.

Facts and checks only: nothing here opens a file, imports numpy or knows how an option is carried out.

An `Options` is made from layers: what somebody gave, by field name. The strongest first:

    given on the command line or as a keyword   ->  from_flags, from_keywords
    the environment, LOCALINFER_*               ->  from_environment
    the user's models.toml, then ours           ->  from_registry
    the file's own general.sampling.*           ->  from_metadata
    the defaults below

Every layer is checked when it is made, so that an error names the place where the user wrote the bad value.
"""

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Literal, TypeVar, get_args

from localinfer.errors import LocalInferError, UsageError

Value = int | float | bool | str | tuple[str, ...]
Layer = dict[str, Value]
Section = Literal["model", "sampling", "generation", "chat"]
Policy = Literal["stop", "ring"]
Precision = Literal["fast", "high"]
Think = Literal["auto", "on", "off"]
CacheType = Literal["f32", "f16", "q8_0", "q4_0"]
T = TypeVar("T", bound=Value)

INT32_MAX = 2**31 - 1
RANDOM_SEED = -1


@dataclass(frozen=True, slots=True)
class Flag:
    """How one option is written, explained and checked. Good are `low` to `high`, except `never`."""

    names: tuple[str, ...]  # as on the command line; the last one is the long name
    about: str
    section: Section
    default: Value
    low: float = -math.inf
    high: float = math.inf
    never: float = math.nan
    choices: tuple[str, ...] = ()

    @property
    def long(self) -> str:
        return self.names[-1]

    @property
    def variable(self) -> str:
        """The name of the environment variable: --ctx-size is LOCALINFER_CTX_SIZE."""
        return "LOCALINFER_" + self.long.lstrip("-").replace("-", "_").upper()

    @property
    def kind(self) -> type:
        """int, float, bool, str or tuple (of str: the flag may be repeated)."""
        return type(self.default)

    def parse(self, text: str) -> Value:
        """The value that a text stands for; ValueError says what was expected."""
        if self.kind is tuple:
            return (text,)
        if self.kind is bool:
            return parse_bool(text)
        try:
            return int(text) if self.kind is int else float(text) if self.kind is float else text
        except ValueError:
            raise ValueError(f"must be {self.expected}, not {shown(text)}") from None

    def check(self, value: object) -> Value:
        """The value in the option's own type; ValueError says what was expected."""
        converted = convert(value, self.kind)
        if converted is None or not self.allows(converted):
            raise ValueError(f"must be {self.expected}, not {shown(value)}")
        return converted

    def allows(self, value: Value) -> bool:
        if isinstance(value, tuple):
            return all(value)  # an empty stop string would stop everything
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return self.low <= value <= self.high and value != self.never  # false for NaN

    @property
    def expected(self) -> str:
        if self.choices:
            return " or ".join(self.choices)
        if self.kind in (int, float):
            return ("a whole number" if self.kind is int else "a number") + self.span
        return {bool: "true or false", str: "a text", tuple: "texts that are not empty"}[self.kind]

    @property
    def span(self) -> str:
        low = "above 0" if 0 < self.low < 1 else f"from {self.low:.0f}"
        excluded = "" if math.isnan(self.never) else f" except {self.never:.0f}"
        high = self.high if isinstance(self.high, int) else f"{self.high:.0f}"  # 2**64 - 1 fits no float
        return f" {low} to {high}{excluded}"


def option(default: T, *names: str, section: Section, about: str, low: float = -math.inf,
           high: float = math.inf, never: float = math.nan, choices: tuple[str, ...] = ()) -> T:
    """A dataclass field that carries its Flag."""
    flag = Flag(names, about, section, default, low, high, never, choices)
    return field(default=default, metadata={"flag": flag})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that can be chosen, with llama.cpp's flags and defaults where it has one."""

    ctx_size: int = option(
        0, "-c", "--ctx-size", section="model", low=0, high=INT32_MAX,
        about="Tokens the model can look back on (0: as many as it was trained for, if they fit in memory).")
    ctx_policy: Policy = option(
        "stop", "--ctx-policy", section="model", choices=get_args(Policy),
        about="When the context is full: stop, or overwrite all but the first --keep tokens in a ring.")
    keep: int = option(
        4, "--keep", section="model", low=0, high=INT32_MAX,
        about="First tokens of the context that --ctx-policy ring never overwrites.")
    cache_type_k: CacheType = option(
        "f16", "-ctk", "--cache-type-k", section="model", choices=get_args(CacheType),
        about="How keys are kept: in 32 or 16 bits a value, or in blocks of 8.5 or 4.5 bits a value.")
    cache_type_v: CacheType = option(
        "f16", "-ctv", "--cache-type-v", section="model", choices=get_args(CacheType),
        about="How values are kept, likewise.")
    threads: int = option(
        0, "-t", "--threads", section="model", low=0, high=512,
        about="Threads that compute (0: the physical performance cores that this process may use).")
    threads_batch: int = option(
        0, "-tb", "--threads-batch", section="model", low=0, high=512,
        about="Threads that compute while a prompt is read (0: as many as --threads).")
    batch_size: int = option(
        512, "-b", "--batch-size", section="model", low=1, high=16384,
        about="Tokens of a prompt that are computed at once.")
    architecture: str = option(
        "", "--architecture", section="model",
        about="A Python file whose function `record` says what the model computes, in place of ours.")
    precision: Precision = option(
        "fast", "--precision", section="model", choices=get_args(Precision),
        about="Round activations to 8 bits (fast), as llama.cpp does, or to 15 (high).")

    temp: float = option(
        0.8, "--temp", section="sampling", low=0, high=1e6,
        about="Temperature: higher is more random (0: always the most probable token).")
    top_k: int = option(
        40, "--top-k", section="sampling", low=0, high=INT32_MAX,
        about="Choose among the k most probable tokens (0: all).")
    top_p: float = option(
        0.95, "--top-p", section="sampling", low=0, high=1,
        about="Choose among the most probable tokens that together reach this probability (1: all).")
    min_p: float = option(
        0.05, "--min-p", section="sampling", low=0, high=1,
        about="Drop tokens less probable than this share of the most probable one (0: none).")
    repeat_penalty: float = option(
        1.0, "--repeat-penalty", section="sampling", low=math.nextafter(0, 1), high=1e6,
        about="Makes tokens that occurred lately less probable (1: no).")
    repeat_last_n: int = option(
        64, "--repeat-last-n", section="sampling", low=-1, high=INT32_MAX,
        about="How many of the last tokens --repeat-penalty looks at (0: none, -1: the whole context).")
    seed: int = option(
        RANDOM_SEED, "-s", "--seed", section="sampling", low=RANDOM_SEED, high=2**64 - 1,
        about="Start of the random numbers: the same seed gives the same text (-1: a new one each time).")

    n_predict: int = option(
        -1, "-n", "--predict", "--n-predict", section="generation", low=-1, high=INT32_MAX, never=0,
        about="The most tokens to generate (-1: until the model ends the text).")
    stop: tuple[str, ...] = option(
        (), "-r", "--reverse-prompt", "--stop", section="generation",
        about="Stop before this text; may be given several times.")
    ignore_eos: bool = option(
        False, "--ignore-eos", section="generation",
        about="Never choose a token that ends the text.")

    reasoning_budget: int = option(
        -1, "--reasoning-budget", section="generation", low=-1, high=INT32_MAX,
        about="The most tokens of thoughts before the answer (0: none, -1: as many as the model likes).")

    system_prompt: str = option(
        "", "-sys", "--system-prompt", section="chat",
        about="What the model is told before the conversation.")
    chat_template: str = option(
        "", "--chat-template", section="chat",
        about="Jinja text in the place of the file's own chat template, or the name of a known one, such as chatml.")
    chat_template_file: str = option(
        "", "--chat-template-file", section="chat",
        about="The same from a file.")
    chat_template_kwargs: str = option(
        "", "--chat-template-kwargs", section="chat",
        about='Variables for the chat template, as a JSON object: {"enable_thinking": false}.')

    think: Think = option(
        "auto", "--reasoning", "--think", section="chat", choices=get_args(Think),
        about="Think before the answer, where the model's chat template has a switch for it (auto: as it is set).")

    def validated(self) -> "Options":
        """These options in their exact types; UsageError names the flag of the first bad one."""
        return merge(from_flags(asdict(self)))


FLAGS: dict[str, Flag] = {each.name: each.metadata["flag"] for each in fields(Options)}
SAMPLING_KEYS = {
    "general.sampling.temp": "temp",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_last_n": "repeat_last_n",
    "general.sampling.penalty_repeat": "repeat_penalty",
}


def merge(*layers: Mapping[str, Value]) -> Options:
    """The options that the layers give together; where two give the same one, the earlier layer wins."""
    values: Layer = {}
    for layer in reversed(layers):
        values.update(layer)
    return Options(**values)  # type: ignore[arg-type]  # the layers were checked when they were made


def from_flags(given: Mapping[str, object]) -> Layer:
    """Options from the command line; None means not given. UsageError names the flag."""
    present = {name: value for name, value in given.items() if value is not None}
    return checked(present, lambda name: FLAGS[name].long)


def from_keywords(given: Mapping[str, object]) -> Layer:
    """Options from a call in Python. UsageError names the keyword."""
    return checked(given, str)


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Options from LOCALINFER_* variables; an empty one counts as not set. UsageError names the variable."""
    layer: Layer = {}
    for name, flag in FLAGS.items():
        text = environ.get(flag.variable, "")
        if text:
            layer |= checked({name: text}, lambda name: FLAGS[name].variable, texts=True)
    return layer


def from_registry(given: Mapping[str, object], where: str) -> Layer:
    """A model's `options` in a models.toml. UsageError names `where` (file and model) and the option."""
    return checked(given, lambda name: f"{where}: options.{name}")


def from_metadata(metadata: Mapping[str, object], path: object) -> Layer:
    """What the model's file proposes for sampling. LocalInferError names the file and the key."""
    given = {name: metadata[key] for key, name in SAMPLING_KEYS.items() if key in metadata}
    keys = {name: key for key, name in SAMPLING_KEYS.items()}
    return checked(given, lambda name: f"{path}: {keys[name]}", LocalInferError)


def checked(given: Mapping[str, object], called: Callable[[str], str],
            error: type[LocalInferError] = UsageError, *, texts: bool = False) -> Layer:
    """The given values in the options' own types. `called` tells the name by which the user knows a field."""
    layer: Layer = {}
    for name, value in given.items():
        if name not in FLAGS:
            raise error(f"{called(name)}: {unknown(name)}")
        flag = FLAGS[name]
        try:
            layer[name] = flag.check(flag.parse(str(value)) if texts else value)
        except ValueError as problem:
            raise error(f"{called(name)}: {problem}") from None
    return layer


def convert(value: object, kind: type) -> Value | None:
    """The value as a `kind`, if that loses nothing; otherwise None."""
    if kind is tuple:
        texts = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [None]
        strings = tuple(text for text in texts if isinstance(text, str))
        return strings if len(strings) == len(texts) else None
    if isinstance(value, (bool, str)):  # a bool is an int to Python, but not to a user
        return value if kind is type(value) else None
    if isinstance(value, int) and kind is int:
        return value
    if isinstance(value, (int, float)) and kind is float:
        return float(value) if abs(value) < 1e300 else math.inf  # 10**400 has no float
    return None


def parse_bool(text: str) -> bool:
    try:
        return {"1": True, "true": True, "yes": True, "on": True,
                "0": False, "false": False, "no": False, "off": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(f"must be true or false, not {shown(text)}") from None


def unknown(name: str) -> str:
    near = difflib.get_close_matches(name, FLAGS, n=1)
    return "no such option" + (f"; did you mean {near[0]}?" if near else "")


def shown(value: object) -> str:
    """A value as one short printable line."""
    plain = isinstance(value, str) and value.isprintable() and value.strip() == value != ""
    text = str(value) if plain else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
