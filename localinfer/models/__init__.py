"""Models that have a name: which there are, and how their files get here."""
