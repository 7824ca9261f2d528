"""Helium, whose checkpoints are those of Llama, but for the order of the rows that are rotated."""

from dataclasses import replace

from localinfer.conversion.architectures.llama import LLAMA

HELIUM = replace(LLAMA, name="helium", name_map_architecture="llama", reorder={})
BY_CLASS = {"HeliumForCausalLM": HELIUM}
