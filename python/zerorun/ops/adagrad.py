"""deepspeed.ops.adagrad."""

from .held import HeldOptimizer


class DeepSpeedCPUAdagrad(HeldOptimizer):
    kind = "Adagrad"

    def __init__(self, model_params, lr=1e-2, eps=1e-10, weight_decay=0, amsgrad=False, fp32_optimizer_states=True):
        super().__init__(model_params, {}, lr=lr, eps=eps, weight_decay=weight_decay)
