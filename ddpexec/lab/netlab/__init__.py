"""A network of any shape on one Linux machine, for real traffic at the rates and delays of another."""
