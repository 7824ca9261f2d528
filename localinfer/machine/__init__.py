"""The machine: its cores and memory, and what the operating system is asked for.

resources          CPU cores and memory that this process may use
windows_cpu        the cores of a Windows machine
thread_priority    asks for performance cores
"""
