"""Commands that are killed, stopped, or cannot write, at random moments: what is left of them."""
