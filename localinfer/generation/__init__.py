"""From logits to text: the loop that samples token after token, and the pieces that it yields."""
