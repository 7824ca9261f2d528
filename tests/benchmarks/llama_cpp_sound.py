"""libmtmd's encoder of sounds in a subprocess: prints the seconds of an encoding for each line that it reads, and
writes the rows of the first one. MTMD_CPP_LIB names the folder of libmtmd.so if the package has none.

    python tests/benchmarks/llama_cpp_sound.py MODEL PROJECTOR SAMPLES.npy ROWS.npy THREADS
"""

import ctypes
import sys
import time
from pathlib import Path

import llama_cpp as C
import numpy as np
from llama_cpp import mtmd_cpp as M

AUDIO = 2  # the type of a chunk


class SoundEncoder:
    """libmtmd's context with a sound, which is preprocessed once."""

    def __init__(self, model: Path, projector: Path, samples: np.ndarray, threads: int) -> None:
        parameters = C.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = C.llama_model_load_from_file(str(model).encode(), parameters)
        options = M.mtmd_context_params_default()
        options.use_gpu, options.n_threads, options.print_timings, options.warmup = False, threads, False, True
        self.context = M.mtmd_init_from_file(str(projector).encode(), self.model, options)
        if not self.context:
            sys.exit("libmtmd cannot load the projector")
        values = np.ascontiguousarray(samples, np.float32)
        bitmap = M.mtmd_bitmap_init_from_audio(len(values), values.ctypes.data_as(ctypes.POINTER(ctypes.c_float)))
        marker = M.mtmd_default_marker()
        text = M.mtmd_input_text(marker, len(marker), False, True)
        self.chunks = M.mtmd_input_chunks_init()
        bitmaps = (M.mtmd_bitmap_p_ctypes * 1)(bitmap)
        if M.mtmd_tokenize(self.context, self.chunks, ctypes.byref(text), bitmaps, 1):
            sys.exit("libmtmd cannot preprocess the sound")
        found = [M.mtmd_input_chunks_get(self.chunks, i) for i in range(M.mtmd_input_chunks_size(self.chunks))]
        self.sounds = [chunk for chunk in found if M.mtmd_input_chunk_get_type(chunk) == AUDIO]

    def encode(self) -> tuple[float, np.ndarray]:
        """Return the seconds and the rows."""
        seconds, rows = 0.0, []
        for chunk in self.sounds:
            start = time.perf_counter()
            if M.mtmd_encode_chunk(self.context, chunk):
                sys.exit("libmtmd cannot encode the sound")
            seconds += time.perf_counter() - start
            shape = M.mtmd_input_chunk_get_n_tokens(chunk), C.llama_model_n_embd_inp(self.model)
            rows.append(np.ctypeslib.as_array(M.mtmd_get_output_embd(self.context), shape).copy())
        return seconds, np.concatenate(rows)


def main() -> None:
    model, projector, samples, rows = map(Path, sys.argv[1:5])
    encoder = SoundEncoder(model, projector, np.load(samples), int(sys.argv[5]))
    np.save(rows, encoder.encode()[1])
    print("ready", flush=True)
    for _ in sys.stdin:
        print(encoder.encode()[0], flush=True)


if __name__ == "__main__":
    main()
