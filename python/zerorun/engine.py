"""The Engine, a torch.nn.Module around the program's model."""

import atexit
import contextlib
import gc
import logging
import sys
import weakref

import torch

from . import _core, _registry, collector, data, groups as groups_of_ranks, left_out
from ._core import UserError
from .checkpoints import Checkpoints
from .errors import FailedAssertion, not_supported
from .facts import Facts
from .flat_optimizer import FlatOptimizer
from .hooks import ModuleHooks
from .inputs import buffers_of, names_optimizer, needs_all_gradients, refuse_other_states, tag_validation_of, without_optimizer
from .model_facts import attention_heads, fp32_buffers
from .model_watch import ModelWatch
from .module_notes import explained_errors, log_conversions
from .monitors import Monitored, PackageMonitors
from .optimizer import ClientWatch, ZeroOptimizer, as_config, as_group, groups_of, has_kernel
from .partitioned import ParameterOffload
from .raw_access import RawReaders, refuse_compilation
from .recompute import recompute
from .schedules import Scheduled
from .stacks import show_stacks
from .state_dicts import show_parameters
from .tensor_plan import entries_of
from .tensor_ranks import check_first_forward, compare_dtype, mesh_with_told, verify_plan
from .utils import mark_leaf_modules
from .weights import Weights

log = logging.getLogger("zerorun")


