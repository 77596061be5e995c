"""Optimizers of the program that the engine has no kernels for. They run on this rank's slices, which take the place of
parameters, so they must be element-wise. A trial on small tensors shows whether they are, and what they keep."""

import collections
import copy

import torch

from ._core import UserError

_STEPS = 3  # of the trial
# The matrices of the trial, and the lengths of their pieces. Some optimizers treat large parameters in another way.
_TRIALS = ((4, 6), 10), ((72, 128), 4700)


def _is_number(value):
    return isinstance(value, (bool, int, float)) or isinstance(value, torch.Tensor) and value.numel() == 1 and value.dim() == 0


def _plain(value):
    return value.item() if isinstance(value, torch.Tensor) else value


def _like(value, old):
    """`value`, a plain number, in the form of `old`."""
    return torch.full_like(old, value) if isinstance(old, torch.Tensor) else value


def _numbers(of):
    return {name: value for name, value in of.items() if isinstance(name, str) and name != "params" and _is_number(value)}


class FlatOptimizer:
    """The program's optimizer on slices. Calls of the engine come from its step() and load_checkpoint()."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.name = type(optimizer).__qualname__
        self._trial = _Trial(optimizer)
        self._slices, self._memory, self._state = [], [], collections.defaultdict(dict)
        self._of_groups = [[] for _ in optimizer.param_groups]

    @property
    def moments(self):
        """Names of the tensors that it keeps for each parameter."""
        return self._trial.moments

    def lend(self, values, group, memory):
        """Adds a slice, a 1-D tensor. `memory`: a tensor for each of its moments, used from the first step on."""
        self._of_groups[group].append(values)
        self._slices.append((values, group))
        self._memory.append(memory)

    def step(self):
        """Updates all slices by their gradients."""
        groups, state = self.optimizer.param_groups, self.optimizer.state
        given = [group["params"] for group in groups]
        try:
            self.optimizer.state = self._state
            for group, values in zip(groups, self._of_groups):
                group["params"] = values
            type(self.optimizer).step(self.optimizer)
        finally:
            self.optimizer.state = state
            for group, params in zip(groups, given):
                group["params"] = params
        self._keep_moments()

    def _keep_moments(self):
        """Moves the moments that the optimizer has made itself, in its first step, into the lent memory."""
        for (values, _), memory in zip(self._slices, self._memory):
            state = self._state[values]
            for name, own in zip(self.moments, memory):
                if state[name] is own:
                    continue
                if state[name].shape != own.shape or state[name].dtype != own.dtype:
                    raise UserError(f"optimizer {self.name} keeps {name!r} as {state[name].dtype} of shape "
                                    f"{tuple(state[name].shape)} for a slice of {own.numel()} elements, and kept "
                                    f"{own.dtype} of the parameter's shape in the trial: name an \"optimizer\" in the config")
                state[name] = own.copy_(state[name])

    def set_steps(self, steps):
        """The lent memory holds the moments of a checkpoint after so many steps, or zeros after none."""
        self._state.clear()
        if steps == 0:
            return
        for (values, group), memory in zip(self._slices, self._memory):
            numbers = {name: _like(_plain(value), value) for name, value in self._trial.numbers[group].items()}
            self._state[values] = {**dict(zip(self.moments, memory)), **numbers}

    def save(self):
        """The numbers that it keeps, which are the same for all slices of a group. JSON has them."""
        first = {}
        for values, group in self._slices:
            first.setdefault(group, self._state.get(values, {}))
        return {"state": {str(group): {name: _plain(value) for name, value in _numbers(state).items()}
                          for group, state in first.items()},
                "groups": [{name: _plain(group[name]) for name in self._trial.of_groups if name in group}
                           for group in self.optimizer.param_groups],
                "own": {name: _plain(vars(self.optimizer)[name]) for name in self._trial.own}}

    def load(self, saved):
        """Sets what save() has returned, after set_steps(). Raises UserError."""
        if saved is None:
            if not self._state:
                return
            raise UserError(f"the checkpoint has no numbers of the optimizer {self.name}: it was not saved by a Python program")
        for values, group in self._slices:
            for name, value in saved["state"].get(str(group), {}).items():
                if name in self._state.get(values, {}):
                    self._state[values][name] = _like(value, self._state[values][name])
        for group, numbers in zip(self.optimizer.param_groups, saved["groups"]):
            group.update((name, _like(value, group.get(name))) for name, value in numbers.items())
        for name, value in saved["own"].items():
            setattr(self.optimizer, name, _like(value, getattr(self.optimizer, name)))


class _Trial:
    """What a copy of the optimizer does to a small parameter in each group. Raises UserError if the update of an element
    depends on others, or if the optimizer keeps what a checkpoint cannot have."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._name = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        if not all("lr" in group for group in optimizer.param_groups):
            self._refuse("has no lr in its groups")
        if any(optimizer.state.values()):
            self._refuse("has been stepped before initialize(), or keeps state from its beginning, which belongs to whole "
                         "parameters")
        self.moments, self.numbers = [], []
        for shape, piece in _TRIALS:
            self._compare(shape, piece)

    def _compare(self, shape, piece):
        """Runs the optimizer on a matrix of each group, and on flat pieces of it."""
        generator = torch.Generator().manual_seed(0)
        count = len(self._optimizer.param_groups)
        start = torch.randn(count, *shape, generator=generator)
        gradients = torch.randn(_STEPS, count, *shape, generator=generator)
        whole, copied, before = self._run([[each.clone()] for each in start], lambda step, group: [gradients[step, group]])
        parts, _, _ = self._run([list(each.clone().flatten().split(piece)) for each in start],
                                lambda step, group: gradients[step, group].flatten().split(piece))
        self.numbers.clear()
        for (parameter,) in whole:
            self._note(copied.state[parameter], parameter)
        for one, several in zip(whole, parts):
            if not torch.allclose(one[0].flatten(), torch.cat(several), rtol=1e-4, atol=1e-6):
                self._refuse("looks at whole parameters, which are spread over ranks")
        self.of_groups, self.own = self._changed(copied, before)

    def _refuse(self, why):
        raise UserError(f"optimizer {self._name} {why}: expected an element-wise one, or an \"optimizer\" in the config")

    def _run(self, parameters, gradients_at):
        try:
            copied = self._copy(parameters)
            before = [[_plain_numbers(group) for group in copied.param_groups], _plain_numbers(vars(copied))]
            for step in range(_STEPS):
                for group, tensors in enumerate(parameters):
                    for tensor, gradient in zip(tensors, gradients_at(step, group)):
                        tensor.grad = gradient.clone()
                type(copied).step(copied)
        except Exception as error:  # noqa: BLE001: of the program's class
            raise UserError(f"optimizer {self._name} cannot run on slices of parameters ({type(error).__name__}: {error}): name "
                            "an \"optimizer\" in the config") from error
        return parameters, copied, before

    def _copy(self, parameters):
        """A copy of the optimizer for other parameters, without the program's hooks."""
        known = {id(parameter): parameter for group in self._optimizer.param_groups for parameter in group["params"]}
        copied = object.__new__(type(self._optimizer))
        for name, value in vars(self._optimizer).items():
            if name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
                copied.__dict__[name] = collections.OrderedDict()
            elif name not in ("param_groups", "state", "step"):  # a scheduler of torch wraps step()
                copied.__dict__[name] = copy.deepcopy(value, dict(known))
        copied.state = collections.defaultdict(dict)
        copied.param_groups = [{**copy.deepcopy({name: value for name, value in group.items() if name != "params"}),
                                "params": tensors}
                               for group, tensors in zip(self._optimizer.param_groups, parameters)]
        return copied

    def _note(self, state, parameter):
        moments = {name: value for name, value in state.items() if value is not None and not _is_number(value)}
        for name, value in moments.items():
            if not isinstance(value, torch.Tensor) or value.shape != parameter.shape or value.dtype != torch.float32:
                self._refuse(f"keeps {name!r}, which is neither a number nor float32 of the parameter's shape")
        if self.numbers and list(moments) != self.moments:
            self._refuse("keeps other tensors for some groups than for others")
        self.moments = list(moments)
        self.numbers.append(_numbers(state))

    @staticmethod
    def _changed(copied, before):
        """Names of the numbers in groups and in the optimizer itself that its steps change."""
        def changes(now, then):
            return {name for name, value in _plain_numbers(now).items() if then.get(name, None) != value}

        of_groups = set().union(*(changes(now, then) for now, then in zip(copied.param_groups, before[0])))
        return sorted(of_groups), sorted(changes(vars(copied), before[1]))


def _plain_numbers(of):
    return {name: _plain(value) for name, value in _numbers(of).items()}
