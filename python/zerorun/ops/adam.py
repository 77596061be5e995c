"""deepspeed.ops.adam."""

from .held import HeldOptimizer


class _Adam(HeldOptimizer):
    kind = "Adam"

    def __init__(self, params, lr, bias_correction, betas, eps, adam_w_mode, weight_decay, amsgrad):
        super().__init__(params, dict(bias_correction=bias_correction, amsgrad=amsgrad, adam_w_mode=adam_w_mode), lr=lr,
                         betas=tuple(betas), eps=eps, weight_decay=weight_decay)


class FusedAdam(_Adam):
    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, adam_w_mode=True,
                 weight_decay=0.0, amsgrad=False, set_grad_none=True):
        super().__init__(params, lr, bias_correction, betas, eps, adam_w_mode, weight_decay, amsgrad)


class DeepSpeedCPUAdam(_Adam):
    def __init__(self, model_params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, weight_decay=0,
                 amsgrad=False, adamw_mode=True, fp32_optimizer_states=True):
        super().__init__(model_params, lr, bias_correction, betas, eps, adamw_mode, weight_decay, amsgrad)
        self.fp32_optimizer_states = fp32_optimizer_states
