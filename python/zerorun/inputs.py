"""Reads and checks the inputs of initialize() before the engine changes anything."""

import json
import logging
import math
import os
import sys

import torch

from ._core import UserError
from .comm import get_world_size
from .errors import BadArgument, FailedAssertion

log = logging.getLogger("zerorun")

_MOST_CHARACTERS = 16 << 20  # as in config/file.cpp


def _open_at_once(path, flags):
    """Plain open() would wait until somebody opens a pipe for writing."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def buffers_of(model):
    """Names and tensors of the buffers that checkpoints have, and of those registered with persistent=False."""
    saved = {id(buffer) for module in model.modules() for name, buffer in module._buffers.items()
             if name not in module._non_persistent_buffers_set}
    both = list(model.named_buffers())
    return [each for each in both if id(each[1]) in saved], [each for each in both if id(each[1]) not in saved]


def path_for_core(path, call):
    """The path's bytes: a path need not be UTF-8. `call` is for the error."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise BadArgument(f"{call}(): expected the path of a folder or a file, not {path!r}")
    if not os.fspath(path):
        raise BadArgument(f"{call}(): the folder's name is empty: name a folder")
    try:
        return os.fsencode(path)
    except UnicodeEncodeError as error:
        raise UserError(f"{call}(): no file can have the name {path!r}: {error.reason}") from error


def tag_for_core(tag, call):
    if tag is None:
        return b""
    return path_for_core(tag if isinstance(tag, (str, bytes, os.PathLike)) else str(tag), call)


def shown(path):
    """The path for messages."""
    return os.fsencode(path).decode(errors="backslashreplace")


def given_config(args, config):
    """The config that the program passes, as an argument of initialize() or on its command line."""
    if config is None:
        config = getattr(args, "deepspeed_config", None)
    if config is None:
        raise FailedAssertion("initialize(): no config: pass config=\"ds_config.json\" or a dict, or --deepspeed_config")
    return config


def _as_deepspeed_reads(config):
    """The dict without what frameworks add to it and DeepSpeed takes silently."""
    result = dict(config)
    if result.get("steps_per_print") == math.inf:  # never
        result["steps_per_print"] = sys.maxsize
    dotted = [key for key in result if isinstance(key, str) and key.split(".")[0] in result and "." in key]
    for key in dotted:
        del result[key]
    if dotted:
        log.info("keys of the config with a dot have no effect, as in DeepSpeed: %s", ", ".join(dotted))
    _count_data_ranks(result)
    return result


