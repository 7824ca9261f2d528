"""Speech to text with a language model that reads sounds.

chunks       cuts a sound at quiet places
languages    the languages that can be named
prompts      what each family of models is asked
transcriber  transcribes a sound chunk by chunk
formats      text, SRT, WebVTT and JSON
"""
