"""The GPT-2 of samples/gpt2 in torch.nn: Hugging Face's names and layout, the same operators as in C++."""

import torch
import torch.nn.functional as F
from torch import nn


class Conv1D(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(0, 0.02))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        rows = torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight)
        return rows.view(x.size(0), x.size(1), rows.size(1))


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(hidden, 3 * hidden)
        self.c_proj = Conv1D(hidden, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        q, k, v = (part.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
                   for part in self.c_attn(x).split(hidden, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, hidden))


class Mlp(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.c_fc = Conv1D(hidden, 4 * hidden)
        self.c_proj = Conv1D(4 * hidden, hidden)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden)
        self.attn = Attention(hidden, heads)
        self.ln_2 = nn.LayerNorm(hidden)
        self.mlp = Mlp(hidden)

    def forward(self, x):
        middle = x + self.attn(self.ln_1(x))
        return middle + self.mlp(self.ln_2(middle))


class Transformer(nn.Module):
    def __init__(self, layers, hidden, heads, vocab, positions):
        super().__init__()
        self.wte = nn.Embedding(vocab, hidden)
        self.wpe = nn.Embedding(positions, hidden)
        self.h = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)


class Gpt2(nn.Module):
    def __init__(self, layers=2, hidden=64, heads=4, vocab=256, positions=32):
        super().__init__()
        self.transformer = Transformer(layers, hidden, heads, vocab, positions)

    def forward(self, tokens):
        """The loss of predicting each token from the earlier tokens."""
        body = self.transformer
        x = body.wte(tokens) + body.wpe(torch.arange(tokens.size(1)))
        for block in body.h:
            x = block(x)
        logits = F.linear(body.ln_f(x), body.wte.weight).float()
        labels = F.pad(tokens[:, 1:], (0, 1), value=-100)
        return F.cross_entropy(logits.view(-1, logits.size(2)), labels.view(-1), ignore_index=-100)