def _count_data_ranks(config):
    """DeepSpeed counts tensor ranks too in train_batch_size, which frameworks fill in so. They have the same samples."""
    section = config.get("tensor_parallel")
    tensor = section.get("autotp_size") if isinstance(section, dict) else None
    sizes = [config.get(key) for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")]
    if any(type(each) is not int for each in (tensor, *sizes)) or tensor < 2 or get_world_size() % tensor:
        return
    batch, micro, accumulation = sizes
    if batch == micro * accumulation * get_world_size():
        config["train_batch_size"] = batch // tensor
        log.info("train_batch_size %d counts the samples of all ranks, as in DeepSpeed: %d, since %d tensor ranks have the same ones",
                 batch, batch // tensor, tensor)


def read_config(config):
    """The config's text for the core, and where it comes from. Raises UserError."""
    if isinstance(config, dict):
        try:
            return json.dumps(_as_deepspeed_reads(config)), "the config dict"
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"initialize(): the config dict holds what JSON has not: {error}") from error
    if not isinstance(config, (str, os.PathLike)):
        raise BadArgument(f"initialize(): config is a {type(config).__name__}, expected a dict or the path of a ds_config.json")
    name = shown(config)
    try:
        with open(config, encoding="utf-8", opener=_open_at_once) as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except OSError as error:
        raise BadArgument(f"initialize(): cannot read the config {name}: {error.strerror}") from error
    except ValueError as error:  # a name with a 0 byte, or text that is not UTF-8
        raise UserError(f"initialize(): cannot read the config {name!r}: expected a file of UTF-8 text: {error}") from error
    if len(text) > _MOST_CHARACTERS:
        raise UserError(f"initialize(): cannot read the config {name}: it has more than 16 MiB")
    return text, name


def names_optimizer(text):
    """Whether the config has an optimizer. The engine checks the text later."""
    return _parsed(text).get("optimizer") is not None


def without_optimizer(text):
    """The config of a program that passes an optimizer, which overrides the config's, as in DeepSpeed."""
    if not names_optimizer(text):
        return text
    log.warning("initialize(): the program passes an optimizer, so the config's \"optimizer\" has no effect")
    return json.dumps({key: value for key, value in _parsed(text).items() if key != "optimizer"})


def refuse_other_states(optimizer, text):
    """Raises FailedAssertion, as DeepSpeed does, if the program's optimizer is made for fp32 states and the config asks for bf16 ones."""
    for name in ("bf16", "bfloat16"):
        section = _parsed(text).get(name)
        if isinstance(section, dict) and section.get("bf16_optimizer_states") and getattr(optimizer, "fp32_optimizer_states", False):
            raise FailedAssertion(f"initialize(): the config keeps optimizer states in bf16 ({name}.bf16_optimizer_states), and the program's "
                                  f"{type(optimizer).__name__} keeps them in fp32: make it with fp32_optimizer_states=False, or remove the key")


def tag_validation_of(text):
    """What the config says of tags that differ between ranks: "ignore", "warn" or "fail"."""
    section = _parsed(text).get("checkpoint")
    return str(section.get("tag_validation", "warn") if isinstance(section, dict) else "warn").lower()


def needs_all_gradients(text):
    """Whether the config says that a parameter without a gradient is an error."""
    section = _parsed(text).get("zero_optimization")
    value = section.get("ignore_unused_parameters", True) if isinstance(section, dict) else True
    return str(value).lower() in ("false", "0")


def _parsed(text):
    """The config as a dict; {} if it is none, which the engine's own check finds."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def refuse_lone_ranks(world_size):
    """Raises UserError where Accelerate takes each rank for the only one, as on CPUs if it is not told the backend: each rank
    would then train on all of the data. Nothing but Accelerate's own state shows this."""
    partial_state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    state = getattr(partial_state, "_shared_state", {})
    if world_size > 1 and state.get("num_processes") == 1 and state.get("distributed_type") == "DEEPSPEED":
        raise UserError(
            f"initialize(): Accelerate takes this rank for the only one, but there are {world_size}: all would train on the same "
            "data. On CPUs tell it the backend: Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend=\"gloo\")]), or for "
            "a Trainer PartialState(backend=\"gloo\") before TrainingArguments(accelerator_config={\"use_configured_state\": "
            "True}, ...)")


def refuse_models(model):
    if not isinstance(model, torch.nn.Module):
        raise FailedAssertion(f"initialize(): model is a {type(model).__name__}, expected a torch.nn.Module")
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    if isinstance(model, torch.nn.parallel.DistributedDataParallel) or "FullyShardedDataParallel" in kind:
        raise UserError(f"initialize(): the model is a {kind}: pass the module inside; the engine reduces gradients")
    if kind == "torch._dynamo.eval_frame.OptimizedModule":
        raise UserError("initialize(): the model is wrapped by torch.compile(): pass the module itself, and then call "
                        "engine.compile()")
    for name, module in model.named_modules():
        where = f"module {name}" if name else "the model"
        places = vars(module).get("hf_device_map")
        if isinstance(places, dict) and len(set(map(str, places.values()))) > 1:
            raise UserError(f"initialize(): {where} is spread over the devices {', '.join(sorted(set(map(str, places.values()))))} by its "
                            "device_map: load it without device_map; the engine moves the model to this rank's device, and stage 3 "
                            "partitions it")
        if isinstance(module, torch.jit.ScriptModule):
            raise UserError(f"initialize(): {where} is a {type(module).__name__} of torch.jit, which calls no hooks of modules and "
                            "reads parameters in its own way: pass the module from which it was made")
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            if torch.nn.parameter.is_lazy(tensor):
                raise UserError(f"initialize(): {kind} {name} has no shape yet, for its module is lazy: call the model once on a "
                                "batch, under torch.no_grad(), and then initialize()")
