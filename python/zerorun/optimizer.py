"""Translates the program's optimizer into a rule for the engine's kernels, and defines the optimizer object that
initialize() returns."""

import json

import torch

from ._core import ParameterGroup, UserError
from .ops.adam import _Adam

_EXPECTED = ("expected torch.optim.Adam, AdamW, SGD, Adagrad or RMSprop, or zerorun.ops.adam's FusedAdam or "
             "DeepSpeedCPUAdam, or an \"optimizer\" in the config")


def _adam(optimizer, group):
    params = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
    if isinstance(optimizer, _Adam):
        extra = dict(bias_correction=optimizer.bias_correction, amsgrad=optimizer.amsgrad)
        return "Adam", {**params, **extra, "adam_w_mode": optimizer.adam_w_mode}
    decoupled = isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay", False)
    return "Adam", {**params, "amsgrad": group["amsgrad"], "adam_w_mode": bool(decoupled)}


def _named(kind, names):
    return lambda optimizer, group: (kind, {name: group[name] for name in names})


_RULES = {
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.SGD: _named("SGD", ("lr", "momentum", "dampening", "weight_decay", "nesterov")),
    torch.optim.Adagrad: _named("Adagrad", ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")),
    torch.optim.RMSprop: _named("RMSprop", ("lr", "alpha", "eps", "weight_decay", "momentum", "centered")),
}
# The options that may differ between parameter groups. After them, the options that ZeroRun ignores in groups that are
# passed without an optimizer.
_OF_GROUPS = {"params", "lr", "weight_decay", "betas", "eps"}
_WITHOUT_EFFECT = {"foreach", "fused", "capturable", "initial_lr", "name", "param_names", "group_name"}


def _rule_of(optimizer):
    for kind in (*_RULES, _Adam):
        if type(optimizer) is kind:
            return _RULES[kind]
    if isinstance(optimizer, _Adam):
        return _adam
    raise UserError(f"optimizer {type(optimizer).__module__}.{type(optimizer).__qualname__} may look at whole parameters, "
                    f"which are spread over ranks: {_EXPECTED}")


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
    _check_same(optimizer, optimizer.param_groups)
    kind, params = rule(optimizer, optimizer.param_groups[0])
    params = {name: _plain(value) for name, value in params.items()}
    return json.dumps({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": kind, "params": params}})


def as_group(group):
    """Converts a parameter group of torch.optim, or a dict of the program, for the engine."""
    result = ParameterGroup()
    params = group["params"]
    result.parameters = [params] if isinstance(params, torch.Tensor) else list(params)
    for name in ("lr", "weight_decay", "eps"):
        if group.get(name) is not None:
            setattr(result, name, float(group[name]))
    if group.get("betas") is not None:
        result.betas = tuple(float(beta) for beta in group["betas"])
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
        unknown = set(group) - _OF_GROUPS - _WITHOUT_EFFECT
        if unknown:
            raise UserError(f"parameter group {index} has {', '.join(sorted(unknown))}: groups may have lr, weight_decay, "
                            "betas and eps of their own")
    return given


class ZeroOptimizer(torch.optim.Optimizer):
    """The optimizer that initialize() returns. Its param_groups are those of the program's optimizer, or made from the
    config; changes to their lr and betas apply from the next optimizer step. The engine runs the steps."""

    def __init__(self, engine, client, groups):
        self._engine = engine
        self.optimizer = client
        super().__init__([dict(group) for group in groups], {})
        if client is not None:
            self.param_groups = client.param_groups
            client._opt_called = True  # schedulers of torch ask for it; the engine updates instead
        self._opt_called = True
        self._pushed = [self._values(group) for group in self.param_groups]
        self._fixed = [self._constants(group) for group in self.param_groups]

    @staticmethod
    def _values(group):
        betas = group.get("betas")
        return float(group["lr"]), tuple(map(float, betas)) if betas is not None else None

    def _constants(self, group):
        if self.optimizer is None:
            return {name: group[name] for name in ("weight_decay", "eps") if name in group}
        used = _hyperparameters(self.optimizer, group)
        return {name: value for name, value in used.items() if name not in ("lr", "betas")}

    @property
    def overflow(self):
        """Whether the last optimizer step was skipped because a gradient was not finite."""
        return self._engine._stepped and not self._engine._core.was_step_applied()

    @property
    def loss_scale(self):
        return self._engine._core.loss_scale()

    cur_scale = loss_scale

    def push(self):
        """Passes the lr and betas that the program has changed since the last call to the engine."""
        for index, group in enumerate(self.param_groups):
            lr, betas = self._values(group)
            if lr != self._pushed[index][0]:
                self._engine._core.set_lr(index, lr)
            if betas != self._pushed[index][1]:
                self._engine._core.set_betas(index, betas)
            self._pushed[index] = lr, betas
            now, before = self._constants(group), self._fixed[index]
            if now != before:
                changed = ", ".join(name for name in now if now[name] != before.get(name))
                raise UserError(f"parameter group {index}: {changed} changed after initialize(), which has no effect on the "
                                "engine: change only lr and betas (schedulers: cycle_momentum=False)")

    def pull(self):
        """Copies lr and betas, which the engine's schedule or a checkpoint may have changed, into param_groups."""
        rates, betas = self._engine._core.get_lr(), self._engine._core.get_betas()
        shown = len(rates) // len(self.param_groups)  # Muon's groups are two each
        for index, group in enumerate(self.param_groups):
            group["lr"] = rates[index * shown]
            if betas[index * shown] is not None and "betas" in group:
                group["betas"] = betas[index * shown]
            self._pushed[index] = self._values(group)

    def zero_grad(self, set_to_none=True):
        self._engine.zero_grad()

    def step(self, closure=None):
        raise UserError("optimizer.step(): call engine.step(), which reduces gradients, clips and updates")

    def backward(self, loss, retain_graph=False):
        self._engine.backward(loss, retain_graph=retain_graph)

    def state_dict(self):
        raise UserError("optimizer.state_dict(): the state is spread over ranks; engine.save_checkpoint() saves it")

    def load_state_dict(self, state_dict):
        raise UserError("optimizer.load_state_dict(): the state is spread over ranks; engine.load_checkpoint() loads it")

    def __getstate__(self):
        raise UserError("the optimizer of an engine cannot be pickled: engine.save_checkpoint() saves its state")


class ConfigSchedule:
    """The config's scheduler. The engine advances it; this object only reports its values."""

    def __init__(self, engine):
        self._engine = engine

    def get_lr(self):
        return self._engine.get_lr()

    get_last_lr = get_lr

    def step(self, *args, **kwargs):
        """Has no effect: the engine advances the schedule with each applied optimizer step."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        """Has no effect: engine.load_checkpoint() restores the position of the schedule."""
