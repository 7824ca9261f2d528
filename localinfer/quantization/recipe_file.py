"""Recipe files: the types of tensors as a JSON object, for `localinfer quantize --recipe FILE`.

    {"base": "Q4_K_M", "types": {"token_embd.weight": "Q6_K", "ffn_down": "Q5_K"}}

A key of `types` is the name of a tensor, or else a regular expression, as in `--tensor-type`; the name of a tensor
decides before patterns, and of these the first. Other tensors follow the recipe `base`; without one they keep their
types. Other keys of the object are ignored: a file of `localinfer lab` is a recipe file too.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.gguf.source import Source
from localinfer.quantization.budget import BASE_RECIPE, with_named_recipe
from localinfer.quantization.plan import QuantizationPlan, Request, make_plan, parse_type, with_types
from localinfer.quantization.recipe_rules import fits
from localinfer.quantization.recipes import COPY, find_recipe, is_quantizable


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe: types by the names of tensors or patterns, and the recipe of the other tensors."""

    path: Path
    types: Mapping[str, str]
    base: str | None = None

    def error(self, key: str, problem: str) -> LocalInferError:
        """Return a one-line error about a key of the file."""
        return LocalInferError(f"{printable(str(self.path))}: {printable(key, 80)}: {problem}")


def read_recipe(path: Path) -> RecipeFile:
    """Read and validate a recipe file. Raises LocalInferError."""
    content = read_object(path)
    types, recipe = content.get("types"), RecipeFile(path, {})
    if not isinstance(types, dict) or not types:
        raise recipe.error("types", "must be an object with the types of tensors")
    for key, kind in types.items():
        try:
            if not isinstance(kind, str):
                raise ValueError(f"must be the name of a type, not {kind!r}")
            types[key] = parse_type(kind)
            re.compile(key)
        except (ValueError, re.error) as problem:
            raise recipe.error(key, str(problem)) from None
    base = content.get("base")
    found = find_recipe(base) if isinstance(base, str) else None
    if base is not None and (found is None or found == COPY):
        raise recipe.error("base", f"{base!r} is not a recipe")
    return RecipeFile(path, types, found)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises LocalInferError."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise LocalInferError(f"{printable(str(path))}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LocalInferError(f"{printable(str(path))}: is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise LocalInferError(f"{printable(str(path))}: must be a JSON object")
    return content


def plan_for_recipe(source: Source, request: Request, recipe: RecipeFile) -> QuantizationPlan:
    """Return the plan with the types of a recipe file; the recipe of the request is ignored.

    Raises LocalInferError for a key that names no tensor of the source, or a type that does not fit its rows.
    """
    plan = make_plan(source, replace(request, recipe=recipe.base or BASE_RECIPE))
    matrices = {name: tensor for name, tensor in source.tensors.items() if is_quantizable(tensor)}
    named = {key: [key] for key in recipe.types if key in matrices}
    matched = {key: [name for name in matrices if re.search(key, name)] for key in recipe.types if key not in named}
    chosen: dict[str, str] = {}
    for key, names in [*reversed(matched.items()), *named.items()]:
        if not names:
            raise recipe.error(key, f"{printable(str(source.path))} has no matrix of this name")
        for name in names:
            if not fits(matrices[name], kind := recipe.types[key]):
                columns = matrices[name].shape[-1]
                raise recipe.error(key, f"blocks of {kind} do not divide the {columns} columns of {printable(name)}")
            chosen[name] = kind
    if recipe.base:
        return with_types(plan, replace(request, recipe=recipe.base), chosen)
    return with_named_recipe(plan, request, {name: chosen.get(name, each.type_name) for name, each in matrices.items()})
