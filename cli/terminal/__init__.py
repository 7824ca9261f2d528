"""What commands draw on the terminal."""
