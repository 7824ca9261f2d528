"""The command `localinfer chat`: an interactive chat in a terminal.

command           the command line; `options` has the options of this command only
loop              the chat loop: reads a message, shows the answer
conversation      the messages and settings; `prompt_window` selects those that fit in the context
commands          slash commands; `session_commands` has /save, /load and /export, `token_table` the output of /why
session_state     selection and resumption of chat sessions
tools             tool definitions and tool execution; `tool_process` runs a tool as a subprocess
message_input     input of messages; `editor` is the line editor for terminals
answer            display of an answer while it is streamed
markdown          Markdown rendering in blocks
live_region       the lines at the end of the screen that are redrawn
status            the status line after an answer
sessions          the command `localinfer sessions`
transcript        the log file of --output
"""
