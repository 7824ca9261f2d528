"""Code World Model (Meta, 2025), whose checkpoints are those of Llama with windows."""

from localinfer.conversion.architectures.llama import MISTRAL

BY_CLASS = {"CwmForCausalLM": MISTRAL}
