"""Gathers parameters for code that reads their memory without torch's operators: kernels that get addresses, and code that
torch.compile makes. Hooks of modules, or a wrapper of a function that the program names, gather the whole parameters around
forward, and from the module's backward until the whole backward ends."""

import functools
import sys
import weakref

import torch
from torch.utils import _pytree

from . import _core, _registry
from ._core import UserError

MARK = "_zerorun_gather_whole"  # set on modules before initialize()


class RawReaders:
    """The modules of an engine around which it gathers. The engine owns this object, which refers to it weakly."""

    def __init__(self, engine):
        self._engine = weakref.ref(engine)
        self._hooked = weakref.WeakSet()
        self._modules = [m for m in engine.module.modules() if any(True for _ in m.parameters())]
        self.opened = set()  # the _Scopes of which one is open now
        for module in self._modules:
            if getattr(module, MARK, False):
                self._hook(module)

    def add(self, targets):
        for target in targets:
            modules = find(self._engine().module, target)
            if not modules:
                raise UserError(f"gather_around(): the model has no {target}: pass modules of the model, or their classes")
            for module in modules:
                self._hook(module)

    def follow_compilation(self):
        """Gathers around modules that the program has compiled."""
        if "torch._dynamo" not in sys.modules:
            return  # nothing is compiled, and this is called at each forward
        for module in self._modules:
            if is_compiled(module) and module not in self._hooked:
                self._hook(module)

    def scopes_of(self, parameters):
        if any(id(parameter) in self._engine()._whole_shapes for parameter in parameters):
            raise UserError("torch.compile(), gather_around(), gather_arguments() and leaf modules read parameters past torch's operators, "
                            "and these are split among tensor ranks: leave the parameters whole in the tensor plan, or leave that out")
        return _Scopes(self._engine, parameters)

    def _hook(self, module):
        if module in self._hooked or not any(True for _ in module.parameters()):
            return
        scopes = self.scopes_of(list(module.parameters()))
        hooks = self._engine()._hooks
        hooks.add(module, module.register_forward_pre_hook(_outside_of_graphs(scopes.before_forward), prepend=True))
        hooks.add(module, module.register_forward_hook(_outside_of_graphs(scopes.after_forward), always_call=True))
        self._hooked.add(module)

    def close_left_open(self):
        """Closes scopes that a forward or backward left open because it raised."""
        for scopes in list(self.opened):
            scopes.close_all()


def is_compiled(module):
    """Whether the module was compiled by module.compile() or torch.compile(module), or its forward by torch.compile()."""
    own = module.__dict__
    return (own.get("_compiled_call_impl") is not None or "_orig_mod" in own.get("_modules", ())
            or hasattr(own.get("forward"), "_torchdynamo_orig_callable"))


def _outside_of_graphs(function):
    """Keeps `function`, which opens scopes, out of the graphs of torch.compile, if the program uses that."""
    return torch.compiler.disable(function) if "torch._dynamo" in sys.modules else function


def refuse_compilation():
    """Raises UserError if torch.compile is compiling the code that calls this function."""
    if "torch._dynamo" in sys.modules and (torch.compiler.is_compiling()
                                           or torch._C._dynamo.eval_frame.get_eval_frame_callback()):
        raise UserError("the engine's call cannot be inside torch.compile(), which would read parameters past torch's "
                        "operators: call engine.compile(), or compile modules of the model with module.compile()")


def find(model, target):
    if isinstance(target, torch.nn.Module):
        return [module for module in model.modules() if module is target]
    if isinstance(target, type):
        return [module for module in model.modules() if isinstance(module, target)]
    if isinstance(target, str):
        return [module for module in model.modules() if target in _names_of_class(type(module))]
    raise UserError(f"found a {type(target).__name__}, expected a module, a class of modules or its name")


def _names_of_class(kind):
    return kind.__name__, f"{kind.__module__}.{kind.__qualname__}"


def gather_arguments(function):
    """Returns the function with those of its arguments that are parameters of an engine (or views of these, or modules)
    gathered whole around each call and its backward."""

    @functools.wraps(function)
    def with_whole_arguments(*args, **kwargs):
        engine, parameters = _parameters_among((args, kwargs))
        if engine is None:
            return function(*args, **kwargs)
        scopes = engine._raw_readers.scopes_of(parameters)
        scopes.before_forward()
        result = None
        try:
            result = function(*args, **kwargs)
        finally:
            scopes.after_forward(None, None, result)
        return result

    return _outside_of_graphs(with_whole_arguments)


def _parameters_among(arguments):
    found = {}
    for leaf in _pytree.tree_leaves(arguments):
        candidates = leaf.parameters() if isinstance(leaf, torch.nn.Module) else [leaf]
        for tensor in candidates:
            if isinstance(tensor, torch.Tensor):
                base = tensor._base if tensor._is_view() else tensor
                engine = _registry.owner_of(base)
                if engine is not None:
                    found.setdefault(id(base), (engine, base))
    if not found:
        return None, []
    parameters = [parameter for _, parameter in found.values()]
    return _registry.engine_of(parameters), parameters


class _Scopes:
    """The open GatherScopes of one module, or of one call of a function."""

    def __init__(self, engine, parameters):
        self._engine = engine
        self._parameters = parameters
        self._forward = []  # calls nest where a module calls itself
        self._backward = None

    # Ctrl-C may come between any two of these lines. A scope that is open must then be in this object, so that
    # close_all() finds it, or in no variable, so that it is closed as garbage.

    def _open(self):
        engine = self._engine()
        if engine is None or engine.is_destroyed:
            return None
        engine._raw_readers.opened.add(self)
        return _core.GatherScope(engine._core, self._parameters, None)

    def _note_closed(self):
        engine = self._engine()
        if engine is not None and self._backward is None and not self._forward:
            engine._raw_readers.opened.discard(self)

    def before_forward(self, module=None, args=None):
        self._forward.append(self._open())

    def after_forward(self, module, args, result):
        if self._forward:
            if self._forward[-1] is not None:
                self._forward[-1].close(False)
            self._forward.pop()
            self._note_closed()
        for tensor in _pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(self._before_backward)

    def _before_backward(self, gradients):
        if self._backward is None:
            self._backward = self._open()
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self):
        if self._backward is not None:
            self._backward.close(False)
        self._backward = None
        self._note_closed()

    def close_all(self):
        for scope in (*self._forward, self._backward):
            if scope is not None:
                scope.close(True)
        self._forward, self._backward = [], None
        self._note_closed()
