"""Llama as in torchtitan, for fsdp_steps.py: plain modules, created on the caller's device."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 128256


@dataclass(frozen=True)
class Shape:
    """Sizes of the whole model; a tensor parallel rank holds its part of the heads and of inner."""

    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int = 8

    @property
    def head(self):
        return self.width // self.heads


SHAPES = {"8B": Shape(4096, 14336, 32, 32), "70B": Shape(8192, 28672, 80, 64)}


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return scaled.type_as(x) * self.weight


def linear(into, out):
    return nn.Linear(into, out, bias=False)


def rotated(x, angles):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(3)


def repeated(x, times):
    shape = (*x.shape[:3], times, x.shape[3])
    return x.unsqueeze(3).expand(shape).reshape(*x.shape[:2], -1, x.shape[3])


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.head, self.times = shape.head, shape.heads // shape.kv_heads
        keys = shape.kv_heads * shape.head
        self.q, self.k = linear(shape.width, shape.width), linear(shape.width, keys)
        self.v, self.out = linear(shape.width, keys), linear(shape.width, shape.width)

    def forward(self, x, angles):
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (each.view(*x.shape[:2], -1, self.head) for each in (q, k, v))
        angles = angles[: x.shape[1]].view(1, x.shape[1], 1, -1)
        rotated_q, rotated_k = rotated(q, angles), rotated(k, angles)
        q, k = rotated_q.type_as(q), rotated_k.type_as(k)
        del rotated_q, rotated_k
        k, v = repeated(k, self.times), repeated(v, self.times)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(*x.shape[:2], -1))


class FeedForward(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate, self.down, self.up = (
            linear(shape.width, shape.inner),
            linear(shape.inner, shape.width),
            linear(shape.width, shape.inner),
        )

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.attention, self.feed_forward = Attention(shape), FeedForward(shape)
        self.attention_norm, self.feed_forward_norm = Norm(shape.width), Norm(shape.width)

    def forward(self, x, angles):
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    def __init__(self, shape, tokens, returns_wide):
        super().__init__()
        self.returns_wide = returns_wide
        self.embeddings = nn.Embedding(VOCABULARY, shape.width)
        self.register_buffer("angles", torch.empty(tokens, shape.head // 2, dtype=torch.complex64))
        self.layers = nn.ModuleDict({str(at): Block(shape) for at in range(shape.layers)})
        self.norm, self.output = Norm(shape.width), linear(shape.width, VOCABULARY)

    def forward(self, ids):
        x = self.embeddings(ids)
        for layer in self.layers.values():
            x = layer(x, self.angles)
        logits = self.output(self.norm(x))
        return logits.float() if self.returns_wide else logits
