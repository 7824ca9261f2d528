"""Diffusion language models: a text is written by unmasking its tokens, in any order.

    schedule.py    how many tokens each step unmasks
    unmasking.py   which tokens: predictions, their confidence, and the choice of positions
    denoiser.py    the loop: evaluate the whole text, predict the masked tokens, unmask some of them
    run.py         a run of a session: its limits and its pieces
"""
