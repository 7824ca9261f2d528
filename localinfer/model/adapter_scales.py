"""The LoRA adapters of a model, and their scales."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from localinfer.model.base import ModelBase
from localinfer.options import NO_ADAPTERS, from_keywords, merge, scales_of_run


class AdapterScales(ModelBase):
    """The adapters with which the model was loaded."""

    @property
    def lora_adapters(self) -> Sequence[Path]:
        """The files of the LoRA adapters with which the model was loaded."""
        adapters = self.engine.compiled_graph.model_graph.adapters
        return adapters.paths if adapters else ()

    @property
    def lora_scales(self) -> tuple[float, ...]:
        """The scales of the LoRA adapters, in runs that set no others."""
        return self.engine.runner.default_scales

    def set_lora_scales(self, scales: Mapping[int, float]) -> None:
        """Set the scales of the LoRA adapters, by their numbers from 0 on, for later runs that set no others. Those
        that are not named become 0.

        Raises UsageError for an adapter that the model does not have, or a scale that is not finite.
        """
        texts = tuple(f"{number}={scale}" for number, scale in scales.items()) or (NO_ADAPTERS,)
        options = merge(from_keywords({"lora_scales": texts}))
        self.engine.runner.default_scales = scales_of_run(options, self.lora_scales)
