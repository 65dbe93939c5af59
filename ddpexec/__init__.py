"""Run, measure and trace distributed data parallel training on torch.distributed."""
