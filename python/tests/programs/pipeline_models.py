"""A model as a list of layers for pipelines, and the same model in plain torch."""

import torch
from torch.nn import functional

from zerorun.pipe import LayerSpec, TiedLayerSpec

WORDS, WIDTH, LENGTH, BATCH = 23, 12, 5, 3


class Block(torch.nn.Module):
    """Takes and returns a float tensor and an integer mask."""

    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, inner), torch.nn.Linear(inner, width)
        self.register_buffer("scale", torch.full((width,), 0.5))

    def forward(self, inputs):
        hidden, mask = inputs
        return hidden + self.down(torch.tanh(self.up(hidden))) * self.scale * mask.unsqueeze(-1), mask


class Frozen(Block):
    def __init__(self, width, inner):
        super().__init__(width, inner)
        self.requires_grad_(False)


class Embedding(torch.nn.Embedding):
    def forward(self, inputs):
        tokens, mask = inputs
        return super().forward(tokens), mask


def hidden_only(inputs):
    return inputs[0]


def logits(embedding, hidden):
    return functional.linear(hidden, embedding.weight)


def specs():
    """Uneven layers, of which some have no parameters."""
    return [TiedLayerSpec("embedding", Embedding, WORDS, WIDTH),
            LayerSpec(Block, WIDTH, 40),
            LayerSpec(Block, WIDTH, inner=3),
            lambda inputs: (torch.tanh(inputs[0]), inputs[1]),
            LayerSpec(Frozen, WIDTH, 7),
            LayerSpec(Block, WIDTH, 9),
            hidden_only,
            LayerSpec(torch.nn.LayerNorm, WIDTH),
            TiedLayerSpec("embedding", Embedding, WORDS, WIDTH, forward_fn=logits)]


def loss_fn(outputs, labels):
    return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def batch(step, data, micro):
    """((tokens, mask), labels). Some are longer."""
    length = LENGTH + micro % 2
    generator = torch.Generator().manual_seed(1000 * step + 100 * data + micro)
    tokens = torch.randint(WORDS, (BATCH, length + 1), generator=generator)
    mask = torch.randint(2, (BATCH, length), generator=generator)
    return (tokens[:, :-1], mask), tokens[:, 1:]


class Plain(torch.nn.Module):
    """The same model, with the names that it has in a PipelineModule."""

    def __init__(self):
        super().__init__()
        self.tied_modules = torch.nn.ModuleDict()
        self.functions = []
        for index, spec in enumerate(specs()):
            if isinstance(spec, TiedLayerSpec):
                if spec.key not in self.tied_modules:
                    self.tied_modules[spec.key] = spec.typename(*spec.module_args)
                    self.functions.append(self.tied_modules[spec.key])
                else:
                    self.functions.append(lambda hidden: logits(self.tied_modules["embedding"], hidden))
            elif isinstance(spec, LayerSpec):
                self.add_module(str(index), spec.typename(*spec.module_args, **spec.module_kwargs))
                self.functions.append(getattr(self, str(index)))
            else:
                self.functions.append(spec)

    def forward(self, values):
        for function in self.functions:
            values = function(values)
        return values
