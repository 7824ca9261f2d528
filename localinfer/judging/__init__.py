"""What a model is worth on a text, and where its time goes."""
