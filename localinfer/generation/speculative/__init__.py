"""Speculative decoding: tokens are drafted, and the model verifies all draft tokens in one pass over its weights.

Such a pass costs little more than one for a single token, as long as reading the weights takes longer than multiplying
with them. The text is identical to the one without speculative decoding (see `speculative_decoder.py`); only the time
differs.

    speculative_decoder    the draft tokens of one run: picks a drafter, verifies, counts
    prompt_lookup          n-gram drafts from earlier text
    draft_model            drafts by a smaller model
    draft_head             drafts by a head of the model: MTP, EAGLE-3, DFlash, DSpark, an assistant of Gemma 4
    draft_length           the best draft length, by measured costs and acceptance rates
"""