class Engine(Facts, Checkpoints, Weights, Scheduled, Monitored, torch.nn.Module):
    """Calls the model and runs ZeRO on its parameters. A model has one engine on each rank, used by one thread at a time."""

    def __init__(self, model, config_text, origin, config=None, optimizer=None, model_parameters=None, lr_scheduler=None,
                 arguments=None, mesh=None, tensor_plan=None):
        super().__init__()
        config_text = config_text if optimizer is None else without_optimizer(config_text)
        refuse_other_states(optimizer, config_text)
        if not isinstance(optimizer, torch.optim.Optimizer) and callable(optimizer):
            chosen = model_parameters if model_parameters is not None else model.parameters()
            optimizer = optimizer([p for p in chosen] if not isinstance(chosen, list) else chosen)
        groups = optimizer.param_groups if optimizer is not None else groups_of(model_parameters)
        given = _core.Given()
        whole = self._describe_layers(model, given)
        given.parameters = list(whole.named_parameters(remove_duplicate=False))
        given.buffers, given.unsaved_buffers = buffers_of(whole)
        given.config, given.origin = config_text, origin
        self._flat = None
        given.groups = [as_group(group) for group in groups or []]
        if optimizer is not None and not has_kernel(optimizer) and _core.allows_untested(config_text, origin):
            self._flat = FlatOptimizer(optimizer)
            given.python_optimizer = _core.PythonOptimizer(self._flat, given.groups)
        else:
            given.optimizer = as_config(optimizer) if optimizer is not None else ""
        given.arguments = dict(arguments or {})
        given.mesh, tensor_ranks = mesh_with_told(mesh, model, config_text, origin)
        given.tensor_plan = entries_of(model, tensor_plan, tensor_ranks)
        given.has_schedule = lr_scheduler is not None
        given.fp32_buffers, given.fp32_buffers_under_fp16 = fp32_buffers(whole)
        given.attention_heads = attention_heads(whole)
        dtypes = {name: tensor.dtype for name, tensor in given.parameters}
        trains = optimizer is not None or names_optimizer(config_text)
        with left_out.frozen(given.parameters if trains and whole is model else [], given.groups):
            self._core = _core.start(given)
        show_stacks()
        for other in _registry.living():
            if not _core.has_parameters(other._core):
                other._leave_model()
        self.is_destroyed = False
        self._stepped = self._has_forwarded = False
        self.module = model
        self.config = config  # what was passed: a dict or a path
        self._config = self._core.config()
        self._runs_schedule = self._config["has_scheduler"]  # one of the config, that the program has not taken over
        own = {id(tensor) for tensor in model.parameters()}
        self._parameter_names = {id(tensor): name for name, tensor in given.parameters if id(tensor) in own}
        # Of parameters that are split among tensor ranks.
        self._whole_shapes = {id(tensor): tuple(_core.whole_sizes(self._core, tensor)) for tensor in model.parameters()
                              if given.tensor_plan and _core.is_split(self._core, tensor)}
        self._model_watch = ModelWatch(model)
        self.micro_steps = self._no_sync_scopes = 0
        self._tag_validation, self._needs_all_gradients = tag_validation_of(config_text), needs_all_gradients(config_text)
        self._hooks = ModuleHooks()
        self._follow_mode()
        if self.zero_optimization_partition_weights():
            mark_leaf_modules(model, self._config, self.communication_shares_memory)
        self._raw_readers = RawReaders(self)
        show_parameters(self, self._hooks)
        self.optimizer = self._lr_scheduler = None
        if not self._config["computes_only"]:
            self.optimizer = ZeroOptimizer(self, optimizer, groups if optimizer is not None else self._complete(groups))
            self.optimizer.pull()
            if self.zero_optimization_partition_weights():
                self.optimizer.parameter_offload = ParameterOffload(model)
            self._lr_scheduler = self._make_schedule(lr_scheduler)
        self._scheduled_steps = 0
        self._client_watch = ClientWatch(self, optimizer) if optimizer is not None else None
        if self._core.rank() == 0:
            log_conversions(model, dtypes, self.dtype)
            compare_dtype(model, self.dtype)
        self._monitors = PackageMonitors(self._config) if self._core.rank() == 0 else None
        self._stop_recomputing = recompute(model, self._config, self._core.rank(), self._core)
        if self._config["disables_gc"]:
            collector.switch_off(self)
        groups_of_ranks.follow(self._core)
        _registry.add(self)

    def _describe_layers(self, model, given):
        """Returns the module that has all parameters, also those of other ranks. A pipeline adds its layers to `given`."""
        return model

    # A copy would share the engine's state with the original.
    def __deepcopy__(self, memo):
        raise UserError("an engine cannot be copied: copy engine.module, whose copy is a plain model")

    def __reduce_ex__(self, protocol):
        raise UserError("an engine cannot be pickled: engine.save_checkpoint() saves its state")

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in _NOT_SUPPORTED:
                raise not_supported(f"engine.{name}()", _NOT_SUPPORTED[name]) from None
            module = self.__dict__.get("_modules", {}).get("module")
            if module is not None and hasattr(module, name):
                return getattr(module, name)
            raise

    def _complete(self, groups):
        """Adds lr and betas to the groups; pull() then sets their values."""
        more = {"lr": 0.0}
        if self._core.get_betas()[0] is not None:
            more["betas"] = (0.9, 0.999)
        groups = groups or [{"params": [p for p in self.module.parameters() if p.requires_grad]}]
        return [{**more, **group} for group in groups]

    def _follow_mode(self):
        """Makes the engine's mode follow module.train() and module.eval(), updated before each forward."""
        self._core.set_training(self.module.training)
        core = weakref.ref(self._core)

        def note_mode(module, args):
            living = core()
            if living is not None:
                living.set_training(module.training)

        self._hooks.add(self.module, self.module.register_forward_pre_hook(note_mode))

    # Training

    def forward(self, *inputs, **kwargs):
        refuse_compilation()
        self._raw_readers.close_left_open()
        self._raw_readers.follow_compilation()
        if self._config["dtype"] == "fp16":
            inputs, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, self._core.cast_input, (inputs, kwargs))
        if self._whole_shapes and not self._has_forwarded:
            check_first_forward(self, (inputs, kwargs))
            self._has_forwarded = True
        with explained_errors(self.module, self._whole_shapes), self._autocast():
            return self.module(*inputs, **kwargs)

    @contextlib.contextmanager
    def _autocast(self):
        if not self._config["autocast"]:
            yield
            return
        torch.clear_autocast_cache()  # of a region around the training: its copies are of parameters before an update
        with torch.autocast(self.device.type, torch.bfloat16), _core.CastWatch():
            yield

    def backward(self, loss, retain_graph=False, scale_wrt_gas=True, create_graph=False):
        """Runs backward on loss / gradient_accumulation_steps and reduces gradients while it runs. Returns `loss`."""
        if not isinstance(loss, torch.Tensor):
            raise FailedAssertion(f"engine.backward(): loss is a {type(loss).__name__}, expected a tensor of one element")
        scaled = loss if scale_wrt_gas else loss * self.gradient_accumulation_steps()
        with explained_errors(self.module, self._whole_shapes):
            self._core.backward(scaled, retain_graph, create_graph)
        return loss

    def scale(self, loss):
        """Returns the loss times the loss scale under fp16, for loss.backward(); otherwise the loss."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise FailedAssertion(f"engine.scale(): expected the loss, a scalar tensor, not {_shown_value(loss)}")
        return self._core.scale(loss)

    def step(self, lr_kwargs=None):
        """Ends a micro-step. At the accumulation boundary it also clips, updates and advances the schedule, and calls the hooks
        of the optimizer's step."""
        if self._no_sync_scopes:
            raise FailedAssertion("engine.step() inside a no_sync() scope, where gradients are not reduced: end the scope before the last "
                                  "backward()")
        self._model_watch.check()
        updates, backwards = self._core.is_boundary(), self._core.backwards()
        if updates and self._needs_all_gradients:
            self._refuse_unused()
        self._before_step(backwards if updates else 0, lr_kwargs or {})
        self._core.step()
        self.micro_steps += 1
        if updates:
            self._after_update(backwards, lr_kwargs or {})
            self._hold()

    def _refuse_unused(self):
        """On all ranks, if a parameter of any rank has no gradient."""
        unused = [name for name, parameter in self.module.named_parameters() if parameter.requires_grad and parameter.grad is None]
        reason = f"step(): no backward has reached parameter {unused[0]}{f' and {len(unused) - 1} others' if unused[1:] else ''}, and the " \
            "config has \"ignore_unused_parameters\": false: use it in the loss, freeze it before initialize(), or remove the key" if unused else ""
        try:
            self._core.refuse_on_all_ranks(reason.encode(errors="backslashreplace"))
        except UserError as refusal:
            raise FailedAssertion(str(refusal)) from None

    def _before_step(self, updating_backwards, lr_kwargs):
        self._advance_schedule(lr_kwargs)
        if self.optimizer is not None:
            if updating_backwards > 0:
                self._warn_of_late_changes()
                self.optimizer.call_step_hooks(is_before=True)
            self.optimizer.push()

    def _after_update(self, backwards, lr_kwargs):
        self._stepped = True
        self._count_samples(backwards)
        if self._runs_schedule:
            self.optimizer.pull()
        self.optimizer.call_step_hooks(is_before=False)
        self._advance_schedule(lr_kwargs)
        self._send_events()

    def train(self, mode=True):
        super().train(mode)
        if "_core" in self.__dict__:
            self._core.set_training(mode)
        return self

    def zero_grad(self, set_to_none=True):
        """Drops the gradients of all micro-steps since the last optimizer step."""
        self._raw_readers.close_left_open()
        self._core.zero_grad()

    @contextlib.contextmanager
    def no_sync(self):
        """In this scope the engine takes no backward for the last one before an optimizer step."""
        scope = _core.NoSync(self._core)
        scope.enter()
        self._no_sync_scopes += 1
        try:
            yield
        finally:
            self._no_sync_scopes -= 1
            scope.exit()

    def set_gradient_accumulation_boundary(self, is_boundary):
        if not self.managed_gradient_accumulation():
            raise FailedAssertion("set_gradient_accumulation_boundary() with \"managed_gradient_accumulation\": false, with which "
                                  "every step() updates")
        self._core.set_boundary(is_boundary)

    def is_gradient_accumulation_boundary(self):
        return self._core.is_boundary()

    def synchronize(self):
        """Allows raw access to parameters at stages 1 and 2 until the next step()."""
        self._core.synchronize()

    def gather_around(self, *targets):
        """Gathers all parameters of these modules (given as modules, classes or names of classes) around forward and
        backward, for code that reads their memory without torch's operators (ctypes, Triton)."""
        self._raw_readers.add(targets)

    def compile(self, backend="inductor", compile_kwargs=None, schedule=None, compiled_autograd_enabled=False):
        """Compiles the model, and gathers all of it around forward and backward. To gather less at once, compile its blocks
        instead: block.compile()."""
        if schedule is not None or compiled_autograd_enabled:
            raise not_supported("engine.compile() with a schedule or compiled_autograd_enabled", "leave it out")
        self.module.compile(backend=backend, **(compile_kwargs or {}))

    def verify_plan(self, whole, loss_of, tolerance=1e-4):
        """Computes one micro-batch by the model split among tensor ranks and by the model whole, and compares losses and gradients.
        This finds modules that sum or normalise over a dimension that is split. Without split parameters it does nothing.

        `whole`: a second instance of the model, which gets the engine's values, on each rank. `loss_of(model)`: the loss of the same
        samples by `whole` and by the engine, without dropout. `tolerance`: the largest difference, relative to a tensor's largest
        magnitude. A collective, between step() and the next backward(). Raises UserError on all ranks, which names what differs."""
        verify_plan(self, whole, loss_of, tolerance)

    def collect_python_gc(self):
        """Collects reference cycles at a moment that the program chooses, with disable_python_gc. Returns their number."""
        return gc.collect()

    def destroy(self):
        """Destroys the engine after waiting for a checkpoint that is being written. At stage 3 the parameters then have no
        values."""
        self._destroy(self._core.destroy)

    def _destroy_after_exception(self):
        try:
            self._core.wait_for_checkpoint()
        finally:
            self._destroy(self._core.destroy_after_exception)

    def _destroy(self, destroy_core):
        if self.is_destroyed:
            return
        self._core.check_idle()
        self.is_destroyed = True
        self._end_live_line()
        collector.switch_on(self)
        self._leave_model()
        try:
            destroy_core()
        finally:
            self._send_events()

    def _leave_model(self):
        """Undoes what was done to the model's modules and the program's optimizer: the engine ends, or another one has taken
        its parameters."""
        self._raw_readers.close_left_open()
        self._hooks.remove()
        self._stop_recomputing()
        left_out.release(self.module.parameters())
        if self._client_watch is not None:
            self._client_watch.end()
            self._client_watch = None

    def offload_states(self, include=None, device=None, pin_memory=True, non_blocking=False):
        self._core.offload_states()

    def reload_states(self, non_blocking=False):
        self._core.reload_states()

    # Data

    def deepspeed_io(self, dataset, batch_size=None, route=None, pin_memory=True, data_sampler=None, collate_fn=None,
                     num_local_io_workers=None):
        return data.make_loader(dataset, batch_size or self.train_micro_batch_size_per_gpu(),
                                self._core.coordinates()["data"], self._core.mesh_sizes()["data"], collate_fn=collate_fn,
                                num_workers=num_local_io_workers or 0)

    def take_training_data(self, dataset, collate_fn):
        """The loader that initialize() returns. Checkpoints have its place in the data."""
        loader = self.deepspeed_io(dataset, collate_fn=collate_fn)
        self._training_loader = loader if isinstance(loader, data.TrainingLoader) else None
        return loader


DeepSpeedEngine = Engine

_NOT_SUPPORTED = {
    "eval_batch": "call the engine under torch.no_grad()",
    "train_batch": "call the engine, backward() and step() for each micro-batch",
    "set_train_batch_size": "make an engine with another config",
    "set_train_micro_batch_size": "make an engine with another config",
    "allreduce_gradients": "backward() and step() reduce gradients",
    "get_sequence_parallel_group": "train at stage 3",
    "load_universal_checkpoint": "`zerorun checkpoint import` takes over DeepSpeed's checkpoints",
}


@atexit.register
def _end_engines():
    """Destroys the engines that exist when the process ends: waits for their checkpoints and logs what failed. After an
    exception nothing else waits for other ranks, which may never come to where this rank would have gone on."""
    failed = getattr(sys, "last_value", None) is not None
    for engine in _registry.living():
        try:
            engine._destroy_after_exception() if failed else engine.destroy()
        except Exception as error:  # noqa: BLE001: the interpreter is ending
            log.error("an engine was not destroyed cleanly: %s", error)
            _core.note_failure()


def _shown_value(value):
    return f"one of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
