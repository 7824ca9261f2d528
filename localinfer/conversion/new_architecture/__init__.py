"""A draft of a new architecture from a checkpoint: config.json, and the names and shapes of its tensors.

    config.json, headers of *.safetensors  ->  survey.py      ->  what the checkpoint has
    the known architectures                ->  comparison.py  ->  what distinguishes it from each, ranked by ranking.py
    the nearest one                        ->  remarks.py     ->  what differs, and by hints.py what it usually means
                                           ->  draft.py       ->  the architecture file and its conversion, with TODOs
"""
