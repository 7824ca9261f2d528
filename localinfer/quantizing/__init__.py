"""Models in smaller types: which type each tensor gets, the work, and how far the result is from its source."""
