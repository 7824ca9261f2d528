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
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Literal, TypeVar, get_args

from localinfer.errors import LocalInferError, UsageError

Value = int | float | bool | str | tuple[str, ...]
Layer = dict[str, Value]
Section = Literal["model", "sampling", "generation", "form", "speculation", "draft", "chat"]
Policy = Literal["stop", "drop-turns", "ring"]
Precision = Literal["auto", "fast", "high"]
Think = Literal["auto", "on", "off"]
ReasoningFormat = Literal["auto", "deepseek", "none"]
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
    read: Callable[[str], object] | None = None  # makes sense of a text, or ValueError says why it has none
    separator: str = ""  # between the texts of a tuple, where they are typed

    @property
    def long(self) -> str:
        return self.names[-1]

    @property
    def off(self) -> str:
        """The name that turns off what is on by default; "" where nothing is."""
        return f"--no-{self.long.lstrip('-')}" if self.default is True else ""

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
            return tuple(text.split(self.separator)) if self.separator else (text,)
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
        if self.read:
            for text in converted if isinstance(converted, tuple) else (converted,):
                self.read(str(text))
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
           high: float = math.inf, never: float = math.nan, choices: tuple[str, ...] = (),
           read: Callable[[str], object] | None = None, separator: str = "") -> T:
    """A dataclass field that carries its Flag."""
    flag = Flag(names, about, section, default, low, high, never, choices, read, separator)
    return field(default=default, metadata={"flag": flag})


# ---- options that are written in a small language of their own ----------------------------------------------

SAMPLERS = {  # llama.cpp's names, and the letters of --sampler-seq
    "penalties": "e", "dry": "d", "top_n_sigma": "s", "top_k": "k", "typ_p": "y", "top_p": "p", "min_p": "m",
    "xtc": "x", "temperature": "t", "adaptive_p": "a",
}  # fmt: skip
DEFAULT_SAMPLERS = tuple(name for name in SAMPLERS if name != "adaptive_p")
SAMPLER_ALIASES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}
BIAS = re.compile(r"\s*(\d+)\s*([+-].+)")


def samplers_named(text: str) -> tuple[str, ...]:
    """The samplers that `--samplers top_k;temp` names; ValueError for one that there is not."""
    words = [word.strip().lower() for word in text.split(";") if word.strip()]
    plain = {name.replace("_", ""): name for name in SAMPLERS} | SAMPLER_ALIASES
    names = [plain.get(word.replace("_", "").replace("-", "")) for word in words]
    return known(names, words, " ".join(SAMPLERS))


def samplers_lettered(text: str) -> tuple[str, ...]:
    """The samplers that `--sampler-seq kt` stands for; ValueError for a letter that means none."""
    name_of = {letter: name for name, letter in SAMPLERS.items()}
    return known([name_of.get(letter) for letter in text], list(text), "".join(name_of))


def known(names: Sequence[str | None], words: Sequence[str], all_of_them: str) -> tuple[str, ...]:
    found = tuple(name for name in names if name)
    if len(found) < len(names):
        raise ValueError(f"there is no sampler {shown(words[names.index(None)])}, there are: {all_of_them}")
    return found


def bias_of(text: str) -> tuple[int, float]:
    """Token and bias of `--logit-bias 15043-1`; ValueError says how it is written."""
    found = BIAS.fullmatch(text)
    bias = number(found[2]) if found else math.nan
    if found is None or math.isnan(bias) or len(found[1]) > 10:
        raise ValueError(f"must be a token's id and what is added to its logit, such as 15043-1, not {shown(text)}")
    return int(found[1]), bias


GUESSERS = {  # of --spec-type, llama.cpp's among them: who guesses here
    "none": "", "ngram": "ngram", "ngram-simple": "ngram", "ngram-map-k": "ngram", "ngram-map-k4v": "ngram",
    "ngram-mod": "ngram", "ngram-cache": "ngram",
    "draft-simple": "draft", "draft-eagle3": "ahead", "draft-mtp": "ahead", "draft-dflash": "", "draft-dspark": "",
}  # fmt: skip


def guessers_named(text: str) -> frozenset[str]:
    """Who guesses, by `--spec-type ngram-simple,draft-simple`; ValueError for a name that there is not."""
    words = [word.strip() for word in text.split(",")]
    if unknown := next((word for word in words if word not in GUESSERS), None):
        raise ValueError(f"there is no {shown(unknown)}, there are: {' '.join(GUESSERS)}")
    return frozenset(GUESSERS[word] for word in words) - {""}


