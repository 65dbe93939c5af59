"""NCCL: rings, trees and in-switch reductions over a node's channels, protocols as NCCL picks them."""
