"""Write `torch.cuda.get_device_properties` and the versions in use to a JSON file.

The identifiers of the card and its place in the machine are left out.
"""

import json
import platform
import sys
from datetime import date
from pathlib import Path

import torch

from benchmarks.on_gpu.inside.packages import installed

PRIVATE = ("uuid", "pci_bus_id", "pci_device_id", "pci_domain_id")


def main() -> None:
    properties = torch.cuda.get_device_properties(0)
    found = {
        name: str(getattr(properties, name))
        for name in dir(properties)
        if not name.startswith("_") and name not in PRIVATE
    }
    found |= {
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()),
        "transformers": str(installed("transformers")),
        "peft": str(installed("peft")),
        "python": platform.python_version(),
        "date": date.today().isoformat(),
    }
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
