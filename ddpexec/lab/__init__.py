"""Labs around the product: emulated networks, campaigns of predictions and runs, and the demo; nothing imports them."""
