"""Makes the tensors of module.state_dict() pickle as copies of their values, so that torch.save() works under an engine.
One rank alone may save where it needs no other rank to read the values."""

import weakref

import torch

from . import _core


class ShownParameter(torch.Tensor):
    """A parameter in a state_dict: detached, as in any state_dict. Operators treat it as the parameter itself."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def _copy_alone(self):
        plain = self.as_subclass(torch.Tensor)
        engine = self._zerorun_engine()
        if engine is None or engine.is_destroyed or not _core.may_read_alone(engine._core):
            return plain  # whose memory says what to do
        return plain.detach().clone()

    def __reduce_ex__(self, protocol):
        return self._copy_alone().__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), self.as_subclass(torch.Tensor).detach().clone())


def show_parameters(engine, hooks):
    """Makes state_dict() of the engine's modules return ShownParameters. `hooks`: the engine's ModuleHooks."""
    if engine.zero_optimization_stage() == 0:
        return  # the parameters have memory at all times
    owners = {id(parameter) for parameter in engine.module.parameters()}
    shown = weakref.WeakValueDictionary()  # by parameter: tied weights stay one tensor
    reference = weakref.ref(engine)

    def show(module, state, prefix, local_metadata):
        for key, parameter in module._parameters.items():
            tensor = state.get(prefix + key)
            if tensor is None or tensor is parameter or id(parameter) not in owners:
                continue
            known = shown.get(id(parameter))
            state[prefix + key] = known if known is not None else as_shown(parameter, tensor)

    def as_shown(parameter, tensor):
        result = tensor.as_subclass(ShownParameter)
        result._zerorun_engine = reference
        shown[id(parameter)] = result
        return result

    for module in engine.module.modules():
        if module._parameters:
            hooks.add(module, module.register_state_dict_post_hook(show))
