"""Program that reads unknown values, and a value that becomes known again."""

import torch


def main():
    scores = torch.randn(3, device="cuda")
    ids = torch.randint(0, 9, (3,), device="cuda")
    steps = torch.arange(3, device="cuda")
    print((scores > 0).long().tolist())

    ids += 1
    print(ids.tolist())

    # Freed memory is reused.
    del steps
    other = torch.empty(3, dtype=torch.long, device="cuda")
    print(other.tolist())

    ids.fill_(7)
    print(ids.tolist())


main()
