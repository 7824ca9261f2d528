"""File types: the quantization of a whole model, as the metadata key `general.file_type` states it.

Source: llama.cpp's `enum llama_ftype`; numbers from 138 on are ik_llama.cpp's.
"""

FILE_TYPE = "general.file_type"
SCALE_PAIRS = "localinfer.scale_pairs"  # true: factors have moved between weights (`localinfer.graph.scale_pairs`)
GUESSED = 1024  # LLAMA_FTYPE_GUESSED: a flag for a type that was not stated explicitly
NUMBERS = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "IQ2_XXS": 19,
    "IQ2_XS": 20,
    "Q2_K_S": 21,
    "IQ3_XS": 22,
    "IQ3_XXS": 23,
    "IQ1_S": 24,
    "IQ4_NL": 25,
    "IQ3_S": 26,
    "IQ3_M": 27,
    "IQ2_S": 28,
    "IQ2_M": 29,
    "IQ4_XS": 30,
    "IQ1_M": 31,
    "BF16": 32,
    "TQ1_0": 36,
    "TQ2_0": 37,
    "MXFP4_MOE": 38,
    "NVFP4": 39,
    "Q1_0": 40,
    "Q2_0": 41,
    "IQ2_K": 138,
    "IQ3_K": 139,
    "IQ4_K": 140,
    "IQ5_K": 141,
    "IQ6_K": 142,
    "IQ4_KS": 145,
    "IQ2_KS": 147,
    "IQ4_KSS": 148,
    "IQ5_KS": 150,
    "IQ2_KT": 151,
    "IQ3_KT": 152,
    "IQ4_KT": 153,
    "IQ3_KS": 154,
    "IQ2_KL": 155,
    "IQ1_KT": 156,
}
NAMES = {number: name for name, number in NUMBERS.items()}


def file_type_name(number: object) -> str | None:
    """Return the name of a file type, such as "Q4_K_M"; None if the value of the key is missing or unknown."""
    return NAMES.get(number & ~GUESSED) if isinstance(number, int) and number >= 0 else None
