"""Training steps of a latent diffusion model: a conditional U-Net, images of several shapes.

The last line printed is `torch.cuda.memory_stats()` as JSON.
"""

import argparse
import json
import random

import torch
from diffusers import UNet2DConditionModel

SHAPES = [(64, 64), (48, 80), (80, 48), (56, 72), (72, 56)]
"""Height and width of the latents; a batch has images of one aspect ratio."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    shapes = random.Random(options.seed)
    with torch.device("cuda"):
        model = UNet2DConditionModel(
            sample_size=64,
            layers_per_block=1,
            block_out_channels=(128, 256, 512),
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=768,
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept = torch.linspace(1, 0, 1000, device="cuda").sqrt()

    model.train()
    for _ in range(options.steps):
        height, width = shapes.choice(SHAPES)
        latents = torch.randn(options.batch, 4, height, width, device="cuda")
        text = torch.randn(options.batch, 77, 768, device="cuda")
        noise = torch.randn_like(latents)
        times = torch.randint(1000, (options.batch,), device="cuda")
        share = kept[times].view(-1, 1, 1, 1)
        noisy = share * latents + (1 - share**2).sqrt() * noise
        with torch.autocast("cuda", torch.bfloat16):
            predicted = model(noisy, times, encoder_hidden_states=text).sample
        torch.nn.functional.mse_loss(predicted.float(), noise).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(json.dumps(torch.cuda.memory_stats()))


if __name__ == "__main__":
    main()
