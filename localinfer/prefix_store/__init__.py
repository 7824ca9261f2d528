"""The prefix store: evaluated prompts on disk, so that no program reads the same tokens twice.

keys              what a prefix is called: a digest of the model, the settings that change bits, and the token ids
sequence_parts    the parts of a sequence that are stored: blocks of pages, and the other caches as a whole
entry_file        the format of one file, with a digest of its contents
directory         the files of a model: which prefixes there are, and how many bytes they take
restoring         finding the longest stored prefix of a prompt, and loading it
store             saving and restoring the sequence of an engine
writer            the thread that writes files behind the answer, and removes the least recently used ones
"""
