"""deepspeed.ops.lion."""

from .held import HeldOptimizer


class FusedLion(HeldOptimizer):
    kind = "Lion"

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0, set_grad_none=True):
        super().__init__(params, {}, lr=lr, betas=tuple(betas), weight_decay=weight_decay)


class DeepSpeedCPULion(FusedLion):
    def __init__(self, model_params, lr=1e-3, betas=(0.9, 0.999), weight_decay=0, fp32_optimizer_states=True):
        super().__init__(model_params, lr, betas, weight_decay)
        self.fp32_optimizer_states = fp32_optimizer_states
