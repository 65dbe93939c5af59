"""Racks of one NVLink domain beside public tables."""
