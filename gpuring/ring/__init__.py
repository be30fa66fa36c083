"""What users hold: rings, producers, consumers, slots, and waits for several of them."""
