"""plan(): what a training will take of memory and of the network, before it runs and on any machine."""

import json

import torch
from torch.utils import _pytree

from . import _core
from ._core import UserError
from .inputs import buffers_of, given_config, read_config, refuse_models
from .mesh import mesh_of
from .model_facts import attention_heads, fp32_buffers
from .optimizer import as_config, as_group, groups_of, has_kernel
from .recompute import recompute
from .runtime.pipe.module import PipelineModule
from .tensor_plan import entries_of
from .tensor_ranks import mesh_with_told


def plan(model, config=None, loss=None, batch=None, *, world=1, hosts=1, device="cpu", memory=None, step_seconds=None, endurance=None,
         others=True, optimizer=None, model_parameters=None, arguments=None, mesh=None, tensor_plan=None):
    """Returns what `zerorun plan --json` prints, as a dict (docs/plan.md), of a model whose values are not used: it may be built under
    zero.Init or on the device "meta", and is as before afterwards. Call it before initialize(), on one rank.

    `loss(model, batch)`: the forward of one micro-step on one rank; with it the plan knows the activations, if it can run without values.
    It gets `batch` with tensors on the device "meta", on which tensors that it makes are too. `world`, `hosts`: ranks and hosts of the job.
    `device`: "cpu" or "cuda". `memory`: of a rank, in bytes or as "80G". The others are arguments of initialize(), and options of the
    command. A PipelineModule of the whole model (num_stages=1 here, on one rank) is planned with as many stages as `mesh` or the config
    says, without `loss`; `batch` is (inputs, labels) of one micro-batch. Raises zerorun.UserError."""
    refuse_models(model)
    text, origin = read_config(given_config(None, config))
    given = _core.Given()
    given.config, given.origin = text, origin
    whole = model.whole() if isinstance(model, PipelineModule) else model
    given.parameters = list(whole.named_parameters(remove_duplicate=False))
    given.buffers, given.unsaved_buffers = buffers_of(whole)
    given.fp32_buffers, given.fp32_buffers_under_fp16 = fp32_buffers(whole)
    given.attention_heads = attention_heads(whole)
    given.arguments = dict(arguments or {})
    sizes = mesh_of(mesh, None, None, None)
    if isinstance(model, PipelineModule):
        sizes = _describe_pipeline(given, model, batch, sizes, text, origin)
    given.mesh, tensor_ranks = mesh_with_told(sizes, model, text, origin)
    given.tensor_plan = entries_of(model, tensor_plan, tensor_ranks)
    _describe_optimizer(given, optimizer, model_parameters)
    forward = _forward_of(model, loss, batch) if loss is not None else None
    with torch.device("meta"):
        answer = _core.plan(given, forward, _options(world=world, hosts=hosts, device=device, memory=memory, step_seconds=step_seconds,
                                                     endurance=endurance) + ([] if others else ["--no-others"]))
    return json.loads(answer)


def _describe_pipeline(given, model, batch, sizes, text, origin):
    """Adds the layers of all stages, and returns the sizes of the mesh."""
    data, tensor, stages, replicate = sizes or (0, 1, 1, 1)
    stages = max(stages, _core.pipeline_stages(text, origin), model.num_stages)
    if stages == 1:
        return sizes
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or model.loss_fn is None:
        raise UserError("plan(): a PipelineModule of several stages needs a loss_fn, and batch=(inputs, labels) of one micro-batch")
    given.pipeline = model.for_plan(stages, _core.recomputed_group(text, origin) or model.activation_checkpoint_interval, *batch)
    return data, tensor, stages, replicate


def _describe_optimizer(given, optimizer, model_parameters):
    if optimizer is not None and not (isinstance(optimizer, torch.optim.Optimizer) and has_kernel(optimizer)):
        raise UserError("plan(): a plan knows the optimizers that the engine runs: give one of those, or name it in the config")
    groups = optimizer.param_groups if optimizer is not None else groups_of(model_parameters)
    given.groups = [as_group(group) for group in groups or []]
    given.optimizer = as_config(optimizer) if optimizer is not None else ""


def _forward_of(model, loss, batch):
    def without_values(tensor):
        return tensor.to("meta") if isinstance(tensor, torch.Tensor) else tensor

    def forward(cast_input, settings):
        given = _pytree.tree_map(without_values, batch)
        given = _pytree.tree_map_only(torch.Tensor, cast_input, given)
        stop = recompute(model, settings, rank=1)
        try:
            with torch.enable_grad():
                result = loss(model, given)
        finally:
            stop()
        if not isinstance(result, torch.Tensor) or result.numel() != 1:
            raise UserError("plan(): loss(model, batch) must return the loss, a tensor of one element")
        return result

    return forward


def _options(**values):
    options = ["--plan"]
    for name, value in values.items():
        if value is not None:
            options += ["--" + name.replace("_", "-"), str(value)]
    return options
