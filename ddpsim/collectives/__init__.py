"""Collectives: channels found on the graph, schedules as data, transports with physical constants."""
