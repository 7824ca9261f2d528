"""HRM-Text: two stacks of one layer, and of two, with other numbers of cycles."""

import transformers as T
from reference_spec import Spec, rope, sizes

MODELS = {
    "hrm-text": Spec(
        architecture="hrm_text", saved=True,
        config=T.HrmTextConfig(
            **sizes(3, 3, 2, head_dim=32), **rope(), H_cycles=2, L_cycles=2, embedding_scale=8.0, prefix_lm=False,
        ),
    ),
    "hrm-text-narrow": Spec(
        architecture="hrm_text", saved=True,
        config=T.HrmTextConfig(
            **sizes(2, 2, 1, hidden_size=64, head_dim=32), **rope(theta=1e5), H_cycles=3, L_cycles=1,
            embedding_scale=4.0, rms_norm_eps=1e-5,
        ),
    ),
}  # fmt: skip
