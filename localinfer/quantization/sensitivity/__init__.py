"""Sensitivity: how much the predictions of a model change if one of its tensors is quantized."""