def number(text: str) -> float:
    """NaN for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


# -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that can be chosen, with llama.cpp's flags and defaults where it has one."""

    ctx_size: int = option(
        0, "-c", "--ctx-size", section="model", low=0, high=INT32_MAX,
        about="Tokens the model can look back on (0: as many as it was trained for, 32768 at most, if they fit).")
    ctx_policy: Policy = option(
        "drop-turns", "--ctx-policy", section="model", choices=get_args(Policy),
        about="When the context is full: stop; or go on with a chat without its oldest turns; or overwrite all "
        "but the first --keep tokens in a ring.")
    keep: int = option(
        4, "--keep", section="model", low=0, high=INT32_MAX,
        about="First tokens of the context that --ctx-policy ring never overwrites; rounded up to 64s.")
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
    mmap: bool = option(
        True, "--mmap", section="model",
        about="Map the model's file, and read of it what is needed; --no-mmap reads all of it first, into memory of "
        "its own in huge pages, out of which answers may come faster.")
    mlock: bool = option(
        False, "--mlock", section="model",
        about="Read the whole model at once, and keep it in memory.")
    batch_size: int = option(
        2048, "-b", "--batch-size", section="model", low=1, high=INT32_MAX,
        about="Tokens of a prompt that are handed over together; more than --ubatch-size make no difference.")
    parallel: int = option(
        1, "-np", "--parallel", section="model", low=1, high=256,
        about="Requests that a server, or a batch, answers at a time, each with a context of --ctx-size tokens.")
    ubatch_size: int = option(
        512, "-ub", "--ubatch-size", section="model", low=1, high=16384,
        about="Tokens of a prompt that are computed at once: more take more memory.")
    architecture: str = option(
        "", "--architecture", section="model",
        about="A Python file whose function `record` says what the model computes, in place of ours.")
    precision: Precision = option(
        "auto", "--precision", section="model", choices=get_args(Precision),
        about="Round activations to 8 bits (fast), as llama.cpp does, or to 15 (high); auto: high for encoders.")

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
    typical_p: float = option(
        1.0, "--typical", "--typical-p", section="sampling", low=0, high=1,
        about="Choose among the tokens that surprise about as much as usual and together reach this probability.")
    top_n_sigma: float = option(
        -1.0, "--top-nsigma", "--top-n-sigma", section="sampling", low=-1e6, high=1e6,
        about="Drop tokens whose logit is more than so many standard deviations below the best (-1: none).")
    xtc_probability: float = option(
        0.0, "--xtc-probability", section="sampling", low=0, high=1,
        about="How often to drop the best of several probable tokens, for more creative texts (0: never).")
    xtc_threshold: float = option(
        0.1, "--xtc-threshold", section="sampling", low=0, high=1,
        about="What counts as probable to --xtc-probability (above 0.5: nothing).")
    min_keep: int = option(
        0, "--min-keep", section="sampling", low=0, high=INT32_MAX,
        about="How many tokens --top-p, --min-p, --typical and XTC leave at least.")
    dynatemp_range: float = option(
        0.0, "--dynatemp-range", section="sampling", low=0, high=1e6,
        about="Lower the temperature by up to this where the model is certain, raise it where it is not (0: no).")
    dynatemp_exp: float = option(
        1.0, "--dynatemp-exp", section="sampling", low=0, high=1e6,
        about="How certainty becomes a temperature with --dynatemp-range: more makes it fall faster.")
    repeat_penalty: float = option(
        1.0, "--repeat-penalty", section="sampling", low=math.nextafter(0, 1), high=1e6,
        about="Makes tokens that occurred lately less probable (1: no).")
    repeat_last_n: int = option(
        64, "--repeat-last-n", section="sampling", low=-1, high=INT32_MAX,
        about="How many of the last tokens the penalties look at (0: none, -1: the whole context).")
    presence_penalty: float = option(
        0.0, "--presence-penalty", section="sampling", low=-1e6, high=1e6,
        about="Taken from the logits of tokens that occurred lately.")
    frequency_penalty: float = option(
        0.0, "--frequency-penalty", section="sampling", low=-1e6, high=1e6,
        about="Taken from the logits of tokens for each time that they occurred lately.")
    dry_multiplier: float = option(
        0.0, "--dry-multiplier", section="sampling", low=-1e6, high=1e6,
        about="DRY: taken from the logit of a token that would go on with a repetition (0: no).")
    dry_base: float = option(
        1.75, "--dry-base", section="sampling", low=0, high=1e6,
        about="DRY: what each further token of a repetition multiplies that with.")
    dry_allowed_length: int = option(
        2, "--dry-allowed-length", section="sampling", low=0, high=INT32_MAX,
        about="DRY: repetitions of fewer tokens cost nothing.")
    dry_penalty_last_n: int = option(
        64, "--dry-penalty-last-n", section="sampling", low=-1, high=INT32_MAX,
        about="DRY: how many of the last tokens it looks at (0: none, -1: the whole context).")
    dry_sequence_breaker: tuple[str, ...] = option(
        ("\n", ":", '"', "*"), "--dry-sequence-breaker", section="sampling",
        about="DRY: text that no repetition reaches across; may be given several times, in the place of newline, "
        "colon, quotation mark and asterisk (none: there is no such text).")
    mirostat: int = option(
        0, "--mirostat", section="sampling", low=0, high=2,
        about="Hold the surprise of the text at --mirostat-ent, with Mirostat 1 or 2 in the place of the samplers "
        "behind the temperature.")
    mirostat_ent: float = option(
        5.0, "--mirostat-ent", section="sampling", low=0, high=1e6,
        about="Mirostat: bits a token.")
    mirostat_lr: float = option(
        0.1, "--mirostat-lr", section="sampling", low=0, high=1e6,
        about="Mirostat: which part of an error each token makes up for.")
    adaptive_target: float = option(
        -1.0, "--adaptive-target", section="sampling", low=-1e6, high=1,
        about="Sampler adaptive_p: choose tokens near this probability (negative: as usual).")
    adaptive_decay: float = option(
        0.9, "--adaptive-decay", section="sampling", low=0, high=1,
        about="Sampler adaptive_p: how much of what it chose before counts, from token to token.")
    samplers: str = option(
        ";".join(DEFAULT_SAMPLERS), "--samplers", section="sampling", read=samplers_named,
        about="Which samplers work, in which order, with ; between them; adaptive_p is one more.")
    sampler_seq: str = option(
        "", "--sampling-seq", "--sampler-seq", section="sampling", read=samplers_lettered,
        about=f"The same with a letter for each, such as {''.join(SAMPLERS[name] for name in DEFAULT_SAMPLERS)}.")
    logit_bias: tuple[str, ...] = option(
        (), "-l", "--logit-bias", section="sampling", read=bias_of,
        about="Added to the logit of a token: 15043+1, 15043-1, 15043-inf; may be given several times.")
    seed: int = option(
        RANDOM_SEED, "-s", "--seed", section="sampling", low=RANDOM_SEED, high=2**64 - 1,
        about="Start of the random numbers: the same seed gives the same text (-1: a new one each time).")

    n_predict: int = option(
        -1, "-n", "--predict", "--n-predict", section="generation", low=-1, high=INT32_MAX, never=0,
        about="The most tokens to generate (-1: until the model ends the text).")
    stop: tuple[str, ...] = option(
        (), "-r", "--reverse-prompt", "--stop", section="generation",
        about="Stop before this text; may be given several times.")
    beams: int = option(
        1, "--beams", section="generation", low=1, high=64,
        about="Search the most probable text with so many beams, in the place of sampling: takes at least so many "
        "times as long (1: no).")
    logprobs: int = option(
        0, "--logprobs", section="generation", low=0, high=1000,
        about="Tell of each token how probable it was, and of so many others in its place (0: no).")
    ignore_eos: bool = option(
        False, "--ignore-eos", section="generation",
        about="Never choose a token that ends the text.")

    reasoning_budget: int = option(
        -1, "--reasoning-budget", section="generation", low=-1, high=INT32_MAX,
        about="The most tokens of thoughts before the answer (0: none, -1: as many as the model likes).")
    reasoning_format: ReasoningFormat = option(
        "auto", "--reasoning-format", section="generation", choices=get_args(ReasoningFormat),
        about="Tell thoughts apart from the answer (auto, deepseek), or leave them in it with their tags (none).")
    json_schema: str = option(
        "", "-j", "--json-schema", section="form",
        about="Answer in JSON that this JSON schema describes.")
    json_schema_file: str = option(
        "", "-jf", "--json-schema-file", section="form",
        about="The same with a schema in a file.")
    json_mode: bool = option(
        False, "--json-mode", section="form",
        about="Answer with a JSON object of any kind.")
    grammar: str = option(
        "", "--grammar", section="form",
        about="Answer with a text of this grammar, in llama.cpp's language for grammars (GBNF).")
    grammar_file: str = option(
        "", "--grammar-file", section="form",
        about="The same with a grammar in a file.")
    regex: str = option(
        "", "--regex", section="form",
        about="Answer with a text that matches this regular expression as a whole.")
    choice: tuple[str, ...] = option(
        (), "--choice", section="form", separator=",",
        about="Answer with one of these texts, which have commas between them; may be given several times.")

    spec_type: str = option(
        "ngram,draft-simple,draft-mtp,draft-eagle3", "--spec-type", section="speculation", read=guessers_named,
        about="Who guesses tokens, which are then computed together where that is faster; the text is the same: what "
        "stands in it already (ngram), a draft model if there is one (draft-simple), a head of the model that predicts "
        "further tokens if it has one (draft-mtp), or there is one beside it (draft-eagle3), or nobody (none).")
    spec_draft_n_max: int = option(
        48, "--spec-draft-n-max", section="speculation", low=0, high=1024,
        about="The most tokens that are guessed at a time; fewer where fewer pay.")
    spec_draft_n_min: int = option(
        0, "--spec-draft-n-min", section="speculation", low=0, high=1024,
        about="The fewest tokens that are guessed at a time, if any are.")

    spec_draft_p_min: float = option(
        0.0, "--draft-p-min", "--spec-draft-p-min", section="speculation", low=0, high=1,
        about="A draft model guesses no token that it finds less probable.")

    spec_draft_model: str = option(
        "", "-md", "--model-draft", "--spec-draft-model", section="draft",
        about="A smaller model with the same vocabulary, which guesses tokens, or an EAGLE-3 head of the model: a path "
        "or a name.")
    ctx_size_draft: int = option(
        0, "-cd", "--ctx-size-draft", section="draft", low=0, high=INT32_MAX,
        about="Tokens that it can look back on; behind them it guesses none (0: as many as the model).")
    spec_draft_threads: int = option(
        0, "-td", "--threads-draft", "--spec-draft-threads", section="draft", low=0, high=512,
        about="Threads that compute its guesses (0: as many as --threads).")
    spec_draft_threads_batch: int = option(
        0, "-tbd", "--threads-batch-draft", "--spec-draft-threads-batch", section="draft", low=0, high=512,
        about="Threads that compute while it reads a prompt (0: as many as --spec-draft-threads).")
    spec_draft_type_k: CacheType = option(
        "f16", "-ctkd", "--cache-type-k-draft", "--spec-draft-type-k", section="draft", choices=get_args(CacheType),
        about="How it keeps keys.")
    spec_draft_type_v: CacheType = option(
        "f16", "-ctvd", "--cache-type-v-draft", "--spec-draft-type-v", section="draft", choices=get_args(CacheType),
        about="How it keeps values.")

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
        "auto", "-rea", "--reasoning", "--think", section="chat", choices=get_args(Think),
        about="Think before the answer, where the model's chat template has a switch for it (auto: as it is set).")
    reasoning_effort: str = option(
        "", "--reasoning-effort", section="chat",
        about="How much to think, where the chat template asks for it: low, medium, high, or another of its words.")

    def validated(self) -> "Options":
        """These options in their exact types; UsageError names the flag of the first bad one."""
        return merge(from_flags(asdict(self)))


