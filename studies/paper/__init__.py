"""The paper's evaluation again: its figures, drawn as it drew them, and its claims, each with a verdict.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, section 5.
"""
