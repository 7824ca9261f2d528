"""`localinfer chat`, from the line that is typed to the answer on the screen.

    command        the command line; options are those that only it has
    loop           what happens with each message; knows all of the others
    conversation   the messages so far
    commands       what begins with a slash; keeping has those about sessions
    tools          what the model may call, and who runs it; tool_process is how
    reader         where messages are typed: editor on a terminal, or a plain line
    answer         an answer, while it comes
    markdown       blocks of Markdown and the lines that they become
    region         the lines at the end of the screen that may still change
    status         the line behind an answer
"""
