"""The evaluation harness: runs tasks (`localinfer.evaluation.tasks`) on a model, and resumes interrupted runs.

    prepared = prepare(task, items, tokenizer)     # tokens, and the context and sequences that they need
    for number, result in prepared.run(model): ...

`lm_eval` offers models to lm-evaluation-harness.
"""