FLAGS: dict[str, Flag] = {each.name: each.metadata["flag"] for each in fields(Options)}
FORMS = tuple(name for name, flag in FLAGS.items() if flag.section == "form")
SAME_MATTER = (("samplers", "sampler_seq"), FORMS)  # of these options, those of the strongest layer count
SAMPLING_KEYS = {
    "general.sampling.sequence": "samplers",
    "general.sampling.temp": "temp",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
    "general.sampling.mirostat": "mirostat",
    "general.sampling.mirostat_tau": "mirostat_ent",
    "general.sampling.mirostat_eta": "mirostat_lr",
    "general.sampling.penalty_last_n": "repeat_last_n",
    "general.sampling.penalty_repeat": "repeat_penalty",
}


def merge(*layers: Mapping[str, Value]) -> Options:
    """The options that the layers give together; where two give the same one, the earlier layer wins.

    UsageError for two that cannot both be.
    """
    values: Layer = {}
    for layer in reversed(layers):
        for group in SAME_MATTER:
            if not layer.keys().isdisjoint(group):
                for name in group:
                    values.pop(name, None)
        values.update(layer)
    options = Options(**values)  # type: ignore[arg-type]  # the layers were checked when they were made
    fewest, most = options.spec_draft_n_min, options.spec_draft_n_max
    if fewest > most:
        raise UsageError(f"--spec-draft-n-min: {fewest} are more than --spec-draft-n-max allows, which is {most}")
    return options


def chosen_samplers(options: Options) -> tuple[str, ...]:
    """Names of SAMPLERS, in the order in which they work."""
    if options.sampler_seq:
        return samplers_lettered(options.sampler_seq)
    return samplers_named(options.samplers)


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
        if isinstance(value, Mapping):  # of tokens and biases
            value = [f"{id}{bias:+}" for id, bias in value.items() if isinstance(bias, (int, float))]
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
