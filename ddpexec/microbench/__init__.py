"""Measurements of allreduces as DDP issues them, and of DDP's own work beside them."""
