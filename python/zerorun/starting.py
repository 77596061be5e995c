"""initialize(): makes the engine of a model."""

from ._core import UserError
from .comm import get_world_size, init_distributed, take_over_launcher
from .engine import Engine
from .errors import FailedAssertion
from .inputs import given_config, read_config, refuse_lone_ranks, refuse_models
from .mesh import mesh_of
from .runtime.pipe.engine import PipelineEngine
from .runtime.pipe.module import PipelineModule
from .zero import outside_of_init


def initialize(args=None, model=None, optimizer=None, model_parameters=None, training_data=None, lr_scheduler=None,
               distributed_port=None, mpu=None, dist_init_required=None, collate_fn=None, config=None, mesh_param=None,
               config_params=None, arguments=None, mesh=None, mesh_device=None, tensor_plan=None):
    """As deepspeed.initialize(): returns (engine, optimizer, training_dataloader, lr_scheduler).

    `config`: a dict, or the path of a ds_config.json; else args.deepspeed_config. `arguments`: values for "auto", by the
    key's path. `mesh`: {"data": 2, "tensor": 2}, the config's zerorun.mesh. `tensor_plan`: how parameters are split among tensor
    ranks, {pattern: word} or {pattern: {"style": word, "unit": 64, "blocks": 3, "transposed": True}}; None: as the model's own tp_plan
    says; {}: not at all. A collective. Raises zerorun.UserError."""
    if isinstance(model, Engine):
        raise UserError("initialize(): the model is an engine already: pass the module that it was made from")
    refuse_models(model)
    if mpu is not None and isinstance(model, PipelineModule):
        raise FailedAssertion("initialize(): mpu must be None with a PipelineModule, which has one of its own: leave it out")
    sizes = mesh_of(mesh, mesh_device, mesh_param, mpu)
    take_over_launcher()
    if dist_init_required is not False:
        init_distributed()
    refuse_lone_ranks(get_world_size())
    config = given_config(args, config if config is not None else config_params)
    text, origin = read_config(config)
    kind = PipelineEngine if isinstance(model, PipelineModule) else Engine
    with outside_of_init():
        engine = kind(model, text, origin, config=config, optimizer=optimizer, model_parameters=model_parameters, lr_scheduler=lr_scheduler,
                      arguments=arguments, mesh=sizes, tensor_plan=tensor_plan)
    loader = engine.take_training_data(training_data, collate_fn) if training_data is not None else None
    return engine, engine.optimizer, loader, engine.lr_scheduler
