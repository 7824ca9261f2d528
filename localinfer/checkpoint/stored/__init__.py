"""What is stored: tensors as they lie in files, and what is done to their values. Knows no architecture."""
