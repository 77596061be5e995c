"""Modules whose code reads the memory of parameters past torch's operators: they are gathered whole around forward, and
from their backward to the end of the pass, by hooks."""

import weakref

import torch
from torch.utils import _pytree

from . import _core
from ._core import UserError

MARK = "_zerorun_gather_whole"  # set on modules before initialize()


class RawReaders:
    """Owned by an engine, which it does not keep alive."""

    def __init__(self, engine):
        self._engine = weakref.ref(engine)
        self._hooked = {}
        marked = [module for module in engine.module.modules() if getattr(module, MARK, False)]
        for module in marked:
            self._hook(module)

    def add(self, targets):
        for target in targets:
            modules = find(self._engine().module, target)
            if not modules:
                raise UserError(f"gather_around(): the model has no {target}: pass modules of the model, or their classes")
            for module in modules:
                self._hook(module)

    def has(self, module):
        return module in self._hooked

    def _hook(self, module):
        if module in self._hooked or not any(True for _ in module.parameters()):
            return
        scopes = _Scopes(self._engine, module)
        handles = [module.register_forward_pre_hook(scopes.before_forward, prepend=True),
                   module.register_forward_hook(scopes.after_forward, always_call=True)]
        self._hooked[module] = scopes, handles

    def close_left_open(self):
        """After a forward or backward that raised."""
        for scopes, _ in self._hooked.values():
            scopes.close_all()

    def remove(self):
        self.close_left_open()
        for _, handles in self._hooked.values():
            for handle in handles:
                handle.remove()
        self._hooked.clear()


def find(model, target):
    if isinstance(target, torch.nn.Module):
        return [module for module in model.modules() if module is target]
    if isinstance(target, type):
        return [module for module in model.modules() if isinstance(module, target)]
    if isinstance(target, str):
        return [module for module in model.modules() if type(module).__name__ == target]
    raise UserError(f"found a {type(target).__name__}, expected a module, a class of modules or its name")


class _Scopes:
    """The open scopes of one module."""

    def __init__(self, engine, module):
        self._engine = engine
        self._parameters = list(module.parameters())
        self._forward = []  # calls nest where the module calls itself
        self._backward = None

    def _open(self):
        engine = self._engine()
        if engine is None or engine.is_destroyed:
            return None
        return _core.GatherScope(engine._core, self._parameters, None)

    def before_forward(self, module, args):
        self._forward.append(self._open())

    def after_forward(self, module, args, result):
        scope = self._forward.pop() if self._forward else None
        if scope is not None:
            scope.close(False)
        for tensor in _pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(self._before_backward)

    def _before_backward(self, gradients):
        if self._backward is None:
            self._backward = self._open()
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self):
        scope, self._backward = self._backward, None
        if scope is not None:
            scope.close(False)

    def close_all(self):
        left = [scope for scope in (*self._forward, self._backward) if scope is not None]
        self._forward, self._backward = [], None
        for scope in left:
            scope.close(True)
