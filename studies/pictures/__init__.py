"""The two pictures that the README opens with."""
