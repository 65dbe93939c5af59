"""Documents that people pass around: read with every problem placed, and written, as their records declare them."""
