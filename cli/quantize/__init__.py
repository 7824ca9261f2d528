"""The command `localinfer quantize`: argument parsing, quantization and progress display."""
