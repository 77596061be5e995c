"""What a program says about tensor ranks before initialize(), by deepspeed.tp_model_init(), what their first forward must have in
common, and whether they compute what the whole model does."""

import logging
import weakref

import torch
from torch.utils import _pytree

from . import _core
from ._core import UserError
from .errors import not_supported

log = logging.getLogger("zerorun")

_told = weakref.WeakKeyDictionary()  # by model: tp_size and dtype


def tp_model_init(model, tp_size, dtype, config=None, **kwargs):
    """Returns the model, which initialize() then splits among `tp_size` tensor ranks, by its own tp_plan or initialize(tensor_plan=).
    The config's tensor ranks, if it names any, must be as many. As in DeepSpeed, `dtype` converts nothing."""
    if kwargs.get("tp_group") is not None:
        raise not_supported("tp_model_init(tp_group=...)", "leave it out: tensor ranks are neighbours, as docs/python.md says")
    if not isinstance(tp_size, int) or isinstance(tp_size, bool) or tp_size < 1:
        raise UserError(f"tp_model_init(): tp_size {tp_size!r}: expected a number of ranks, at least 1")
    _told[model] = tp_size, dtype
    return model


def set_autotp_mode(training=False):
    """Has no effect for training; initialize() knows."""
    if not training:
        raise not_supported("set_autotp_mode() without training", "serve the model with another package")


def mesh_with_told(sizes, model, text, origin):
    """The mesh's sizes with those that tp_model_init() was told, and the number of tensor ranks."""
    of_config = _core.tensor_ranks(text, origin)
    ranks = sizes[1] if sizes else of_config
    told = _told[model][0] if model in _told else ranks
    if sizes is None and of_config == 1 and told > 1:
        return (0, told, 1, 1), told
    if told != ranks:
        other = "mesh" if sizes else "the config"
        raise UserError(f"initialize(): tp_model_init() was told {told} tensor ranks, and {other} says {ranks}: give the same "
                        "number in both, or leave one of them out")
    return sizes, ranks


def compare_dtype(model, dtype):
    """Logs if tp_model_init() was told another dtype than that of training."""
    told = _told.get(model, (1, None))[1]
    if told is not None and told != dtype:
        log.warning("tp_model_init() was told %s, which converts nothing: parameters are %s, as the config says", told, dtype)


def check_first_forward(engine, inputs):
    """Raises UserError on all tensor ranks if their samples differ, or the random numbers of dropout: each rank would go on, and they
    would train different models. Called before the first forward of an engine with split parameters."""
    samples = [_described(leaf) for leaf in _pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    if _differ(engine, str(samples)):
        raise UserError("the first forward: the ranks of a tensor group must compute with the same samples, and have different ones here: "
                        "divide samples by utils.groups.get_data_parallel_rank() and get_data_parallel_world_size()")
    if not engine.module.training or not any(getattr(module, "p", 0) for module in engine.module.modules()
                                             if isinstance(module, torch.nn.modules.dropout._DropoutNd)):
        return
    state = torch.cuda.get_rng_state() if engine.device.type == "cuda" else torch.get_rng_state()
    if _differ(engine, _described(state)):
        raise UserError("the first forward: the ranks of a tensor group must draw the same random numbers for dropout, and their "
                        "generators differ here: call torch.manual_seed() on them with one seed, or with that of the data rank")


def verify_plan(engine, whole, loss_of, tolerance):
    """What Engine.verify_plan() does."""
    if not isinstance(whole, torch.nn.Module):
        raise UserError(f"verify_plan(): expected a second instance of the model, found a {type(whole).__name__}")
    parameters = list(whole.named_parameters(remove_duplicate=False))
    lying = [name for name, parameter in parameters if _core.lies_in_engine(parameter)]
    if lying:
        raise UserError(f"verify_plan(): parameter {lying[0]} of the whole model belongs to an engine: make a second model, as before "
                        "initialize()")

    def loss_by(model):
        loss = loss_of(model)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UserError("verify_plan(): the function must return the loss, a tensor of one element")
        return loss

    with torch.enable_grad():
        _core.verify_plan(engine._core, parameters, lambda: loss_by(whole), lambda: loss_by(engine), tolerance)


def _differ(engine, text):
    return len(set(_core.texts_of_tensor_ranks(engine._core, text))) > 1


def _described(tensor):
    """Its sizes, and a sum over its bytes that does not depend on the order of additions."""
    data = tensor.detach().contiguous().reshape(-1)
    numbers = data.view(torch.uint8).to(torch.int64) if data.numel() else data.new_zeros(0, dtype=torch.int64)
    weights = torch.arange(numbers.numel(), device=numbers.device) % 8191 + 1
    return f"{tuple(tensor.shape)} {tensor.dtype} {(numbers * weights).sum().item()}"
