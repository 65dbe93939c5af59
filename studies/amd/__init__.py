"""RCCL on AMD's boards beside public tables."""
