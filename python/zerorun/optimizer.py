"""Translates the program's optimizer into a rule for the engine's kernels, and defines the optimizer object that
initialize() returns."""

import json

import torch
from torch.optim import optimizer as _all_optimizers

from ._core import ParameterGroup, UserError
from .errors import FailedAssertion
from .ops.held import HeldOptimizer

_EXPECTED = ("expected torch.optim.Adam, AdamW, SGD, Adagrad or RMSprop, or a subclass that leaves their update as it is, or "
             "one of zerorun.ops, or an \"optimizer\" in the config; "
             "\"zero_allow_untested_optimizer\": true in the config allows others that are element-wise")


def _adam(optimizer, group):
    params = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
    decoupled = isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay", False)
    return "Adam", {**params, "amsgrad": group["amsgrad"], "adam_w_mode": bool(decoupled)}


def _held(optimizer, group):
    return optimizer.kind, optimizer.params_of(group)


def _named(kind, names):
    return lambda optimizer, group: (kind, {name: group[name] for name in names})


_RULES = {
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.SGD: _named("SGD", ("lr", "momentum", "dampening", "weight_decay", "nesterov")),
    torch.optim.Adagrad: _named("Adagrad", ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")),
    torch.optim.RMSprop: _named("RMSprop", ("lr", "alpha", "eps", "weight_decay", "momentum", "centered")),
}
# The options that may differ between parameter groups. After them, options of optimizers that groups passed without an
# optimizer may not have: they would have no effect. Other keys are the program's own.
_OF_GROUPS = {"params", "lr", "weight_decay", "betas", "eps"}
_OF_OPTIMIZERS = {"momentum", "dampening", "nesterov", "maximize", "differentiable", "amsgrad", "decoupled_weight_decay",
                  "bias_correction", "adam_w_mode", "alpha", "centered", "lr_decay", "initial_accumulator_value",
                  "max_coeff", "min_coeff"}


def has_kernel(optimizer):
    """Whether the engine's kernels do the optimizer's update."""
    return _find_rule(optimizer) is not None


def _find_rule(optimizer):
    for kind, rule in (*_RULES.items(), (HeldOptimizer, _held)):
        if isinstance(optimizer, kind) and _updates_as(type(optimizer), kind):
            return rule
    return None


def _rule_of(optimizer):
    rule = _find_rule(optimizer)
    if rule is not None:
        return rule
    raise FailedAssertion(f"optimizer {type(optimizer).__module__}.{type(optimizer).__qualname__} may look at whole parameters, "
                          f"which are spread over ranks: {_EXPECTED}")


def _updates_as(kind, known):
    """Whether a class updates as its base `known`: no class between them replaces anything that the update calls."""
    if issubclass(kind, HeldOptimizer):
        known = next(each for each in kind.__mro__ if each.__module__.startswith("zerorun.ops."))
    between = kind.__mro__[:kind.__mro__.index(known)]
    replaced = {name for each in between for name in vars(each) if hasattr(known, name)}
    return replaced <= {"__init__", "__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__static_attributes__",
                        "__firstlineno__", "__annotations__", "__repr__", "zero_grad"}


def _plain(value):
    return value.item() if isinstance(value, torch.Tensor) else list(value) if isinstance(value, tuple) else value


def _check_fresh(optimizer):
    for state in optimizer.state.values():
        if not isinstance(optimizer, torch.optim.Adagrad) or float(state.get("step", 0)) > 0:
            raise UserError(f"optimizer {type(optimizer).__name__} has been stepped before initialize(): its state belongs "
                            "to whole parameters; pass it in fresh")


def _hyperparameters(optimizer, group):
    """Those of the group that the rule uses. Schedulers and programs keep other values in groups too ("max_lr")."""
    return _rule_of(optimizer)(optimizer, group)[1]


def _check_same(optimizer, groups):
    """Raises UserError if groups differ in a hyperparameter that must be the same for all groups."""
    first = _hyperparameters(optimizer, groups[0])
    for index, group in enumerate(groups):
        for name in ("maximize", "differentiable"):
            if group.get(name):
                raise UserError(f"optimizer {type(optimizer).__name__}: {name}=True is not supported: leave it out")
        for name, value in _hyperparameters(optimizer, group).items():
            if name not in _OF_GROUPS and value != first[name]:
                raise UserError(f"parameter group {index} has {name}={value}, group 0 has {first[name]}: groups may have "
                                "lr, weight_decay, betas and eps of their own")


def as_config(optimizer):
    """Returns the optimizer as the text of a ds_config.json. Raises UserError for a class that has no rule here."""
    rule = _rule_of(optimizer)
    _check_fresh(optimizer)
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise UserError(f"optimizer {type(optimizer).__name__} has a hook on its step(), which the engine does not call: "
                        "register it on the optimizer that initialize() returns")
    _check_same(optimizer, optimizer.param_groups)
    kind, params = rule(optimizer, optimizer.param_groups[0])
    params = {name: _plain(value) for name, value in params.items()}
    return json.dumps({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": kind, "params": params}})


def _betas(group):
    """Other optimizers than those of the engine may have more than two."""
    betas = group.get("betas")
    return tuple(map(float, betas)) if betas is not None and len(betas) == 2 else None


def as_group(group):
    """Converts a parameter group of torch.optim, or a dict of the program, for the engine."""
    result = ParameterGroup()
    params = group["params"]
    result.parameters = [params] if isinstance(params, torch.Tensor) else list(params)
    for name in ("lr", "weight_decay", "eps"):
        if group.get(name) is not None and not isinstance(group[name], tuple):  # of an optimizer that runs itself
            setattr(result, name, float(group[name]))
    result.betas = _betas(group)
    return result


def groups_of(model_parameters):
    """Returns the program's groups as a list of dicts; None if it names none: then all parameters are one group."""
    if model_parameters is None:
        return None
    given = list(model_parameters)
    if given and isinstance(given[0], tuple):  # named_parameters()
        given = [parameter for _, parameter in given]
    if not given or not isinstance(given[0], dict):
        return [{"params": given}]
    for index, group in enumerate(given):
        unknown = set(group) & _OF_OPTIMIZERS
        if unknown:
            raise UserError(f"parameter group {index} has {', '.join(sorted(unknown))}: groups may have lr, weight_decay, "
                            "betas and eps of their own")
    return given


class ZeroOptimizer(torch.optim.Optimizer):
    """The optimizer that initialize() returns. Its param_groups are those of the program's optimizer, or made from the
    config; changes to their lr, betas and weight_decay apply from the next optimizer step. The engine runs the steps."""

    def __init__(self, engine, client, groups):
        self._engine = engine
        self.optimizer = client
        self._pushed = None
        super().__init__([dict(group) for group in groups], {})
        if client is not None:
            self.param_groups = client.param_groups
            client._opt_called = True  # schedulers of torch ask for it; the engine updates instead
        self._opt_called = True
        self._pushed = [self._values(group) for group in self.param_groups]
        self._fixed = [self._constants(group) for group in self.param_groups]

    @staticmethod
    def _values(group):
        decay = group.get("weight_decay")
        return float(group["lr"]), _betas(group), float(decay) if decay is not None else None

    def _constants(self, group):
        if self.optimizer is None:
            return {name: group[name] for name in ("eps",) if name in group}
        if self._engine._flat is not None:
            return {}  # it reads its groups itself
        used = _hyperparameters(self.optimizer, group)
        return {name: value for name, value in used.items() if name not in ("lr", "betas", "weight_decay")}

    @property
    def overflow(self):
        """Whether the last optimizer step was skipped because a gradient was not finite."""
        return self._engine._stepped and not self._engine._core.was_step_applied()

    @property
    def loss_scale(self):
        return self._engine._core.loss_scale()

    cur_scale = loss_scale

    def needs_scaler(self):
        """Whether a backward must begin with engine.scale(loss) or engine.backward(loss)."""
        return self._engine.fp16_enabled()

    def push(self):
        """Passes the lr, betas and weight_decay that the program has changed since the last call to the engine. Under a
        schedule of the config that alone sets lr and betas."""
        if self.optimizer is not None and self.optimizer.param_groups is not self.param_groups:
            self.param_groups = self.optimizer.param_groups  # the program has set another list
        if len(self.param_groups) != len(self._pushed):
            raise UserError(f"the optimizer has {len(self.param_groups)} parameter groups, and had {len(self._pushed)} in "
                            "initialize(): the engine does not train what is added; name all groups before")
        core, scheduled = self._engine._core, self._engine._runs_schedule
        each = len(core.get_lr()) // len(self.param_groups)  # Muon's groups are two each: of matrices, and of the rest
        for index, group in enumerate(self.param_groups):
            for of_engine in range(index * each, (index + 1) * each):
                for value, before, set_value in zip(self._values(group), self._pushed[index],
                                                    (core.set_lr, core.set_betas, core.set_weight_decay)):
                    if value != before and not (scheduled and set_value != core.set_weight_decay):
                        set_value(of_engine, value)
            self._pushed[index] = self._values(group)
            now, before = self._constants(group), self._fixed[index]
            if now != before:
                changed = ", ".join(name for name in now if now[name] != before.get(name))
                raise UserError(f"parameter group {index}: {changed} changed after initialize(), which has no effect on the "
                                "engine: change only lr, betas and weight_decay (schedulers: cycle_momentum=False)")

    def has_changes(self):
        """Whether push() would pass anything."""
        return any(self._values(group) != pushed for group, pushed in zip(self.param_groups, self._pushed))

    def add_param_group(self, param_group):
        if self._pushed is not None:
            raise UserError("optimizer.add_param_group() after initialize(): the engine does not train what is added; name all "
                            "groups before")
        super().add_param_group(param_group)

    def pull(self):
        """Copies lr and betas, which the engine's schedule or a checkpoint may have changed, into param_groups."""
        rates, betas = self._engine._core.get_lr(), self._engine._core.get_betas()
        shown = len(rates) // len(self.param_groups)  # Muon's groups are two each
        for index, group in enumerate(self.param_groups):
            group["lr"] = rates[index * shown]
            if betas[index * shown] is not None and "betas" in group:
                group["betas"] = betas[index * shown]
            self._pushed[index] = (*self._values(group)[:2], self._pushed[index][2])  # a new weight_decay stays to be pushed

    def zero_grad(self, set_to_none=True):
        self._engine.zero_grad()

    def step(self, closure=None):
        """engine.step(), which a program may call instead; not both for one backward. Returns what closure() does, which is
        called before."""
        result = closure() if closure is not None else None
        self._engine.step()
        return result

    step.hooked = True  # for torch, which otherwise puts the hooks around this function: engine.step() would miss them

    def call_step_hooks(self, is_before):
        """Calls what register_step_pre_hook() or register_step_post_hook() have registered, here or for all optimizers."""
        of_all = _all_optimizers._global_optimizer_pre_hooks if is_before else _all_optimizers._global_optimizer_post_hooks
        own = self._optimizer_step_pre_hooks if is_before else self._optimizer_step_post_hooks
        if self._engine._flat is not None:
            of_all = {}  # torch calls them around the step of the program's optimizer, which runs itself
        for hook in (*of_all.values(), *own.values()) if is_before else (*own.values(), *of_all.values()):
            hook(self, (), {})

    def backward(self, loss, retain_graph=False):
        self._engine.backward(loss, retain_graph=retain_graph)

    def state_dict(self):
        """What frameworks may ask for and drop: it cannot be saved, because the state is spread over ranks."""
        groups = [{**group, "params": list(range(len(group["params"])))} for group in self.param_groups]
        return _SpreadState(state={}, param_groups=groups)

    def load_state_dict(self, state_dict):
        raise UserError("optimizer.load_state_dict(): the state is spread over ranks; engine.load_checkpoint() loads it")

    def __getstate__(self):
        raise UserError("the optimizer of an engine cannot be pickled: engine.save_checkpoint() saves its state")


class _SpreadState(dict):
    def __reduce_ex__(self, protocol):
        raise UserError("optimizer.state_dict(): the state is spread over ranks; engine.save_checkpoint() saves it")


class ClientWatch:
    """Makes calls on the program's own optimizer that would have no effect, as the engine has its parameters, an error."""

    _CALLS = {
        "step": "call engine.step(), which reduces gradients, clips and updates",
        "state_dict": "the state is spread over ranks; engine.save_checkpoint() saves it",
        "load_state_dict": "the state is spread over ranks; engine.load_checkpoint() loads it",
        "add_param_group": "the engine does not train what is added; name all groups before initialize()",
    }
    _HOOKS = {
        "register_step_pre_hook": "the engine's kernels do the update; call it on the optimizer that initialize() returns",
        "register_step_post_hook": "the engine's kernels do the update; call it on the optimizer that initialize() returns",
    }

    def __init__(self, engine, client):
        self._client, self._before = client, {}
        self._calls = self._CALLS if engine._flat is not None else {**self._CALLS, **self._HOOKS}
        for name, remedy in self._calls.items():
            if name in vars(client):
                self._before[name] = vars(client)[name]
            setattr(client, name, self._refusal(name, remedy))

    @staticmethod
    def _refusal(name, remedy):
        def refuse(*args, **kwargs):
            raise UserError(f"optimizer.{name}() of the optimizer passed to initialize(): {remedy}")

        refuse._wrapped_by_lr_sched = True  # schedulers of torch would warn of a step() that they have not wrapped
        return refuse

    def end(self):
        for name in self._calls:
            vars(self._client).pop(name, None)
        vars(self._client).update(self._before)
