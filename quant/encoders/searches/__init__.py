"""What is searched, for a smaller error: scales, mins, steps, and rows of a codebook."""
