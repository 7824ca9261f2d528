"""libmtmd's encoder of an image or a sound in a subprocess: writes the rows of a first encoding, prints "ready", and
then prints the seconds of an encoding for each line that it reads. `libmtmd_peer.Peer` starts it.

    python tests/benchmarks/libmtmd_engine.py MODEL PROJECTOR MEDIA.npy ROWS.npy THREADS

MEDIA.npy has the pixels of an image, uint8 (height, width, 3), or the samples of a sound, float32 (n,). The media are
preprocessed once. MTMD_CPP_LIB names the folder of libmtmd.so if the package llama_cpp has none.
"""

import ctypes
import sys
import time
from pathlib import Path

import llama_cpp as C
import numpy as np
from llama_cpp import mtmd_cpp as M

TEXT = 0  # the type of a chunk


def make_bitmap(media: np.ndarray) -> M.mtmd_bitmap_p_ctypes:
    """Return libmtmd's copy of an image or a sound."""
    if media.ndim == 1:
        samples = np.ascontiguousarray(media, np.float32)
        return M.mtmd_bitmap_init_from_audio(len(samples), samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float)))
    pixels = np.ascontiguousarray(media, np.uint8)
    height, width, _ = pixels.shape
    return M.mtmd_bitmap_init(width, height, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))


class MediaEncoder:
    """libmtmd's context, and the chunks of an image or a sound."""

    def __init__(self, model: Path, projector: Path, media: np.ndarray, threads: int) -> None:
        parameters = C.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = C.llama_model_load_from_file(str(model).encode(), parameters)
        if not self.model:
            sys.exit("llama.cpp cannot load the model")
        options = M.mtmd_context_params_default()
        options.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it rounds keys and values to F16
        options.use_gpu, options.n_threads, options.print_timings, options.warmup = False, threads, False, False
        self.context = M.mtmd_init_from_file(str(projector).encode(), self.model, options)
        if not self.context:
            sys.exit("libmtmd cannot load the projector")
        marker = M.mtmd_default_marker()
        text = M.mtmd_input_text(marker, len(marker), False, True)
        self.chunks = M.mtmd_input_chunks_init()
        bitmaps = (M.mtmd_bitmap_p_ctypes * 1)(make_bitmap(media))
        if M.mtmd_tokenize(self.context, self.chunks, ctypes.byref(text), bitmaps, 1):
            sys.exit("libmtmd cannot preprocess this")
        found = [M.mtmd_input_chunks_get(self.chunks, i) for i in range(M.mtmd_input_chunks_size(self.chunks))]
        self.media = [chunk for chunk in found if M.mtmd_input_chunk_get_type(chunk) != TEXT]

    def encode(self) -> tuple[float, np.ndarray]:
        """Return the seconds and the rows, float32 (n_rows, embedding length)."""
        seconds, rows = 0.0, []
        for chunk in self.media:
            start = time.perf_counter()
            if M.mtmd_encode_chunk(self.context, chunk):
                sys.exit("libmtmd cannot encode this")
            seconds += time.perf_counter() - start
            shape = M.mtmd_input_chunk_get_n_tokens(chunk), C.llama_model_n_embd_inp(self.model)
            rows.append(np.ctypeslib.as_array(M.mtmd_get_output_embd(self.context), shape).copy())
        return seconds, np.concatenate(rows)


def main() -> None:
    model, projector, media, rows = map(Path, sys.argv[1:5])
    encoder = MediaEncoder(model, projector, np.load(media), int(sys.argv[5]))
    np.save(rows, encoder.encode()[1])
    print("ready", flush=True)
    for _ in sys.stdin:
        print(encoder.encode()[0], flush=True)


if __name__ == "__main__":
    main()
