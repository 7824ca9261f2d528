"""Model files, read and written: whatever is in them is proven before it is used. Knows no model."""
