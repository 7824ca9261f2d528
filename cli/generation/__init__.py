"""Commands that compute texts and embeddings."""
