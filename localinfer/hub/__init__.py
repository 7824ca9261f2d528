"""Model names: the registry of models.toml, the model stores, and downloads."""
