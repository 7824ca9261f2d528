"""The quantization lab: how much the predictions of a model change if its tensors are quantized, one by one."""
