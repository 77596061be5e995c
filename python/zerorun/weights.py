"""The weights of an engine's model as one file or one state_dict."""

import torch

from . import _core
from .inputs import path_for_core


def whole_copy(engine, tensor):
    """A copy of a parameter or buffer of the engine's model. A collective."""
    if id(tensor) not in engine._whole_shapes:
        return tensor.detach().clone()  # gathers on all ranks
    scope = _core.GatherScope(engine._core, [tensor], None)
    try:
        return tensor.detach().clone()
    finally:
        scope.close(False)


class Weights:
    """A base class of Engine, which sets _core, module and _whole_shapes."""

    def save_16bit_model(self, save_dir, save_filename="model.safetensors", exclude_frozen_parameters=False):
        """Writes one safetensors file with the weights in the dtype of training. A collective. Returns True."""
        self._core.save_16bit_model(path_for_core(save_dir, "save_16bit_model"),
                                    path_for_core(save_filename, "save_16bit_model"), exclude_frozen_parameters)
        return True

    save_fp16_model = save_16bit_model

    def consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        """Returns the model's state_dict as plain tensors on the CPU on rank 0, and None on the other ranks. A collective."""
        is_first = self._core.rank() == 0
        state, seen = {}, {}  # seen: names by tensor, for tied weights stay tied
        for name, tensor in self.module.state_dict(keep_vars=True).items():
            if exclude_frozen_parameters and isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad:
                continue
            first = seen.setdefault(id(tensor), name)
            if first != name:
                if is_first:
                    state[name] = state[first]
                continue
            whole = whole_copy(self, tensor) if isinstance(tensor, torch.Tensor) else tensor
            if is_first:
                state[name] = whole.cpu() if isinstance(whole, torch.Tensor) else whole
        return state if is_first else None

    _zero3_consolidated_16bit_state_dict = _consolidated_16bit_state_dict = consolidated_16bit_state_dict

    def zero_gather_16bit_weights_on_model_save(self):
        """What the config says. consolidated_16bit_state_dict() works either way."""
        return self._config["gathers_on_save"]

    def module_state_dict(self, destination=None, prefix="", keep_vars=False, exclude_frozen_parameters=False):
        state = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        if exclude_frozen_parameters:
            for name, parameter in self.module.named_parameters(remove_duplicate=False):
                if not parameter.requires_grad:
                    state.pop(prefix + name, None)
        return state

    def empty_partition_cache(self):
        """Has no effect: the engine releases gathered parameters itself."""
