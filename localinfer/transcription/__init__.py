"""Speech to text with a language model that reads sounds, or with a speech recognition model.

chunks       cuts a sound at quiet places
languages    the languages that can be named
prompts      what each family of models is asked
transcriber  transcribes a sound chunk by chunk
recognizer   transcribes with a speech recognition model
formats      text, SRT, WebVTT and JSON
"""
