"""How the tokens of a text become one vector, from the files of sentence-transformers, and other keys of encoders.

modules.json lists what follows on the model, among it the directory of the pooling's configuration.
"""

from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.folder import Folder, Table
from localinfer.checkpoint.numbers import Numbers
from localinfer.errors import Unsupported
from localinfer.files.source import Field
from localinfer.plan.pooling import POOLINGS
from localinfer.text import printable

MODULES = "modules.json"
# The first that is true counts, as in llama.cpp.
MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
NAMES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}  # of newer configurations


def fields(folder: Folder, architecture: Architecture, numbers: Numbers) -> dict[str, Field]:
    """The keys of a model that texts are compared with."""
    found = {"attention.causal": Field.flag(False)} if architecture.encoder else {}
    pooling = read_pooling(folder)
    if pooling:
        found["pooling_type"] = Field.uint32(POOLINGS.index(pooling))
    keys = {f"{architecture.name}.{key}": field for key, field in found.items()}
    if "token_types" in architecture.model:
        keys["tokenizer.ggml.token_type_count"] = Field.uint32(numbers.n_types)
    return keys


def read_pooling(folder: Folder) -> str:
    """Its name; "" where nothing is said."""
    paths = [each.get("path", str) for each in folder.tables(MODULES) if kind_of(each) == "Pooling"]
    if not paths:
        return ""
    if "/" in paths[0] or paths[0].startswith("."):
        raise folder.error(f"{MODULES}: {printable(repr(paths[0]), 80)} is not a directory within this one")
    config = folder.table(f"{paths[0]}/config.json")
    named = NAMES.get(config.get("pooling_mode", str, ""))
    found = next((name for key, name in MODES.items() if config.get(key, bool, False)), named)
    if not found:
        raise config.error("pooling_mode", f"is none of {', '.join(NAMES)}", Unsupported)
    return found


def kind_of(module: Table) -> str:
    return module.get("type", str, "").rpartition(".")[2]
