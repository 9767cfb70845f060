"""ResNet-50 trained with SGD on images whose side changes from batch to batch.

The last line printed is `torch.cuda.memory_stats()` as JSON.
"""

import argparse
import json
import random

import torch
import torchvision


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    sides = random.Random(options.seed)
    with torch.device("cuda"):
        model = torchvision.models.resnet50(weights=None, num_classes=1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    model.train()
    for _ in range(options.steps):
        side = 32 * sides.randrange(4, 9)
        images = torch.randn(options.batch, 3, side, side, device="cuda")
        labels = torch.randint(1000, (options.batch,), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(json.dumps(torch.cuda.memory_stats()))


if __name__ == "__main__":
    main()
