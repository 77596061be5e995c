"""The GPT-2 of samples/gpt2, operator by operator: the same kernels in the same order, the same names and weights."""

import json
import struct

import torch
from torch import nn
from torch.nn import functional as F


def normal(shape, std, generator):
    return nn.Parameter(torch.normal(0.0, std, shape, generator=generator))


class Conv1D(nn.Module):
    def __init__(self, inputs, outputs, std, generator):
        super().__init__()
        self.weight = normal((inputs, outputs), std, generator)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        rows = torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight)
        return rows.view(x.size(0), x.size(1), rows.size(1))


class Attention(nn.Module):
    def __init__(self, hidden, heads, std, generator):
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(hidden, 3 * hidden, 0.02, generator)
        self.c_proj = Conv1D(hidden, hidden, std, generator)

    def forward(self, x):
        batch, length, hidden = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(hidden, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, hidden))


class Mlp(nn.Module):
    def __init__(self, hidden, std, generator):
        super().__init__()
        self.c_fc = Conv1D(hidden, 4 * hidden, 0.02, generator)
        self.c_proj = Conv1D(4 * hidden, hidden, std, generator)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, hidden, heads, std, generator):
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden)
        self.attn = Attention(hidden, heads, std, generator)
        self.ln_2 = nn.LayerNorm(hidden)
        self.mlp = Mlp(hidden, std, generator)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, shape, generator):
        super().__init__()
        hidden = shape["hidden"]
        self.wte = nn.Embedding(shape["vocab"], hidden, _weight=normal((shape["vocab"], hidden), 0.02, generator).data)
        self.wpe = nn.Embedding(shape["seq"], hidden, _weight=normal((shape["seq"], hidden), 0.02, generator).data)
        std = 0.02 / (2.0 * shape["layers"]) ** 0.5
        self.h = nn.ModuleList(Block(hidden, shape["heads"], std, generator) for _ in range(shape["layers"]))
        self.ln_f = nn.LayerNorm(hidden)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class Gpt2(nn.Module):
    """forward(tokens (B, T)): the mean cross entropy of predicting each token from the tokens before it."""

    def __init__(self, shape):
        super().__init__()
        self.transformer = Transformer(shape, torch.Generator().manual_seed(1234))

    def forward(self, tokens):
        logits = F.linear(self.transformer(tokens), self.transformer.wte.weight).float()
        labels = F.pad(tokens[:, 1:], (0, 1), value=-100)
        return F.cross_entropy(logits.view(-1, logits.size(2)), labels.view(-1))


def make_model(shape, dtype):
    """Returns the model with weights in fp32 that `dtype` can hold."""
    return Gpt2(shape).to(dtype).float()


def write_weights(model, path):
    """Writes the parameters in fp32 to a .safetensors file."""
    header, pieces, offset = {}, [], 0
    for name, parameter in model.named_parameters():
        data = parameter.detach().contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(parameter.shape), "data_offsets": [offset, offset + len(data)]}
        pieces.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(pieces))
