"""Forward passes of the transformers of FLUX.1 and Stable Diffusion 3, and of text encoders."""

# Sources: diffusers 0.42, modules transformer_flux, transformer_sd3, embeddings and normalization
# of diffusers.models; transformers, modules modeling_clip and modeling_t5.

from __future__ import annotations

from allocsim.fitting.formulas.diffusion.network import Config, Network

CLIP_TOKENS = 77
_T5_BUCKETS = 32
_TIME = 256
"""Elements of the sinusoidal encoding of a denoising timestep."""
_PATCH = 2


def _modulated(net: Network, plain: int, *old: int) -> int:
    # Normalise a tensor, scale it and shift it.  The result is assigned to the variable of `old`,
    # which frees `old`.
    norm = net.take(plain)
    net.free(*old)
    return net.swap(net.swap(norm, plain), plain)


def _rotated(net: Network, x: int, plain: int) -> int:
    # The products with cosine and sine are in 32 bits.
    half = net.take(plain // 2)
    turned = net.swap(half, plain)
    wide = net.take(plain, 4)
    other = net.take(plain, 4)
    for _ in range(2):
        new = net.take(plain, 4)
        net.free(other)
        other = new
    net.free(wide)
    found = net.take(plain)
    net.free(other, x, turned)
    return found


def _queries(
    net: Network, rows: int, width: int, config: Config, *, is_wide: bool = False
) -> list[int]:
    # is_wide: True if the norm is computed in 32 bits.
    found = [net.linear(rows, width, width) for _ in range(3)]
    if config.get("qk_norm", True):
        net.weight(*2 * [config["attention_head_dim"]])
        for i in range(2):
            if is_wide:
                net.free(net.take(rows * width, 4), net.take(rows * width, 4))
            found[i] = net.swap(found[i], rows * width)
    return found


def _fed_forward(net: Network, x: int, norm: int, rows: int, width: int) -> tuple[int, ...]:
    # Return the new residual stream and the tensors that live until the end of the block.
    plain = rows * width
    norm = _modulated(net, plain, norm)
    inner = net.swap(net.linear(rows, width, 4 * width), 4 * plain)
    out = net.linear(rows, 4 * width, width)
    net.free(inner)
    out = net.swap(out, plain)
    return net.swap(x, plain), out, norm


def _joint(
    net: Network, x: int, text: int, rows: tuple[int, int], config: Config, *, turns: bool,
    dual: bool = False, last: bool = False,
) -> tuple[int, int]:  # fmt: skip
    # In a joint block image and text attend to each other with separate weights. `last` omits the
    # text's output. Most tensors live until the block ends.
    width = config["attention_head_dim"] * config["num_attention_heads"]
    plain, worded = rows[0] * width, rows[1] * width
    held = [x, text, net.linear(1, width, (9 if dual else 6) * width)]
    norm = _modulated(net, plain)
    second = net.take(plain) if dual else 0
    held.append(net.linear(1, width, (2 if last else 6) * width))
    text_norm = _modulated(net, worded)
    of_image = _queries(net, rows[0], width, config, is_wide=not turns)
    of_text = _queries(net, rows[1], width, config, is_wide=not turns)
    joined = [net.swap(each, plain + worded) for each in of_image]
    if turns:
        joined[:2] = [_rotated(net, each, plain + worded) for each in joined[:2]]
    attended = net.take(plain + worded)
    out = net.linear(rows[0], width, width)
    text_out = 0 if last else net.linear(rows[1], width, width)
    # Without the text's output, a view of the attention's output lives on.
    held += [attended] * last
    net.free(*[attended] * (not last), *joined, *of_text)
    held.append(net.swap(out, plain))
    x = net.take(plain)
    if dual:
        alone = _queries(net, rows[0], width, config, is_wide=not turns)
        attended = net.take(plain)
        out = net.linear(rows[0], width, width)
        net.free(attended, *alone)
        held += [second, net.swap(out, plain)]
        x = net.swap(x, plain)
    x, *more = _fed_forward(net, x, norm, rows[0], width)
    held += more
    if last:
        text = net.take(0)
        held.append(text_norm)
    else:
        held.append(net.swap(text_out, worded))
        text, *more = _fed_forward(net, net.take(worded), text_norm, rows[1], width)
        held += more
    net.free(*held)
    return x, text


def _embedded_time(net: Network, width: int, pooled: int, count: int) -> None:
    # Embed `count` numbers and the pooled text; the results are small.
    for inner in (*count * [_TIME], pooled):
        net.free(net.linear(1, inner, width), net.linear(1, width, width))


def flux(net: Network, config: Config, batch: int, side: int, context: int) -> None:
    """Run the allocator calls of a forward pass of FluxTransformer2DModel on `net`.

    batch, side: number of latents (encoded images), and height and width of each.
    context: number of text tokens for each latent.
    """
    head = config["attention_head_dim"]
    width = head * config["num_attention_heads"]
    rows = batch * (side // _PATCH) ** 2, batch * context
    channels = config["in_channels"]
    x = net.linear(rows[0], channels, width)
    _embedded_time(net, width, config["pooled_projection_dim"], 1 + config["guidance_embeds"])
    text = net.linear(rows[1], config["joint_attention_dim"], width)
    angles = [net.take(sum(rows) // batch * head, 4) for _ in range(2)]
    for _ in net.repeated(config["num_layers"]):
        x, text = _joint(net, x, text, rows, config, turns=True)
    both = sum(rows)
    plain = both * width
    for _ in net.repeated(config["num_single_layers"]):
        joined = net.take(plain)
        net.free(net.linear(1, width, 3 * width))
        norm = _modulated(net, plain)
        inner = net.swap(net.linear(both, width, 4 * width), 4 * plain)
        queries = _queries(net, both, width, config)
        queries[:2] = [_rotated(net, each, plain) for each in queries[:2]]
        attended = net.take(plain)
        net.free(*queries)
        whole = net.take(5 * plain)
        out = net.linear(both, 5 * width, width)
        gated = net.swap(out, plain)
        net.free(whole)
        found = net.swap(gated, plain)
        net.free(attended, norm, inner, joined, *{x, text})
        x = text = found
    net.free(net.linear(1, width, 2 * width))
    net.free(net.linear(rows[0], width, channels), *{x, text}, *angles)


def sd3(net: Network, config: Config, batch: int, side: int, context: int) -> None:
    """Run the allocator calls of a forward pass of SD3Transformer2DModel on `net`.

    batch, side: number of latents (encoded images), and height and width of each.
    context: number of text tokens for each latent.
    """
    width, layers = (
        config["attention_head_dim"] * config["num_attention_heads"],
        config["num_layers"],
    )
    rows, channels = (batch * (side // _PATCH) ** 2, batch * context), config["in_channels"]
    net.weight(config["pos_embed_max_size"] ** 2 * width, is_buffer=True)
    x = net.swap(net.conv(rows[0], channels, width, side=_PATCH), rows[0] * width)
    _embedded_time(net, width, config["pooled_projection_dim"], 1)
    text = net.linear(rows[1], config["joint_attention_dim"], width)
    n_dual = len(config.get("dual_attention_layers", ()))  # these are the first layers
    for dual, last, count in ((True, False, n_dual), (False, False, layers - 1 - n_dual),
                              (False, True, 1)):  # fmt: skip
        for _ in net.repeated(count):
            x, text = _joint(net, x, text, rows, config, turns=False, dual=dual, last=last)
    net.free(net.linear(1, width, 2 * width), text)
    x = _modulated(net, rows[0] * width, x)
    net.free(net.linear(rows[0], width, channels * _PATCH**2), x)


def clip(net: Network, config: Config, batch: int, tokens: int) -> None:
    """Run the allocator calls of CLIP on `net`, for `batch` texts of `tokens` tokens."""
    width, inner, rows = config["hidden_size"], config["intermediate_size"], batch * tokens
    net.weight(config["vocab_size"] * width, CLIP_TOKENS * width)
    x = net.take(rows * width)
    for _ in net.repeated(config["num_hidden_layers"]):
        net.weight(*4 * [width])
        held = [net.linear(rows, width, width) for _ in range(4)]
        forward = net.linear(rows, width, inner), net.linear(rows, inner, width)
        net.free(*held, *forward)
    net.weight(width, width)
    if config["architectures"] == ["CLIPTextModelWithProjection"]:
        net.free(net.linear(batch, width, width, bias=False))
    net.free(x)


def t5(net: Network, config: Config, batch: int, tokens: int) -> None:
    """Run the allocator calls of T5's encoder on `net`, for `batch` texts of `tokens` tokens.

    Attention is eager, without a fused kernel.
    """
    width, inner, heads = config["d_model"], config["d_ff"], config["num_heads"]
    values, rows = heads * config["d_kv"], batch * tokens
    scores = batch * heads * tokens**2
    net.weight(config["vocab_size"] * width, _T5_BUCKETS * heads)
    x, bias = net.take(rows * width), net.take(scores)
    for _ in net.repeated(config["num_layers"]):
        net.weight(width, width)
        held = [net.linear(rows, width, values, bias=False) for _ in range(3)]
        held += [net.take(scores), net.take(scores, 4), net.take(scores, 4)]
        net.free(*held, net.linear(rows, values, width, bias=False))
        both = [net.linear(rows, width, inner, bias=False) for _ in range(2)]
        net.weight(inner * width, is_linear=True, is_wide=True)
        net.free(net.take(rows * width), *both)
    net.weight(width)
    net.free(x, bias)
