"""Models as lists of layers, which pipeline stages divide among themselves, as deepspeed.runtime.pipe.module has them."""

import contextlib
import functools
import re

import torch
from torch.utils import _pytree

from ... import _core, checkpointing
from ..._core import UserError
from ...comm import get_rank, get_world_size
from ...errors import not_supported
from ..utils import set_random_seed
from .topology import PipeDataParallelTopology, PipelineParallelGrid, check_order

_METHODS = ("\"parameters\" (equal bytes), \"uniform\" (equal numbers of layers), \"type:REGEX\" (equal numbers of layers whose class "
            "has such a name)")


class PipelineError(UserError):
    """A call that a model of pipeline stages does not allow."""


class LayerSpec:
    """A layer that is made later: typename(*args, **kwargs)."""

    def __init__(self, typename, *module_args, **module_kwargs):
        if not isinstance(typename, type) or not issubclass(typename, torch.nn.Module):
            raise UserError(f"{type(self).__name__}(): expected a class of modules (torch.nn.Module), not {typename!r}")
        self.typename, self.module_args, self.module_kwargs = typename, module_args, module_kwargs

    def __repr__(self):
        words = [*map(repr, self.module_args), *(f"{name}={value!r}" for name, value in self.module_kwargs.items())]
        return f"{self.typename.__name__}({', '.join(words)})"

    def build(self, log=False):
        return self.typename(*self.module_args, **self.module_kwargs)


class TiedLayerSpec(LayerSpec):
    """Layers of the same `key` are one module, on however many stages: its parameters have the same values everywhere, and their
    gradients are summed. `forward_fn(module, inputs)` takes the place of the module's forward."""

    def __init__(self, key, typename, *module_args, forward_fn=None, tied_weight_attr="weight", **module_kwargs):
        super().__init__(typename, *module_args, **module_kwargs)
        self.key, self.forward_fn = key, forward_fn
        self.tied_weight_attr = [tied_weight_attr] if isinstance(tied_weight_attr, str) else list(tied_weight_attr)


