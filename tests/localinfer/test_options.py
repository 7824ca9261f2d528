"""Options: valid values of each layer, error messages, and precedence of the layers."""

import dataclasses
import math
import subprocess
import sys

import pytest

from localinfer import options
from localinfer.errors import LocalInferError, UsageError
from localinfer.options import FLAGS, Options

INVALID = [
    ("ctx_size", -1), ("ctx_size", 2**31), ("ctx_size", 10**12), ("ctx_size", "abc"), ("ctx_size", 2048.0),
    ("ctx_size", True), ("threads", -1), ("threads", 10**6), ("threads_batch", -1), ("batch_size", 0), ("keep", -1),
    ("temp", float("nan")), ("temp", float("inf")), ("temp", -1), ("temp", 10**400), ("temp", "hot"),
    ("top_p", -1), ("top_p", 2), ("top_p", float("nan")), ("top_k", -5), ("min_p", 1.05), ("min_p", -0.1),
    ("repeat_penalty", 0), ("repeat_penalty", float("nan")), ("repeat_last_n", -2), ("seed", -2),
    ("seed", 2**64), ("n_predict", 0), ("n_predict", -2), ("stop", ("",)), ("stop", 3), ("stop", (1,)),
    ("ignore_eos", 1), ("system_prompt", 1), ("ctx_policy", "shift"), ("ctx_policy", ""),
]
VALID = [
    ("ctx_size", 0), ("ctx_size", 2**31 - 1), ("threads", 512), ("temp", 0.0), ("temp", 2.5), ("top_k", 0),
    ("top_p", 0.0), ("top_p", 1.0), ("min_p", 1.0), ("repeat_penalty", 0.1), ("repeat_last_n", -1),
    ("seed", -1), ("seed", 2**64 - 1), ("n_predict", -1), ("n_predict", 1), ("stop", ("a", "\n")),
    ("ignore_eos", True), ("ctx_policy", "ring"), ("system_prompt", ""),
]


@pytest.mark.parametrize(("name", "value"), INVALID)
def test_invalid_value_raises_usage_error_naming_the_option(name: str, value: object) -> None:
    with pytest.raises(UsageError) as flag:
        options.from_flags({name: value})
    with pytest.raises(UsageError) as keyword:
        options.from_keywords({name: value})
    with pytest.raises(UsageError) as validated:
        options.validate(dataclasses.replace(Options(), **{name: value}))
    assert str(flag.value).startswith(f"{FLAGS[name].long_name}: must be ")
    assert str(keyword.value).startswith(f"{name}: must be ")
    assert str(validated.value) == str(flag.value)
    assert "\n" not in str(flag.value)
    assert len(str(flag.value)) < 140


def test_error_message_shows_the_valid_range() -> None:
    with pytest.raises(UsageError, match=f"from -1 to {2**64 - 1}, not {2**64}$"):
        options.from_keywords({"seed": 2**64})


@pytest.mark.parametrize(("name", "value"), VALID)
def test_valid_value_is_unchanged(name: str, value: object) -> None:
    assert options.from_flags({name: value}) == {name: value}
    assert options.validate(dataclasses.replace(Options(), **{name: value})) == Options(**{name: value})


def test_defaults_are_valid() -> None:
    assert options.validate(Options()) == Options()


@pytest.mark.parametrize(("variable", "text"), [
    ("LOCALINFER_CTX_SIZE", "abc"), ("LOCALINFER_CTX_SIZE", "-1"), ("LOCALINFER_THREADS", "1.5"),
    ("LOCALINFER_TEMP", "nan"), ("LOCALINFER_TOP_P", "95%"), ("LOCALINFER_IGNORE_EOS", "perhaps"),
    ("LOCALINFER_CTX_POLICY", "shift"), ("LOCALINFER_N_PREDICT", "0"), ("LOCALINFER_SEED", "9" * 5000),
])
def test_invalid_environment_variable_is_named(variable: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"^{variable}: must be .{{,120}}$"):
        options.from_environment({variable: text})


def test_environment_is_converted_to_option_types() -> None:
    layer = options.from_environment({
        "LOCALINFER_CTX_SIZE": "2048", "LOCALINFER_TEMP": "0", "LOCALINFER_IGNORE_EOS": "yes",
        "LOCALINFER_STOP": "\n\n", "LOCALINFER_SEED": "", "LOCALINFER_CACHE_DIR": "/elsewhere",
    })
    assert layer == {"ctx_size": 2048, "temp": 0.0, "ignore_eos": True, "stop": ("\n\n",)}


def test_earlier_layer_takes_precedence() -> None:
    flags = options.from_flags({"temp": 0.1, "top_k": None})
    environment = options.from_environment({"LOCALINFER_TEMP": "0.2", "LOCALINFER_TOP_K": "2"})
    registry = options.from_registry({"top_k": 3, "top_p": 0.3}, "models.toml: some-model")
    file = options.from_metadata({"general.sampling.top_p": 0.4, "general.sampling.penalty_last_n": 4}, "m")
    merged = options.merge(flags, environment, registry, file)
    assert merged == Options(temp=0.1, top_k=2, top_p=0.3, repeat_last_n=4)


def test_contradicting_options() -> None:
    with pytest.raises(UsageError, match=r"^spec_draft_n_min: 60 is larger than spec_draft_n_max"):
        options.merge({"spec_draft_n_min": 60})
    assert options.merge({"spec_draft_n_min": 60}, {"spec_draft_n_max": 60}).spec_draft_n_min == 60


