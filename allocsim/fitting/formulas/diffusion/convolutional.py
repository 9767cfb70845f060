"""Forward passes of UNet2DConditionModel and AutoencoderKL of diffusers."""

# Sources: diffusers 0.42, modules unet_2d_condition, unet_2d_blocks, resnet, attention,
# transformer_2d and vae of diffusers.models.

from __future__ import annotations

from typing import NamedTuple

from allocsim.fitting.formulas.diffusion.network import Config, Network


class _Text(NamedTuple):
    """Encoded text to which the image attends.

    rows, width: number of tokens in the batch, and number of elements of a token.
    is_linear: True if linear layers project the image before and after attention; False if
        convolutions do.
    """

    rows: int
    width: int
    is_linear: bool


def _resnet(net: Network, rows: int, widths: tuple[int, int], time: int = 0) -> int:
    # The caller frees the input. time: width of the timestep's encoding; 0 without one.
    width, out = widths
    net.weight(width, width)
    hidden = net.swap(net.take(rows * width), rows * width)
    hidden, old = net.conv(rows, width, out), hidden
    net.free(old)
    if time:
        net.weight(time * out, is_linear=True)
        net.weight(out)
        hidden = net.swap(hidden, rows * out)
    net.weight(out, out)
    for _ in range(2):
        hidden = net.swap(hidden, rows * out)
    hidden, old = net.conv(rows, out, out), hidden
    net.free(old)
    shortcut = net.conv(rows, width, out, side=1) if width != out else 0
    total = net.take(rows * out)
    found = net.swap(total, rows * out)
    net.free(hidden, *[shortcut] * (width != out))
    return found


def _attended(net: Network, rows: int, width: int, text: _Text | None) -> int:
    # The caller frees the input. Without a text, the image attends to itself.
    tokens, inner = (rows, width) if text is None else (text.rows, text.width)
    queries = net.linear(rows, width, width, bias=False)
    keys = [net.linear(tokens, inner, width, bias=False) for _ in range(2)]
    found = net.take(rows * width)
    found, old = net.linear(rows, width, width), found
    net.free(old)
    found = net.swap(found, rows * width)
    net.free(queries, *keys)
    return found


def _spatial(net: Network, rows: int, width: int, depth: int, text: _Text) -> int:
    # The caller holds the input.
    def projected() -> int:
        if text.is_linear:
            return net.linear(rows, width, width)
        return net.conv(rows, width, width, side=1)

    net.weight(width, width)
    norm = net.take(rows * width)
    hidden = projected()
    net.free(norm)
    if not text.is_linear:
        hidden = net.swap(hidden, rows * width)
    plain = rows * width
    for _ in net.repeated(depth):
        net.weight(*6 * [width])
        norm = net.take(plain)
        first = _attended(net, rows, width, None)
        summed = net.take(plain)
        norm = net.swap(norm, plain)
        second = _attended(net, rows, width, text)
        net.free(first)
        summed, old = net.take(plain), summed
        net.free(old)
        norm = net.swap(norm, plain)
        both = net.linear(rows, width, 8 * width)
        gate, product = net.take(4 * plain), net.take(4 * plain)
        net.free(gate, both)
        forward = net.linear(rows, 4 * width, width)
        net.free(product)
        found = net.take(plain)
        net.free(summed, second, norm, forward, hidden)
        hidden = found
    out = projected()
    out = net.swap(out, plain)
    found = net.swap(out, plain)
    net.free(hidden)
    return found


