"""Videos: frames that are sampled, decoded in a child process, resized, and encoded as images or in pairs.

video_info      what a file says about its video
sampling        which frames a model reads
frame_sizes     how large they become
video_family    what encoders of videos define: all of this, and the text around the rows
video_processor from a file to frames, and from frames to what the encoder reads
video_decoding  PyAV; video_process runs it in a child process
"""
