"""The command line: Typer commands and all terminal output. Inference and quantization are in `localinfer`."""
