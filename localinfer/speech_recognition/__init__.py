"""Speech recognition models: Parakeet (NVIDIA, 2024), whose file is a GGUF with the architecture `parakeet`.

    samples  ->  spectrogram  ->  rows of the encoder, 12.5 per second  ->  tokens with times  ->  words with times

encoder_names       the encoder's tensors and keys by the names that encoders of projector files have
recognition_file    an open file, whose tensors and keys are checked
encoder             windows of a spectrogram, and the rows that the encoder makes of them
prediction_network  the LSTM of a transducer, and the joint network
decoding            greedy decoding: CTC, RNN-T and TDT
words               the words that tokens consist of, with their times

Names of tensors are NeMo's, as in the files of whisper.cpp and parakeet.cpp; keys are those of parakeet.cpp.
"""
