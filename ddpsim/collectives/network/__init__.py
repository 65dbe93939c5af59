"""The network: flows on links, shared max-min fair."""
