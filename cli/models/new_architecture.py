"""The command `localinfer new-architecture`: a draft of an architecture that is not known yet, from a checkpoint."""

import json
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments.flags import JsonOption, with_options
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.errors import UsageError
from localinfer.escaping import printable, shell_word

if TYPE_CHECKING:
    from localinfer.conversion.new_architecture.draft import Draft
    from localinfer.conversion.new_architecture.ranking import Candidate
    from localinfer.conversion.new_architecture.survey import Survey

NAME = re.compile(r"[a-z][a-z0-9]*([._-][a-z0-9]+)*")
NAMES = "lower-case letters and digits, a letter first, with - _ . between them; no Python keyword"
NUMBER = re.compile(r"\.\d+\.")  # of a layer or an expert
N_SHOWN = 5  # nearest architectures
GUIDE = "docs/new-architecture.md"


@with_options()
def new_architecture_command(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint directory of Hugging Face.")],
    *,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="GGUF's name [default: model_type of config.json].")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder of the files.")
    ] = Path(),
    without: Annotated[
        str, typer.Option("--without", metavar="NAME", help="Compare as if this architecture were unknown.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files instead of writing them.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Draft an architecture that is not supported yet.

    CHECKPOINT is a directory of Hugging Face. Its config.json, and the names and shapes of its tensors, are compared
    with all known decoders. Two files are written, from those of the nearest one: NAME.py, the compute graph, and
    NAME_conversion.py, which maps the tensors. What differs is marked with TODO. No weights are read: config.json and
    model.safetensors.index.json are enough.

    \b
    Examples:
      localinfer new-architecture checkpoint/
      localinfer new-architecture checkpoint/ --name my-llm -o drafts/
      localinfer new-architecture checkpoint/ --dry-run
    """
    from localinfer.conversion.new_architecture import ranking
    from localinfer.conversion.new_architecture.draft import make_draft
    from localinfer.conversion.new_architecture.survey import read_survey

    require_known(without)
    survey = read_survey(checkpoint)
    known = ranking.known_architecture(survey.config)
    if known and known != without:
        show_known(checkpoint, survey.class_name, known, as_json=as_json)
        return
    chosen = choose_name(survey, name)
    with screen.Status().busy("comparing with the known architectures"):
        candidates = ranking.rank(survey, chosen, without)
        draft = make_draft(chosen, survey.class_name, candidates[0])
    if len(draft.files) > 1:
        require_new(chosen, without)
    written = [] if dry_run else write_files(output, draft.files)
    if as_json:
        screen.write(json.dumps(as_object(survey, chosen, candidates, draft), indent=1) + "\n")
    else:
        screen.write("\n".join(report(survey, candidates, draft)) + "\n")
        screen.write("".join(f"\n# {file}\n{text}" for file, text in draft.files.items()) if dry_run else "")
    for path in written:
        screen.note(f"wrote {screen.one_line(str(path))}")
    for line in next_steps(checkpoint, chosen, written):
        screen.note(line)


def require_known(name: str) -> None:
    """Raise UsageError if `name` is given and there is no known architecture of that name."""
    from cli.arguments.suggestions import did_you_mean
    from localinfer.conversion.new_architecture.ranking import known_names

    if name and name not in (names := known_names()):
        raise UsageError(f"--without: {printable(name, 80)}: no such architecture{did_you_mean(name, sorted(names))}")


def show_known(checkpoint: Path, class_name: str, known: str, *, as_json: bool) -> None:
    """Say that a checkpoint can be converted already, and how."""
    if as_json:
        screen.write(json.dumps({"class": class_name, "known": known}) + "\n")
        return
    screen.write(f"{screen.one_line(class_name)} is known: its architecture is {known}\n")
    screen.note(f"convert it: localinfer quantize {shell_word(str(checkpoint))} {known}-bf16.gguf BF16")


def choose_name(survey: "Survey", given: str | None) -> str:
    """Return the name of the architecture: `given`, or that of config.json, as the `gguf` package spells it.

    Raises UsageError for a name that is no name of an architecture.
    """
    import gguf

    text = survey.config.child("text_config").get("model_type", str, survey.config.get("model_type", str, ""))
    name = text.removesuffix("_text") if given is None else given
    if not NAME.fullmatch(name) or keyword.iskeyword(re.sub(r"[-.]", "_", name)):
        where = "--name: must be given, as model_type in config.json is" if given is None else "--name"
        raise UsageError(f"{where}: {printable(repr(name), 80)} ({NAMES})")
    spelled = {re.sub(r"[-_.]", "", each): each for each in gguf.MODEL_ARCH_NAMES.values()}
    return spelled.get(re.sub(r"[-_.]", "", name), name) if given is None else name


def require_new(name: str, without: str) -> None:
    """Raise UsageError if there is an architecture of that name."""
    from localinfer import architectures

    if name != without and re.sub(r"[-.]", "_", name) in architectures.known():
        raise UsageError(f"--name: there is an architecture {name}; choose another name")


def write_files(folder: Path, files: Mapping[str, str]) -> Sequence[Path]:
    """Write the files and return their paths. Raises UsageError if one exists or cannot be written; then none is."""
    paths, written = [folder / file for file in files], []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, files.values(), strict=True):
            if any(each.exists() for each in paths if each not in written):
                raise FileExistsError(0, "exists; choose another --name or --output")
            with path.open("x", encoding="utf-8", newline="\n") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for each in written:
            each.unlink(missing_ok=True)
        existing = next((each for each in paths if each.exists()), folder)
        raise UsageError(f"--output: {screen.one_line(str(existing))}: {error.strerror}") from None
    return paths


# --- output ---


def report(survey: "Survey", candidates: "Sequence[Candidate]", draft: "Draft") -> Iterator[str]:
    """Yield the lines of the comparison: the nearest architectures, and what differs from the first."""
    shapes = "" if survey.has_shapes else ", whose shapes are unknown: the safetensors files are missing"
    n_tensors = len({NUMBER.sub(".", name) for name in survey.tensors})
    yield f"{screen.one_line(survey.class_name)}: {survey.n_layer} layers, {n_tensors} names of tensors{shapes}"
    if survey.is_perhaps_encoder:
        yield "the class looks like an encoder: only decoders are compared, not encoders and draft heads"
    rows = [(each.comparison.architecture.name, *summary(each)) for each in candidates[:N_SHOWN]]
    yield from table("nearest architectures", "<><", rows, screen.output_columns())
    nearest = candidates[0].comparison.architecture.name
    if not candidates[0].comparison.is_near:
        yield "\nno known architecture is near: the drafts are only a beginning"
    if draft.remarks:
        yield from ("", f"differences from {nearest}")
        for remark in draft.remarks:
            yield from screen.wrapped_lines(f"  {remark}", 4, screen.output_columns())
    else:
        yield f"\ntensors and configuration are those of {nearest}"


def summary(candidate: "Candidate") -> tuple[str, str]:
    """Return the number of tensors that a checkpoint shares with an architecture, and what differs."""
    found = candidate.comparison
    counts = {
        "missing": len(found.missing), "unexpected": len(found.unexpected), "without a name": len(found.unnamed),
        "of another shape": len(found.shapes),
    }  # fmt: skip
    texts = [f"{count} {what}" for what, count in counts.items() if count]
    if n_keys := len(found.unread) + len(found.reading.unsupported) + len(found.reading.changes):
        texts.append(f"{n_keys} key{'s' * (n_keys > 1)} of config.json")
    texts = ["no experts"] * found.lacks_experts + texts
    return f"{len(found.known)} tensors alike", ", ".join(texts) or "no difference"


def next_steps(checkpoint: Path, name: str, files: Sequence[Path]) -> Iterator[str]:
    """Yield what remains to be done; nothing if no files were written."""
    if not files:
        return
    folder, model = shell_word(str(checkpoint)), f"{name}-f32.gguf"
    *graph, conversion = (shell_word(str(path)) for path in files)
    options = "".join(f" --architecture {path}" for path in graph)
    code = "beside these files, and replace each TODO" if graph else f"beside the architecture that {conversion} names"
    yield "next:"
    yield f"  1. read the model's code {code} (guide: {GUIDE})"
    yield f"  2. localinfer quantize {folder} {model} F32 --conversion {conversion}{options}"
    yield f"  3. localinfer verify {model}{options} --against {folder}"


def as_object(survey: "Survey", name: str, candidates: "Sequence[Candidate]", draft: "Draft") -> dict[str, Any]:
    """Return the comparison and the draft as a JSON object."""
    nearest = [
        {
            "architecture": each.comparison.architecture.name,
            "distance": each.comparison.distance,
            "alike": [*each.comparison.known],
            "missing": [*each.comparison.missing],
            "lacks_experts": each.comparison.lacks_experts,
            "unexpected": {kind: tensor.name for kind, tensor in each.comparison.unexpected.items()},
            "unnamed": [tensor.name for tensor in each.comparison.unnamed],
            "other_shapes": {kind: [*shape] for kind, shape in each.comparison.shapes.items()},
            "changed_fields": dict(each.comparison.reading.changes),
            "keys_not_computed": [*each.comparison.reading.unsupported],
            "keys_not_read": [*each.comparison.unread],
            "problem": each.comparison.reading.problem,
        }
        for each in candidates[:N_SHOWN]
    ]
    return {
        "class": survey.class_name, "known": None, "name": name, "nearest": nearest, "remarks": [*draft.remarks],
        "files": dict(draft.files),
    }  # fmt: skip
