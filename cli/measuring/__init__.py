"""Commands that measure: speed, where time goes, how good a model is, and which of its weights matter."""
