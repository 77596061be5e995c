"""The engine of a PipelineModule, as deepspeed.runtime.pipe.engine has it."""

import collections
import weakref

import torch
from torch.utils import _pytree

from ... import _core
from ..._core import UserError
from ...data import RepeatingLoader
from ...engine import Engine
from ...errors import not_supported
from ...module_notes import explained_errors
from ...tensor_ranks import check_first_forward
from .module import PipelineError


class PipelineEngine(Engine):
    """Trains a PipelineModule by train_batch(): forwards and backwards of all micro-batches of an optimizer step, through all stages.
    All ranks call its functions alike."""

    def __init__(self, model, text, origin, mesh=None, **more):
        super().__init__(model, text, origin, mesh=_sizes_of(model, mesh, text, origin), **more)
        model.drop_other_stages()
        if self._config["recomputed_group"]:  # the config's pipeline.activation_checkpoint_interval
            model.set_checkpoint_interval(self._config["recomputed_group"])
        self.grid = self.mpu = model.mpu()
        self.num_stages, self.stage_id = model.num_stages, model.stage_id
        self.prev_stage, self.next_stage = self.stage_id - 1, self.stage_id + 1
        self.micro_batch_size, self.micro_batches = self.train_micro_batch_size_per_gpu(), self.gradient_accumulation_steps()
        self.is_pipe_parallel = self.num_stages > 1
        self.is_data_parallel, self.is_model_parallel = self.mesh["data"] > 1, self.mesh["tensor"] > 1
        self.training_dataloader = self.data_iterator = self.batch_fn = self.agg_train_loss = None

    def _describe_layers(self, model, given):
        whole = model.whole()
        self._runner = _StageRunner(model)
        layers, firsts = model.described_layers()
        given.pipeline = _core.Pipeline(layers, firsts, self._runner.forward, self._runner.loss)
        return whole

    def is_first_stage(self):
        return self.stage_id == 0

    def is_last_stage(self):
        return self.stage_id == self.num_stages - 1

    def get_pipeline_parallel_rank(self):
        return self.stage_id

    # Data

    def take_training_data(self, dataset, collate_fn):
        loader = RepeatingLoader(super().take_training_data(dataset, collate_fn))
        self.set_dataloader(loader)
        return loader

    def set_dataloader(self, loader):
        self.training_dataloader = loader
        self.data_iterator = iter(loader)

    def set_dataiterator(self, iterator):
        self.training_dataloader = None
        self.data_iterator = iterator

    def set_batch_fn(self, fn):
        """`fn` makes (inputs, labels) of what the iterator gives, on the first and the last stage."""
        self.batch_fn = fn

    def _take(self, iterator, count, call):
        """Inputs of the first stage and labels of the last one. All ranks advance the iterator."""
        inputs, labels = [], []
        needs_data = self.is_first_stage() or self.is_last_stage()
        if iterator is not None and not hasattr(iterator, "__next__"):
            raise UserError(f"{call}(): a {type(iterator).__name__} is no iterator: pass iter(...) of it, or a RepeatingLoader")
        if iterator is None and needs_data and self.batch_fn is None:
            raise UserError(f"{call}() without data: pass an iterator over (inputs, labels), or training_data to initialize()")
        for _ in range(count):
            batch = next(iterator) if iterator is not None else None
            if not needs_data:
                continue
            batch = self.batch_fn(batch) if self.batch_fn is not None else batch
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise UserError(f"{call}(): expected (inputs, labels) of a micro-batch, found {_shown(batch)}: set_batch_fn() may "
                                "make them")
            if self.is_first_stage():
                inputs.append(self._moved(batch[0], is_input=True))
            if self.is_last_stage():
                labels.append(self._moved(batch[1], is_input=False))
        return inputs, labels

    def _moved(self, values, is_input):
        def move(tensor):
            tensor = tensor.detach().to(self.device, copy=is_input)  # layers may write to what they are given
            return self._core.cast_input(tensor) if is_input and self.fp16_enabled() else tensor

        return _pytree.tree_map_only(torch.Tensor, move, tuple(values) if isinstance(values, list) else values)

    # Training

    def forward(self, *args, **kwargs):
        raise PipelineError("engine(...) of a PipelineModule: only train_batch() and eval_batch() are accessible in pipeline mode")

    def backward(self, *args, **kwargs):
        raise PipelineError("engine.backward() of a PipelineModule: only train_batch() is accessible in pipeline mode")

    def step(self, *args, **kwargs):
        raise PipelineError("engine.step() of a PipelineModule: only train_batch() is accessible in pipeline mode")

    def train_batch(self, data_iter=None):
        """Trains on gradient_accumulation_steps micro-batches (inputs, labels), each a tensor or a tuple of tensors, and steps.
        `data_iter`: from now on the iterator over micro-batches; on inner stages it may give None. Returns the mean loss of all
        micro-batches and data ranks, on all ranks."""
        if data_iter is not None:
            self.set_dataiterator(data_iter)
        self._model_watch.check()
        window = self._take(self.data_iterator, self.micro_batches, "train_batch")
        self.module.train()
        self._begin(window)
        self._before_step(self.micro_batches, {})
        loss = self._run(lambda: self._core.train_batch(self.micro_batches), *window)
        self.micro_steps += self.micro_batches
        self._after_update(self.micro_batches, {})
        self.agg_train_loss = loss.float()
        return self.agg_train_loss

    def eval_batch(self, data_iter, return_logits=False, compute_loss=True, reduce_output="avg", bcast_loss=True,
                   num_micro_batches=None):
        """Returns the mean loss as train_batch() does, in evaluation mode and without gradients. With reduce_output=None the last stage
        returns a list: the loss of each of its micro-batches, or with compute_loss=False their outputs; other stages return None.
        With `return_logits` also the outputs of the last micro-batch, which are None on other stages than the last one."""
        if isinstance(reduce_output, str) and reduce_output.lower() != "avg":
            raise not_supported(f"eval_batch(reduce_output={reduce_output!r})", "give \"avg\" or None")
        if not compute_loss and reduce_output is not None:
            raise not_supported(f"eval_batch(compute_loss=False, reduce_output={reduce_output!r})",
                                "give reduce_output=None, and reduce the outputs, which the last stage then returns")
        count = self.micro_batches if num_micro_batches is None else num_micro_batches
        window = self._take(data_iter, count, "eval_batch")
        was_training = self.module.training
        self.module.eval()
        try:
            self._begin(window)
            kept = []
            loss = self._run(lambda: self._core.eval_batch(count), *window, kept=kept, computes_loss=compute_loss).float()
        finally:
            self.module.train(was_training)
        reduced = loss if reduce_output is not None else [value for _, value in kept] if self.is_last_stage() else None
        return (reduced, kept[-1][0] if kept else None) if return_logits else reduced

    def _begin(self, window):
        self._raw_readers.close_left_open()
        self._raw_readers.follow_compilation()
        self._core.set_training(self.module.training)
        if self._whole_shapes and not self._has_forwarded:
            check_first_forward(self, window)
            self._has_forwarded = True

    def _run(self, call, inputs, labels, **more):
        with explained_errors(self.module, self._whole_shapes), self._runner.window(inputs, labels, **more):
            return call()

    # What has no effect or no meaning here

    def reset_activation_shape(self):
        """Has no effect: shapes may change from one micro-batch to the next."""

    def set_has_attention_mask(self, value):
        """Has no effect: tensors of every dtype pass between stages."""

    def consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        if self.num_stages > 1:
            raise not_supported("consolidated_16bit_state_dict() of several pipeline stages",
                                "engine.save_16bit_model() writes those of all stages, engine.module_state_dict() has this stage's")
        return super().consolidated_16bit_state_dict(exclude_frozen_parameters)

    _zero3_consolidated_16bit_state_dict = _consolidated_16bit_state_dict = consolidated_16bit_state_dict


