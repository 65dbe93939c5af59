"""`python -m studies.published`: published steps of real GPUs, and PyTorch's own DDP table, predicted."""

from studies.published.gpu_page import main as gpu_page
from studies.published.published import main as published

if __name__ == "__main__":
    published()
    gpu_page()
