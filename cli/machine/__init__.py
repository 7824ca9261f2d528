"""Settings, and what belongs to this machine: checks, kernels, tuning."""
