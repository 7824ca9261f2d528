"""The kernels of layers with a recurrent state: state-space models and linear attention."""
