"""Changes of the list of models: those that are gone from it, or have other options now, are unloaded."""

import asyncio

from localinfer.server.models.model_events import ALL_MODELS
from localinfer.server.models.model_queue import ModelQueue


async def reload_models(models: ModelQueue) -> None:
    """Read the list of models anew, with the presets. Models that could not be loaded count as not tried yet.

    Raises UsageError for a mistake in the presets; the list stays as it was then.
    """
    await asyncio.to_thread(models.model_cache.catalog.reload)
    unload_unlisted(models)
    for state in models.states:
        state.error = None
    models.events.notify("models_reload", ALL_MODELS)


def unload_unlisted(models: ModelQueue) -> None:
    """Unload the loaded models that the list lacks, or has with other options."""
    known = {each.name: each for each in models.model_cache.catalog.all()}
    for state in models.states.of_loaded():
        if known.get(state.served.name) != state.served:
            models.unload(state.served)
