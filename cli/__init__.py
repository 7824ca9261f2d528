"""The command line: Typer commands, and everything that is drawn on a screen. No mathematics here."""
