"""The compute graph of a model.

- What architecture files are written with: `builder` is the interface, `attention`, `feed_forward`,
  `mixture_of_experts`, `decoder` and `encoder` are composed of its operations.
- What records the operations: `graph_builder`, the modules named `..._recorder`, `altup` and `matrix_products`; draft
  heads are in `mtp` and `eagle3`.
- What is recorded: `model_graph`, `compute_graph`, `op`, `buffers`, `cost`.
- What the model file specifies: `model_properties`, `hyperparameters`, `tensors`, and the modules of single topics,
  such as `rope`, `router`, `recurrence` and `sliding_window`.
- What sequences keep: `cache`.
"""