def test_errors_of_registry_and_metadata_name_the_location() -> None:
    with pytest.raises(UsageError, match=r"^models.toml: some-model: options.top_k: must be "):
        options.from_registry({"top_k": "many"}, "models.toml: some-model")
    with pytest.raises(LocalInferError, match=r"^m: general.sampling.temp: must be .*, not nan$") as error:
        options.from_metadata({"general.sampling.temp": float("nan")}, "m")
    assert error.value.exit_code == 1


def test_unknown_option_suggests_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"^temprature: no such option"):
        options.from_keywords({"temprature": 1})
    with pytest.raises(UsageError, match="did you mean ctx_size"):
        options.from_keywords({"ctxsize": 1})


def test_flags_and_environment_variables_are_unique() -> None:
    names = [name for flag in FLAGS.values() for name in flag.names]
    assert len(names) == len(set(names))
    assert len({flag.environment_variable for flag in FLAGS.values()}) == len(FLAGS)


def test_options_do_not_import_numpy() -> None:
    code = "import sys, localinfer.options; assert 'numpy' not in sys.modules and 'jinja2' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- sampler chains, logit biases, constraints ---


@pytest.mark.parametrize(("text", "names"), [
    ("top_k;temperature", ("top_k", "temperature")), ("top-k; TEMP", ("top_k", "temperature")), ("", ()),
    ("nucleus;minp;typ", ("top_p", "min_p", "typ_p")), ("dry;xtc;adaptive-p", ("dry", "xtc", "adaptive_p")),
])  # fmt: skip
def test_parse_samplers(text: str, names: tuple[str, ...]) -> None:
    assert options.parse_samplers(text) == names


def test_parse_sampler_sequence() -> None:
    assert options.parse_sampler_sequence("edskypmxt") == options.parse_samplers(Options().samplers)
    assert options.parse_sampler_sequence("ta") == ("temperature", "adaptive_p")


@pytest.mark.parametrize(("name", "value", "problem"), [
    ("samplers", "top_k;tpo_p", "--samplers: unknown sampler tpo_p; available: penalties dry top_n_sigma"),
    ("sampler_seq", "kq", "--sampler-seq: unknown sampler q; available: edskypmxta"),
    ("logit_bias", "5", "--logit-bias: must be a token id and the bias of its logit, such as 15043-1, not 5"),
    ("logit_bias", "1+nan", "--logit-bias: must be"), ("logit_bias", "-1+5", "--logit-bias: must be"),
    ("logit_bias", ("1+1", "x"), "--logit-bias: must be"), ("logit_bias", {"a": 1.0}, "--logit-bias: must be"),
])  # fmt: skip
def test_invalid_syntax_is_a_usage_error(name: str, value: object, problem: str) -> None:
    with pytest.raises(UsageError) as error:
        options.from_flags({name: value})
    assert str(error.value).startswith(problem)


def test_parse_logit_bias() -> None:
    assert [options.parse_logit_bias(text) for text in ("5+1", "5-0.5", " 7 -inf", "0+1e-3")] == [
        (5, 1.0), (5, -0.5), (7, -math.inf), (0, 1e-3)]  # fmt: skip
    layer = options.from_keywords({"logit_bias": {15043: -1, 7: -math.inf, 9: 0.25}})
    assert layer == {"logit_bias": ("15043-1", "7-inf", "9+0.25")}


def test_exclusive_options_of_the_strongest_layer_win() -> None:
    file = options.from_metadata({"general.sampling.sequence": "top_p;temperature"}, "m")
    assert options.chosen_samplers(options.merge(file)) == ("top_p", "temperature")
    letters = options.from_flags({"sampler_seq": "kt"})
    assert options.chosen_samplers(options.merge(letters, file)) == ("top_k", "temperature")
    names = options.from_flags({"samplers": "min_p"})
    assert options.chosen_samplers(options.merge(names, letters)) == ("min_p",)
    grammar, regex = options.from_flags({"grammar": "g"}), options.from_flags({"regex": "r"})
    assert options.merge(grammar, regex) == Options(grammar="g")
    assert options.merge(options.from_keywords({"json_mode": False}), regex) == Options()
    named = options.from_environment({"LOCALINFER_MMPROJ": "p.gguf"})
    assert options.merge(options.from_flags({"mmproj_auto": False}), named) == Options(mmproj_auto=False)
    assert options.merge(named, options.from_flags({"mmproj_auto": False})) == Options(mmproj="p.gguf")


def test_sampling_metadata_of_a_file() -> None:
    proposed = options.from_metadata({
        "general.sampling.xtc_probability": 0.5, "general.sampling.xtc_threshold": 0.2, "general.sampling.mirostat": 2,
        "general.sampling.mirostat_tau": 4.0, "general.sampling.mirostat_eta": 0.2,
    }, "m")  # fmt: skip
    assert options.merge(proposed) == Options(
        xtc_probability=0.5, xtc_threshold=0.2, mirostat=2, mirostat_ent=4.0, mirostat_lr=0.2)
    with pytest.raises(LocalInferError, match=r"^m: general.sampling.sequence: unknown sampler magic; "):
        options.from_metadata({"general.sampling.sequence": "magic"}, "m")
