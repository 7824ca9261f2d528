"""Searches that reduce the error of an encoding: over scales, mins, superblock scales and codebook rows."""
