"""Mutants of four rooms, and which tests kill them."""
