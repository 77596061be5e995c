"""Notices parameters that the program replaces in a model or adds to it after initialize(): the engine does not train them."""

from ._core import UserError


class ModelWatch:
    def __init__(self, model):
        self._model = model
        self._trained = {id(parameter) for parameter in model.parameters()}
        self._note()

    def _note(self):
        modules = list(self._model.named_modules())
        self._children = [(module._modules, dict(module._modules)) for _, module in modules]
        self._parameters = [(module._parameters, dict(module._parameters), prefix) for prefix, module in modules]

    def check(self):
        """Raises UserError. Called at each step(): compares references only."""
        for now, before, prefix in self._parameters:
            for key, parameter in before.items():
                if now.get(key) is not parameter:
                    name = f"{prefix}.{key}" if prefix else key
                    raise UserError(f"parameter {name} was replaced after initialize(): the engine trains the one of before; "
                                    "replace parameters before, or copy values in place under torch.no_grad()")
        if (all(now == before for now, before in self._children)
                and all(len(now) == len(before) for now, before, _ in self._parameters)):
            return
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad and id(parameter) not in self._trained:
                raise UserError(f"parameter {name} was added after initialize(): the engine does not train it; build the "
                                "whole model before, or freeze the parameter")
        self._note()
