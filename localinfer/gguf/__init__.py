"""Reading and writing model files. Files are validated before use; no model architecture is known here."""
