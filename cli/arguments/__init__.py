"""What a user typed, understood: words of other programs, misspelt ones, and those that a shell asks us to complete.

Knows words only. What a command's own options are, and what they mean, is said where the command is.
"""
