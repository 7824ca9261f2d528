"""Makes `python -m localinfer` equivalent to the command `localinfer`."""

import runpy

runpy.run_module("cli", run_name="__main__", alter_sys=True)
