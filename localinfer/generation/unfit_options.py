"""Options that do not fit the kind of a model: some need tokens from left to right, others a diffusion language
model."""

from localinfer.errors import UsageError
from localinfer.options import CONSTRAINT_OPTIONS, FLAGS, Options, chosen_samplers
from localinfer.runtime.sequence_engine import SequenceEngine

LEFT_TO_RIGHT = ("beams", "mirostat", "reasoning_budget", "spec_type", "spec_draft_model", *CONSTRAINT_OPTIONS)
NEUTRAL = ("none", "diffusion_visual")  # a value of spec_type, and an option that changes no text


def reject_unfit_options(engine: SequenceEngine, options: Options, sampler: object, constraint: object) -> None:
    """Raise UsageError for an option, a sampler or a constraint that does not fit the model."""
    if engine.context.diffusion:
        reject_left_to_right(options, sampler, constraint)
        return
    for name, flag in FLAGS.items():
        if flag.section == "diffusion" and name not in NEUTRAL and getattr(options, name) != flag.default:
            architecture = engine.compiled_graph.model_graph.hparams.architecture
            raise UsageError(f"{name} ({flag.long_name}): {architecture} is not a diffusion language model")


def reject_left_to_right(options: Options, sampler: object, constraint: object) -> None:
    """Raise UsageError for what needs tokens one after the other, or the state after them."""
    changed = (name for name in LEFT_TO_RIGHT if getattr(options, name) not in (FLAGS[name].default, *NEUTRAL))
    name = next(changed, "")
    what = f"{name} ({FLAGS[name].long_name})" if name else ""
    if options.ctx_policy == "ring":
        what = "ctx_policy (--ctx-policy) ring"
    elif "adaptive_p" in chosen_samplers(options):
        what = "samplers (--samplers) adaptive_p"
    elif sampler or constraint:
        what = what or ("sampler" if sampler else "tools")
    if what:
        why = "needs tokens from left to right; a diffusion language model unmasks them in any order"
        raise UsageError(f"{what}: {why}")
