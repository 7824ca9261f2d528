"""What runs a plan: threads, their clock, and the face that takes token ids and gives logits. Knows no text."""
