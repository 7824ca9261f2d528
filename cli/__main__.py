"""`python -m cli` is the command `localinfer`."""

from cli.app import main

main()
