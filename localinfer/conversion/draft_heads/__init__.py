"""Conversion of draft heads, which predict further tokens: in files of their own, or as layers after the others."""
