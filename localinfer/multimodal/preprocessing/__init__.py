"""From decoded images to the input of encoders: resizing, tiles, normalization, patches."""
