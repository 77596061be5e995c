"""Makes the tensors of module.state_dict() pickle as copies of their values, so that torch.save() works under an engine.
One rank alone may save where it needs no other rank to read the values."""

import functools
import weakref

import torch

from . import _core
from ._core import UserError

_IS_PART = ("a parameter that is split among tensor ranks has only its part in state_dict(): take "
            "engine.consolidated_16bit_state_dict(), or save inside a GatheredParameters scope, where parameters are whole")


class ShownParameter(torch.Tensor):
    """A parameter in a state_dict: detached, as in any state_dict. Operators treat it as the parameter itself. Where the
    parameter has no memory, data_ptr() is that of a copy, if this rank can make one alone; else an _Address, so that programs find
    out which tensors of a state_dict they need not write on this rank."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    _zerorun_copy = None  # what data_ptr() points to: only code that reads addresses sees it
    _zerorun_is_part = False  # of a parameter that is split among tensor ranks

    def refuse_part(self):
        if self._zerorun_is_part:
            raise UserError(_IS_PART)

    def _plain(self):
        return self.as_subclass(torch.Tensor)

    def _may_copy(self):
        engine = self._zerorun_engine()
        return engine is not None and not engine.is_destroyed and _core.may_read_alone(engine._core)

    def _copy_alone(self):
        plain = self._plain()
        return plain.detach().clone() if self._may_copy() else plain  # whose memory says what to do

    def __reduce_ex__(self, protocol):
        self.refuse_part()
        return self._copy_alone().__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), self._plain().detach().clone())

    def _part(self, take):
        part = take(self._plain()).as_subclass(ShownParameter)
        part._zerorun_engine, part._zerorun_is_part = self._zerorun_engine, self._zerorun_is_part
        if self._zerorun_copy is not None:
            part._zerorun_copy = take(self._zerorun_copy)
        return part

    def view(self, *shape, **more):
        return self._part(lambda tensor: tensor.view(*shape, **more))

    def __getitem__(self, index):
        return self._part(lambda tensor: tensor[index])

    def data_ptr(self):
        if _has_memory(self._plain()) and not self._zerorun_is_part:
            return self._plain().data_ptr()
        if self._zerorun_is_part or not self._may_copy():
            return _Address(self)
        if self._zerorun_copy is None:
            self._zerorun_copy = self._copy_alone()
        else:
            self._zerorun_copy.copy_(self._plain().detach())  # the address stays, the values are those of now
        return self._zerorun_copy.data_ptr()

    def untyped_storage(self):
        if _has_memory(self._plain()) and not self._zerorun_is_part:
            return self._plain().untyped_storage()
        return _Storage(self) if self._zerorun_copy is None else self._zerorun_copy.untyped_storage()

    storage = untyped_storage


def _has_memory(tensor):
    try:
        tensor.data_ptr()
    except RuntimeError:  # the engine refuses raw access
        return False
    return True


@functools.total_ordering
class _Address:
    """In place of the address of a parameter that has no memory here, or only a part of it: can be compared, and not be read."""

    def __init__(self, shown, offset=None):
        self._shown = shown
        self._plain = shown.as_subclass(torch.Tensor)
        offset = self._plain.storage_offset() * self._plain.element_size() if offset is None else offset
        self._key = self._plain.untyped_storage()._cdata, offset

    def __add__(self, count):
        return _Address(self._shown, self._key[1] + count)

    def __eq__(self, other):
        return isinstance(other, _Address) and self._key == other._key

    def __lt__(self, other):
        return self._key < (other._key if isinstance(other, _Address) else (other, 0))

    def __hash__(self):
        return hash(self._key)

    def __index__(self):
        self._shown.refuse_part()
        return self._plain.data_ptr()  # raises, and says what to do

    _as_parameter_ = property(__index__)  # for ctypes


class _Storage:
    """In place of the storage of such a parameter: its own, although parameters of a bucket share one."""

    def __init__(self, shown):
        self._address, self._bytes, self.device = _Address(shown), shown.nbytes, shown.device

    def data_ptr(self):
        return self._address

    def nbytes(self):
        return self._bytes

    size = __len__ = nbytes


def show_parameters(engine, hooks):
    """Makes state_dict() of the engine's modules return ShownParameters. `hooks`: the engine's ModuleHooks."""
    if engine.zero_optimization_stage() == 0 and not engine._whole_shapes:
        return  # the parameters have memory at all times, all of them
    owners = {id(parameter) for parameter in engine.module.parameters()}
    shown = weakref.WeakValueDictionary()  # by parameter: tied weights stay one tensor
    reference, whole_shapes = weakref.ref(engine), engine._whole_shapes

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
        result._zerorun_is_part = tensor.shape != whole_shapes.get(id(parameter), tensor.shape)
        shown[id(parameter)] = result
        return result

    for module in engine.module.modules():
        if module._parameters:
            hooks.add(module, module.register_state_dict_post_hook(show))