class PipelineModule(torch.nn.Module):
    """A model of layers, each of which takes what the one before returns: a tensor, or a tuple of tensors. `layers`: modules,
    LayerSpec, TiedLayerSpec, functions. initialize() makes an engine of it, which trains by train_batch(). The arguments are
    DeepSpeed's. The object is made on all ranks alike; it has the layers of this rank's stage, under the names that they have in the
    whole model. Initial values do not depend on the number of stages. Only modules that were made before have memory on all ranks."""

    def __init__(self, layers, num_stages=None, topology=None, loss_fn=None, seed_layers=False, seed_fn=None, base_seed=1234,
                 partition_method="parameters", activation_checkpoint_interval=0, activation_checkpoint_func=checkpointing.checkpoint,
                 checkpointable_layers=None, dynamic_shape=False):
        super().__init__()
        self._topo = _topology_of(num_stages, topology)
        self._grid = PipelineParallelGrid(self._topo, get_rank())
        self.num_stages, self.stage_id = self._grid.pipe_parallel_size, self._grid.stage_id
        self.global_rank, self.world_size = self._grid.global_rank, self._grid.world_size
        self.seed_layers, self.seed_fn, self.base_seed = seed_layers, seed_fn, base_seed
        self.activation_checkpoint_func, self.checkpointable_layers = activation_checkpoint_func, checkpointable_layers
        self.set_checkpoint_interval(activation_checkpoint_interval)
        self.dynamic_shape = dynamic_shape  # shapes may always change
        self.micro_offset = 0
        self._layer_specs = list(layers)
        self._all_tied = {}  # by key
        with _without_memory() if self.num_stages > 1 else contextlib.nullcontext():
            self._all_layers = [self._make(index, spec) for index, spec in enumerate(self._layer_specs)]
        self._names = [f"{index} ({_kind(spec)})" for index, spec in enumerate(self._layer_specs)]
        self._method = partition_method
        self.parts = self._partition(self.num_stages)
        self._local_start, self._local_stop = self.parts[self.stage_id:self.stage_id + 2]
        self._register(loss_fn)

    # Making layers

    def _make(self, index, spec):
        """The module of a layer, or the function."""
        if self.seed_layers:
            self._seed(self.base_seed + index)
        if isinstance(spec, PipelineModule):
            raise not_supported(f"layer {index}, a PipelineModule inside another", "list its layers")
        if isinstance(spec, TiedLayerSpec):
            if spec.key not in self._all_tied:
                self._all_tied[spec.key] = spec.build()
            for name in spec.tied_weight_attr:
                _check_attribute(self._all_tied[spec.key], name, spec.key)
            return self._all_tied[spec.key]
        if isinstance(spec, LayerSpec):
            return spec.build()
        if not callable(spec):
            raise UserError(f"PipelineModule(): layer {index} is a {type(spec).__name__}: expected a module, a LayerSpec or a "
                            "function")
        return spec

    def _seed(self, seed):
        (self.seed_fn or set_random_seed)(seed)

    def _register(self, loss_fn):
        """Gives this module the layers of its stage."""
        own = range(self._local_start, self._local_stop)
        tied = {spec.key: self._all_tied[spec.key] for spec in (self._layer_specs[index] for index in own)
                if isinstance(spec, TiedLayerSpec)}
        self.tied_modules = torch.nn.ModuleDict(tied)
        self.forward_funcs = []
        for index in own:
            spec, layer = self._layer_specs[index], self._all_layers[index]
            if isinstance(layer, torch.nn.Module) and not isinstance(spec, TiedLayerSpec):
                self.add_module(str(index), layer)
            self.forward_funcs.append(self._function(index))
        if self.stage_id == self.num_stages - 1:
            self.loss_fn = loss_fn
        else:  # no submodule of this stage
            self.__dict__["loss_fn"] = loss_fn
        self._own = {id(tensor) for tensor in (*self.parameters(), *self.buffers())}

    def _function(self, index):
        """What computes a layer: the module, or a function."""
        spec, layer = self._layer_specs[index], self._all_layers[index]
        if isinstance(spec, TiedLayerSpec) and spec.forward_fn is not None:
            return functools.partial(spec.forward_fn, layer)
        return layer

    # Dividing layers among stages

    def _partition(self, stages):
        method, count = self._method, len(self._layer_specs)
        if count < stages:
            raise UserError(f"PipelineModule(): {count} layers for {stages} stages: each stage needs a layer; use fewer "
                            "stages, or divide layers")
        kind, colon, pattern = str(method).partition(":")
        if kind.lower() == "type" and colon:
            costs = self._matches(pattern)
        elif str(method).lower() == "uniform":
            return _core.cut_by_number(count, stages)
        elif str(method).lower() == "parameters":
            costs = [sum(tensor.nbytes for tensor in self._tensors(index)) for index in range(count)]
        else:
            raise UserError(f"PipelineModule(partition_method={method!r}): expected {_METHODS}")
        return _core.cut_by_cost(list(map(float, costs)), stages)

    def _matches(self, pattern):
        costs = [1 if re.search(pattern, _kind(spec), re.IGNORECASE) else 0 for spec in self._layer_specs]
        if not any(costs):
            raise UserError(f"PipelineModule(partition_method='type:{pattern}'): no layer's class has such a name; there are "
                            f"{', '.join(dict.fromkeys(map(_kind, self._layer_specs)))}")
        return costs

    def _tensors(self, index):
        layer = self._all_layers[index]
        return [*layer.parameters(), *layer.buffers()] if isinstance(layer, torch.nn.Module) else []

    def partitions(self):
        """The first layer of each stage, and the number of layers."""
        return self.parts

    def stage_owner(self, layer_idx):
        if not 0 <= layer_idx < self.parts[-1]:
            raise UserError(f"stage_owner(): there is no layer {layer_idx}, only {self.parts[-1]} layers")
        return next(stage for stage in range(self.num_stages) if layer_idx < self.parts[stage + 1])

    # For initialize()

    def whole(self):
        """A module with the layers of all stages, under their names. Only before initialize()."""
        if self._all_layers is None:
            raise UserError("initialize(): this PipelineModule has an engine already: make another one")
        whole = torch.nn.Module()
        whole.tied_modules = torch.nn.ModuleDict(self._all_tied)
        for index, (spec, layer) in enumerate(zip(self._layer_specs, self._all_layers)):
            if isinstance(layer, torch.nn.Module) and not isinstance(spec, TiedLayerSpec):
                whole.add_module(str(index), layer)
        if isinstance(self.loss_fn, torch.nn.Module):
            whole.loss_fn = self.loss_fn
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            if id(tensor) not in self._own:
                raise UserError(f"initialize(): {name} is in no layer of the PipelineModule: make it a part of the layer that uses "
                                "it")
        return whole

    def described_layers(self):
        """(name, tensors) of each layer of all stages, and the names of those that stages after the first begin with."""
        tensors = [self._tensors(index) for index in range(len(self._names))]
        if isinstance(self.loss_fn, torch.nn.Module):
            tensors[-1] += [*self.loss_fn.parameters(), *self.loss_fn.buffers()]
        return list(zip(self._names, tensors)), [self._names[first] for first in self.parts[1:-1]]

    def for_plan(self, stages, interval, inputs, labels):
        """The layers as a plan calls them, divided among so many stages, with the tensors of a micro-batch. The first layer of each run
        of `interval` layers (0: of each layer) computes them all, and the others pass on what it returns."""
        layers, _ = self.described_layers()
        parts = self._partition(stages)
        functions = [lambda tensors: tensors] * len(layers)
        for start, stop in zip(parts, parts[1:]):
            for first in range(start, stop, interval or 1):
                run = [self._function(index) for index in range(first, min(first + (interval or 1), stop))]
                functions[first] = functools.partial(self._run_planned, run, interval > 0 and self._is_checkpointable(run))
        return _core.planned_pipeline(layers, [self._names[first] for first in parts[1:-1]], functions,
                                      lambda outputs, labels: self.loss_fn(_as_value(outputs), _as_value(labels)),
                                      _tensors_in(inputs), _tensors_in(labels))

    def _run_planned(self, functions, recomputes, tensors):
        def run(*given):
            return functools.reduce(lambda value, function: function(value), functions, _as_value(given))

        return _tensors_in(self.activation_checkpoint_func(run, *tensors) if recomputes else run(*tensors))

    def drop_other_stages(self):
        """Called when an engine has taken this stage's layers."""
        self._all_layers = self._layer_specs = None
        self._all_tied = dict(self.tied_modules.items())
        if self.stage_id < self.num_stages - 1:
            self.__dict__["loss_fn"] = None

    # Running this stage

    def forward(self, forward_input):
        self.micro_offset += 1
        count, interval = len(self.forward_funcs), self.activation_checkpoint_interval or len(self.forward_funcs)
        values = forward_input
        for start in range(0, count, interval):
            is_tuple = isinstance(values, tuple)
            run = functools.partial(self._run, start, min(start + interval, count), self.micro_offset + 1, is_tuple)
            given = values if is_tuple else (values,)
            values = self.activation_checkpoint_func(run, *given) if self._recomputes(start, interval, given) else run(*given)
        return values

    def _run(self, start, end, micro_offset, is_tuple, *given):
        values = given if is_tuple else given[0]
        for index in range(start, end):
            layer = self._local_start + index
            if self.seed_layers:
                self._seed(self.base_seed * micro_offset + layer)
            try:
                values = self.forward_funcs[index](values)
            except Exception as error:
                if hasattr(error, "add_note"):
                    error.add_note(f"in layer {self._names[layer]} of pipeline stage {self.stage_id}")
                raise
        return values

    def _recomputes(self, start, interval, given):
        """Whether backward computes these layers again. A function that is not ours may be re-entrant: it would give the layers'
        parameters no gradients if nothing that it is given requires grad."""
        if not self.activation_checkpoint_interval or not torch.is_grad_enabled():
            return False
        leaves = [leaf for leaf in _pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        if self.activation_checkpoint_func is not checkpointing.checkpoint and not any(leaf.requires_grad for leaf in leaves):
            return False
        return self._is_checkpointable(self.forward_funcs[start:start + interval])

    def _is_checkpointable(self, funcs):
        if self.checkpointable_layers is not None:
            return all(type(function).__name__ in self.checkpointable_layers for function in funcs)
        return any(isinstance(function, torch.nn.Module) and next(function.parameters(), None) is not None for function in funcs)

    def set_checkpoint_interval(self, interval):
        """Backward computes each run of so many layers of the stage again; 0: none."""
        if not isinstance(interval, int) or isinstance(interval, bool) or interval < 0:
            raise UserError(f"PipelineModule: activation_checkpoint_interval {interval!r}: expected a number of layers, 0 for none")
        self.activation_checkpoint_interval = interval

    # Facts

    def topology(self):
        return self._topo

    def mpu(self):
        return self._grid

    def num_pipeline_stages(self):
        return self.num_stages

    def get_additional_losses(self):
        return None


def _topology_of(stages, topology):
    world_size = get_world_size()
    if topology is not None:
        check_order(topology)
        ranks, along = topology.world_size(), max(topology.get_dim("pipe"), 1)
        if ranks != world_size:
            raise UserError(f"PipelineModule(topology=...): the topology has {ranks} ranks, and the job has {world_size}")
        if stages not in (None, along):
            raise UserError(f"PipelineModule(): num_stages is {stages}, and the topology has {along} along pipe: give one of them")
        return topology
    if stages is None:
        raise UserError("PipelineModule(): must provide num_stages or topology")
    if not isinstance(stages, int) or isinstance(stages, bool) or stages < 1:
        raise UserError(f"PipelineModule(num_stages={stages!r}): expected a number of stages, at least 1")
    if world_size % stages != 0:
        raise UserError(f"PipelineModule(): num_stages ({stages}) must divide the number of ranks ({world_size}): change one of them")
    return PipeDataParallelTopology(stages, world_size // stages)


def _as_value(tensors):
    """What a layer takes: a tensor, or a tuple of several."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _tensors_in(value):
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def _without_memory():
    """Layers made in this scope get their values in initialize(), on the ranks of their stage (as under zero.Init)."""
    scope = _core.DeferredScope()
    scope.enter()
    try:
        yield
    finally:
        scope.exit()


def _kind(spec):
    if isinstance(spec, LayerSpec):
        return spec.typename.__name__
    return type(spec).__name__ if isinstance(spec, torch.nn.Module) else getattr(spec, "__name__", type(spec).__name__)


def _check_attribute(module, name, key):
    try:
        functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        raise UserError(f"TiedLayerSpec({key!r}, ..., tied_weight_attr={name!r}): {type(module).__name__} has no {name}") from None
