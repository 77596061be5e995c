"""deepspeed.ops.adam's optimizers. They only hold hyperparameters; the engine's kernels do the updates."""

import torch


class _Adam(torch.optim.Optimizer):
    def __init__(self, params, lr, bias_correction, betas, eps, adam_w_mode, weight_decay, amsgrad):
        super().__init__(params, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay))
        self.bias_correction = bias_correction
        self.adam_w_mode = adam_w_mode
        self.amsgrad = amsgrad

    def step(self, closure=None):
        from .._core import UserError

        raise UserError(f"{type(self).__name__}.step(): pass this optimizer to zerorun.initialize() and call "
                        "engine.step()")


class FusedAdam(_Adam):
    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, adam_w_mode=True,
                 weight_decay=0.0, amsgrad=False, set_grad_none=True):
        super().__init__(params, lr, bias_correction, betas, eps, adam_w_mode, weight_decay, amsgrad)


class DeepSpeedCPUAdam(_Adam):
    def __init__(self, model_params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, weight_decay=0,
                 amsgrad=False, adamw_mode=True, fp32_optimizer_states=True):
        super().__init__(model_params, lr, bias_correction, betas, eps, adamw_mode, weight_decay, amsgrad)
