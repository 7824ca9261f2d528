"""Encoders of sounds: from a mel spectrogram to the input rows of a language model.

framing         how many frames of a spectrogram are encoded, and which of them convolutions see together
sound_tensors   tensors of sound encoders, and convolutions as matrices
sound_builder   records the operations of a sound encoder
sound_encoder   the encoder in a projector file: builds its graph for a number of frames
sound_input     the spectrogram of a sound
spectrum        the energy of a sound in the bands of a mel scale
gemma_mel       the spectrogram of Gemma 4
mel             the spectrogram of Whisper
nemo_mel        the spectrogram of NeMo's models
granite_mel     the spectrogram of Granite Speech
raw_frames      the samples of a sound in place of a spectrogram
depthwise       depthwise convolutions of rows
span_attention  attention to spans of rows, whose scores may depend on distances
q_former        queries that attend to windows of rows
arrangement     the text around the rows of a sound
encoders/       one file per projector type
"""