class _StageRunner:
    """What the engine's core calls for the layers and the loss of this stage. The core owns it, which Python's garbage collector
    does not see. So it does not own the module, which may refer to the engine."""

    def __init__(self, module):
        self._module = weakref.ref(module)
        self._outputs = None  # of the last stage, from forward() to loss()

    def window(self, inputs, labels, kept=None, computes_loss=True):
        """A scope around a call of the core. Forwards come in the order of micro-batches. `kept`: takes outputs and losses."""
        self._inputs, self._labels = collections.deque(inputs), collections.deque(labels)
        self._kept, self._computes_loss = kept, computes_loss
        return self

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self._inputs = self._labels = self._kept = self._outputs = None

    def forward(self, tensors):
        module = self._module()
        values = self._inputs.popleft() if module.stage_id == 0 else tensors[0] if len(tensors) == 1 else tuple(tensors)
        outputs = module(values)
        if module.stage_id == module.num_stages - 1:
            self._outputs = outputs
            return []
        if isinstance(outputs, torch.Tensor):
            return [outputs]
        if isinstance(outputs, (tuple, list)) and len(outputs) > 1 and all(isinstance(each, torch.Tensor) for each in outputs):
            return list(outputs)
        last = module._names[module._local_stop - 1]
        raise UserError(f"layer {last}, the last one of pipeline stage {module.stage_id}, must return a tensor or a tuple of several "
                        f"tensors, which the next stage gets, and has returned {_shown(outputs)}")

    def loss(self, _, __):
        module = self._module()
        outputs, self._outputs = self._outputs, None
        labels = self._labels.popleft()
        if self._computes_loss:
            loss = outputs if module.loss_fn is None else module.loss_fn(outputs, labels)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                name = "the last layer, as there is no loss_fn," if module.loss_fn is None else "loss_fn"
                raise UserError(f"{name} must return the loss, a tensor of one element, and has returned {_shown(loss)}")
        else:
            loss = torch.zeros(())
        if self._kept is not None:
            self._kept.append((outputs, loss.detach() if self._computes_loss else outputs))
        return loss


def _sizes_of(model, mesh, text, origin):
    """(data, tensor, pipeline, replicate) with 0 for the data ranks that the others leave. Raises UserError if the module, the config and the
    program's mesh have other numbers of stages."""
    stages = model.num_stages
    of_config = _core.pipeline_stages(text, origin)
    if of_config not in (0, stages):
        raise UserError(f"initialize(): the PipelineModule has num_stages {stages}, and the config says {of_config} "
                        "(pipeline.stages, zerorun.mesh.pipeline): give the same number in both, or leave the config's out")
    tensor = model.topology().get_dim("model") or (mesh[1] if mesh else _core.tensor_ranks(text, origin))
    if mesh is not None and (mesh[1], mesh[2]) != (tensor, stages):
        raise UserError(f"initialize(): the PipelineModule has num_stages {stages} and {tensor} tensor ranks, and the program's mesh "
                        f"has pipeline {mesh[2]} and tensor {mesh[1]}: give the same sizes in both, or leave the mesh out")
    return (mesh[0] if mesh else 0), tensor, stages, (mesh[3] if mesh else 1)


def _shown(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {', '.join(type(each).__name__ for each in value) or 'nothing'}"
    return f"a {type(value).__name__}" if value is not None else "None"