def unet(net: Network, config: Config, batch: int, side: int, context: int) -> None:
    """Run the allocator calls of a forward pass of UNet2DConditionModel on `net`.

    batch, side: number of latents (encoded images), and height and width of each.
    context: number of text tokens for each latent.
    """
    channels, each = config["block_out_channels"], config["layers_per_block"]
    depths = config["transformer_layers_per_block"]
    downs, ups = config["down_block_types"], config["up_block_types"]
    is_linear = config["use_linear_projection"]
    text = _Text(batch * context, config["cross_attention_dim"], is_linear)
    time, rows = 4 * channels[0], batch * side**2

    def block(width: int, out: int, depth: int) -> int:
        found = _resnet(net, rows, (width, out), time)
        if depth:
            found, old = _spatial(net, rows, out, depth, text), found
            net.free(old)
        return found

    vectors = [
        net.linear(batch, inner, time)
        for first in (channels[0], config.get("projection_class_embeddings_input_dim", 0))
        if first
        for inner in (first, time)
    ]
    x = net.conv(rows, 4, channels[0])
    skips, width = [(x, channels[0])], channels[0]
    for level, out in enumerate(channels):
        for _ in range(each):
            depth = depths[level] * downs[level].startswith("Cross")
            x, width = block(width, out, depth), out
            skips.append((x, out))
        if level < len(channels) - 1:
            x = net.conv(rows, out, out, rows // 4)
            rows //= 4
            skips.append((x, out))
    middle = block(width, width, depths[-1])
    x = _resnet(net, rows, (width, width), time)
    net.free(middle)
    held: list[int] = []
    for level, out in enumerate(reversed(channels)):
        net.free(*held)
        held, start = [], x
        for _ in range(each + 1):
            skip, more = skips.pop()
            held.append(skip)
            joined = net.take(rows * (width + more))
            if x != start:
                net.free(x)
            depth = depths[-1 - level] * ups[level].startswith("Cross")
            # The upper blocks free the joined tensor before they attend.
            x = _resnet(net, rows, (width + more, out), time)
            net.free(joined)
            if depth:
                x, old = _spatial(net, rows, out, depth, text), x
                net.free(old)
            width = out
        if level < len(channels) - 1:
            large = net.take(4 * rows * out)
            net.free(x)
            rows *= 4
            x = net.conv(rows, out, out)
            net.free(large)
        net.free(start)
    net.weight(channels[0], channels[0])
    x = net.swap(net.swap(x, rows * width), rows * width)
    net.free(net.conv(rows, channels[0], 4), x, *held, *vectors)


def _middle(net: Network, x: int, rows: int, width: int) -> int:
    # The middle of an autoencoder; its attention has one head.
    first = _resnet(net, rows, (width, width))
    net.free(x)
    net.weight(width, width)
    held = [net.take(rows * width), *(net.linear(rows, width, width) for _ in range(3))]
    attended = net.take(rows * width)
    out = net.linear(rows, width, width)
    net.free(attended)
    out = net.swap(out, rows * width)
    net.free(*held, first)
    found = _resnet(net, rows, (width, width))
    net.free(out)
    return found


def decoder(net: Network, config: Config, batch: int, side: int) -> None:
    """Run the allocator calls of AutoencoderKL's decoder on `net`.

    batch, side: number of latents (encoded images), and height and width of each.
    """
    channels, latent = tuple(reversed(config["block_out_channels"])), config["latent_channels"]
    rows = batch * side**2
    if config.get("use_post_quant_conv", True):
        net.free(net.conv(rows, latent, latent, side=1))
    x = _middle(net, net.conv(rows, latent, channels[0]), rows, channels[0])
    width = channels[0]
    for level, out in enumerate(channels):
        start = x
        for _ in range(config["layers_per_block"] + 1):
            new = _resnet(net, rows, (width, out))
            if x != start:
                net.free(x)
            x, width = new, out
        if level < len(channels) - 1:
            large = net.take(4 * rows * out)
            rows *= 4
            new = net.conv(rows, out, out)
            net.free(large, x)
            x = new
        net.free(start)
    net.weight(width, width)
    x = net.swap(net.swap(x, rows * width), rows * width)
    net.free(net.conv(rows, width, 3), x)


def encoder_of_images(net: Network, config: Config) -> None:
    """List in `net` the weights of AutoencoderKL's encoder, which pipelines load but never run."""
    channels, latent = config["block_out_channels"], config["latent_channels"]
    width = channels[0]
    net.conv(1, 3, width)
    for level, out in enumerate(channels):
        for _ in range(config["layers_per_block"]):
            _resnet(net, 1, (width, out))
            width = out
        if level < len(channels) - 1:
            net.conv(1, out, out)
    _middle(net, 0, 1, width)
    net.weight(width, width)
    net.conv(1, width, 2 * latent)
    if config.get("use_quant_conv", True):
        net.conv(1, 2 * latent, 2 * latent, side=1)
