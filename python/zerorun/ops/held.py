"""The base of deepspeed.ops' optimizers. They only hold hyperparameters; the engine's kernels do the updates."""

import torch


class HeldOptimizer(torch.optim.Optimizer):
    kind = None  # the "type" of an optimizer in ds_config.json

    def __init__(self, params, constants, **of_groups):
        """`of_groups`: may differ between groups. `constants`: the same for all."""
        super().__init__(params, of_groups)
        self._of_groups, self._constants = list(of_groups), constants

    def params_of(self, group):
        """The "params" of ds_config.json for a group."""
        return {**{name: group[name] for name in self._of_groups}, **self._constants}

    def step(self, closure=None):
        from .._core import UserError

        raise UserError(f"{type(self).__name__}.step(): pass this optimizer to zerorun.initialize() and call "
                        "engine.step()")
