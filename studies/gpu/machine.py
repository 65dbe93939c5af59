"""Print what torch sees of this machine as one JSON document: `python -m studies.gpu.machine --device cuda`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import torch

from ddpexec.capturing.describe import device_model

NO_GPU = "torch sees no GPU"


def description(device: torch.device) -> dict[str, Any]:
    """Return the device's names, its abilities, and the versions of what drives it."""
    common = {"device": device.type, "model": device_model(device), "cores": os.cpu_count(), "torch": torch.__version__}
    if device.type == "cpu":
        return common
    properties = torch.cuda.get_device_properties(device)
    return common | {
        "name": properties.name,
        "gpus": torch.cuda.device_count(),
        "memory_bytes": properties.total_memory,
        "capability": [properties.major, properties.minor],
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def main() -> None:
    """Print the document, or say that there is no such device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = torch.device(parser.parse_args().device)
    if device.type == "cuda" and torch.cuda.device_count() == 0:
        sys.exit(f"error: {NO_GPU}; use --device cpu")
    print(json.dumps(description(device), indent=2))


if __name__ == "__main__":
    main()
