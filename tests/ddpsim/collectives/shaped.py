"""A network of single processes, as the lab shapes them."""

SHAPED = """
name: shaped
node:
  processes: {count: 1, rate: 10GB/s, total: 20GB/s}
  nics: [{count: 1, rate: 1gbit, kind: ethernet, delay: DELAY}]
fabric: {kind: flat}
"""
"""`DELAY` stands for a port's."""

SHAPED_100US = SHAPED.replace("DELAY", "0.1ms")
