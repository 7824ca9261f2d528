"""Presets in a repository of the hub: `localinfer serve hf:OWNER/REPO` reads its `preset.ini`, as llama-server does.

A stranger has written the file. So its models must be models of the hub, and options that may name files of this
machine are refused: one of them would run a Python file.
"""

from pathlib import Path
from typing import NamedTuple

import typer

from cli.server.presets import COMMON, Preset, PresetFile, read_ini, read_presets
from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.hub.file_selection import parse_reference
from localinfer.options import FLAGS

HUB = "hf:"
TEXT_OPTIONS = frozenset((  # texts that name no file; numbers and switches never do
    "ctx_policy", "cache_type_k", "cache_type_v", "precision", "dry_sequence_breaker", "samplers", "sampler_seq",
    "logit_bias", "stop", "reasoning_format", "json_schema", "grammar", "regex", "choice", "spec_type",
    "spec_draft_type_k", "spec_draft_type_v", "system_prompt", "chat_template", "chat_template_kwargs",
    "think", "reasoning_effort",
))  # fmt: skip


class HubPresets(NamedTuple):
    """The file of presets in a repository, and the section to serve, "" for all."""

    repo: str
    path: Path
    section: str

    @property
    def title(self) -> str:
        """What messages call the file."""
        return f"{HUB}{self.repo}: {self.path.name}"

    def read(self, context: typer.Context) -> PresetFile:
        """Return the presets. The context is that of `serve`. Raises UsageError with the invalid section."""
        found = read_presets(self.path, context, self.title)
        require_safe(found.common, f"{self.title}: [{COMMON}]")
        presets = {}
        for name, preset in found.presets.items():
            if self.section in ("", name):
                where = f"{self.title}: [{printable(name, 80)}]"
                require_safe(preset, where)
                presets[name] = preset._replace(model=hub_model(preset.source, where))
        return found._replace(presets=presets)


def find_hub_presets(source: str) -> HubPresets | None:
    """Return the presets that the name of a repository stands for; None for any other model.

    A tag may be a section. The file is downloaded, unless it or the model is on this machine. Raises LocalInferError.
    """
    from localinfer.hub import huggingface, resolve

    name = resolve.normalize_hub_url(source)
    if not name.startswith(HUB):
        return None
    reference = parse_reference(name.removeprefix(HUB), "hf")
    path = huggingface.find_preset(reference.repo)
    if reference.file or (path is None and huggingface.locate(reference)):
        return None
    if path is None:
        from localinfer.hub.huggingface_download import fetch_preset

        status = screen.Status()
        with status.busy("waiting for the server"):
            path = fetch_preset(reference.repo, status)
    found = HubPresets(reference.repo, path, reference.quant) if path else None
    return found if found and reference.quant in ("", *read_ini(found.path, found.title).sections()) else None


def hub_model(source: str, where: str) -> str:
    """Return the name of a model if it is one of the hub. Raises UsageError for any other."""
    try:
        if source.startswith(HUB) and parse_reference(source.removeprefix(HUB), "hf"):
            return source
    except UsageError:
        pass
    raise UsageError(f"{where}: needs hf = OWNER/REPO:QUANT; other models are not allowed")


def require_safe(preset: Preset, where: str) -> None:
    """Raise UsageError for options that may name a file of this machine."""
    if preset.draft:
        hub_model(preset.draft, f"{where}: {FLAGS['spec_draft_model'].long_name}")
    for name, value in preset.options.items():
        if FLAGS[name].value_type in (str, tuple) and value and name not in (*TEXT_OPTIONS, "spec_draft_model"):
            raise UsageError(f"{where}: {FLAGS[name].long_name}: may name a file, which is not allowed")
