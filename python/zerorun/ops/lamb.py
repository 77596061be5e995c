"""deepspeed.ops.lamb."""

from .._core import UserError
from .held import HeldOptimizer


class FusedLamb(HeldOptimizer):
    kind = "Lamb"

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, eps_inside_sqrt=False,
                 weight_decay=0.0, max_grad_norm=0.0, max_coeff=10.0, min_coeff=0.01, amsgrad=False):
        if max_grad_norm or amsgrad:
            raise UserError("FusedLamb: max_grad_norm and amsgrad are not supported: set \"gradient_clipping\" in the config")
        super().__init__(params, dict(bias_correction=bias_correction, eps_inside_sqrt=eps_inside_sqrt, max_coeff=max_coeff,
                                      min_coeff=min_coeff), lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)
