"""zerorun.utils, as deepspeed.utils: whole states of a parameter, leaf modules, a logger."""

import functools
import logging

import torch

from . import _core, _registry
from ._core import UserError, survive_termination  # noqa: F401
from .data import RepeatingLoader  # noqa: F401
from .errors import BadArgument, not_supported
from .raw_access import MARK, find
from .weights import whole_copy
from .zero import GatheredParameters

logger = logging.getLogger("zerorun")


def log_dist(message, ranks=None, level=logging.INFO):
    """Logs on these ranks, or on all ranks if `ranks` is None or contains -1."""
    from .comm import get_rank

    if ranks is None or -1 in ranks or get_rank() in ranks:
        logger.log(level, "[Rank %d] %s", get_rank(), message)


def log_dist_once(message, ranks=None, level=logging.INFO):
    """The same, once for each message."""
    _log_once(message, None if ranks is None else tuple(ranks), level)


_log_once = functools.lru_cache(None)(log_dist)


log_levels = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error", "critical")}


def get_log_level_from_string(log_level_str):
    if log_level_str.lower() not in log_levels:
        raise BadArgument(f"{log_level_str!r} is no log level: expected one of {', '.join(log_levels)}")
    return log_levels[log_level_str.lower()]


def set_log_level_from_string(log_level_str, custom_logger=None):
    """Sets the level of zerorun's logger, or of another, by its name."""
    (custom_logger or logger).setLevel(get_log_level_from_string(log_level_str))


def should_log_le(max_log_level_str):
    """Whether the logger's level is this one or more talkative."""
    return logger.getEffectiveLevel() <= get_log_level_from_string(max_log_level_str)


def warning_once(message):
    """Logs a warning, once for each message."""
    log_dist_once(message, level=logging.WARNING)


def _engine_of(param):
    engine = _registry.engine_of([param])
    if engine is None:
        raise UserError("expected a parameter of an engine's model, as it is after initialize()")
    return engine


def safe_get_full_fp32_param(param):
    """A copy of the whole fp32 weights, on all ranks. A collective, between step() and the next backward()."""
    engine = _engine_of(param)
    if "master" in _core.state_names(engine._core, param):
        return _core.read_state(engine._core, param, "master")
    return whole_copy(engine, param).float()


def safe_set_full_fp32_param(param, value):
    """Sets the fp32 master weights and the parameter that the model uses. All ranks must pass the same values."""
    engine = _engine_of(param)
    value = _shaped(engine, param, value)
    with torch.no_grad(), GatheredParameters([param], enabled=id(param) in engine._whole_shapes):
        param.copy_(value)
    if "master" in _core.state_names(engine._core, param):
        _core.write_state(engine._core, param, "master", value)


def safe_get_full_optimizer_state(param, optim_state_key):
    """A copy of the whole state ("exp_avg", "exp_avg_sq", ...), on all ranks; None before the first optimizer step that
    makes it. A collective, between step() and the next backward()."""
    engine = _engine_of(param)
    if optim_state_key not in _core.state_names(engine._core, param):
        return None
    return _core.read_state(engine._core, param, optim_state_key)


def safe_set_full_optimizer_state(param, value, optim_state_key):
    """Sets the whole state. All ranks must pass the same values."""
    engine = _engine_of(param)
    _core.write_state(engine._core, param, optim_state_key, _shaped(engine, param, value))


def _shaped(engine, param, value):
    expected = engine._whole_shapes.get(id(param), tuple(param.shape))
    if tuple(value.shape) != expected:
        raise UserError(f"expected values of shape {expected}, found {tuple(value.shape)}")
    return value.to(param.device)


def safe_get_full_grad(param):
    """Returns a copy in fp32 of the gradient, averaged over ranks and micro-steps, before clipping and without the loss
    scale: zeros if no backward reached the parameter, None if it is frozen. A collective, between the last backward()
    before an optimizer step and that step(); else raises UserError."""
    engine = _engine_of(param)
    return _core.read_gradient(engine._core, param) if param.requires_grad else None


def safe_set_full_grad(param, value):
    """Replaces the gradient that safe_get_full_grad() returns, where that may be called. All ranks must pass the same
    values."""
    engine = _engine_of(param)
    _core.write_gradient(engine._core, param, _shaped(engine, param, value))


def safe_get_local_grad(param):
    raise not_supported("safe_get_local_grad()", "take safe_get_full_grad(), which has the whole gradient on all ranks")


def set_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found=True):
    """Gathers all parameters of modules of these classes (or names of classes, also with their module) around forward and
    backward. May be called before or after initialize(). Returns the modules."""
    return _mark(_of_classes(model, leaf_module_classes, raise_if_not_found), True)


def unset_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found=True):
    """Undoes set_z3_leaf_modules(), before initialize(). Returns the modules."""
    return _mark(_of_classes(model, leaf_module_classes, raise_if_not_found), False)


def set_z3_leaf_modules_by_name(model, module_names, flag=True, raise_if_not_found=True):
    """The same for modules by their names in named_modules(). Returns the modules, and the names that the model lacks."""
    return _mark_where(model, module_names, str.__eq__, flag, raise_if_not_found)


def set_z3_leaf_modules_by_suffix(model, module_name_suffixes, flag=True, raise_if_not_found=True):
    """The same for modules by the ends of their names in named_modules()."""
    return _mark_where(model, module_name_suffixes, str.endswith, flag, raise_if_not_found)


def set_z3_leaf_module(model, flag):
    """The same for one module."""
    engine = _registry.engine_of(list(model.parameters())[:1])
    if engine is not None and not flag:
        raise UserError("unset_z3_leaf_modules() after initialize(): call it before")
    setattr(model, MARK, flag)
    if engine is not None:
        engine.gather_around(model)


def get_z3_leaf_modules(model):
    return [module for module in model.modules() if z3_leaf_module(module)]


def z3_leaf_module(model):
    return bool(getattr(model, MARK, False))


# As in DeepSpeed: blocks in which each rank uses the experts that its tokens choose.
SPARSE_BLOCKS = [f"transformers.models.{module}.modeling_{module}.{name}SparseMoeBlock"
                 for module, name in (("mixtral", "Mixtral"), ("qwen2_moe", "Qwen2Moe"), ("qwen3_moe", "Qwen3Moe"))]


def mark_leaf_modules(model, config, shares_memory):
    """Marks the modules that the config's zero_optimization.leaf_module names, before initialize() looks at them. Without classes
    it marks SPARSE_BLOCKS, unless ranks share memory: then a rank gathers what it uses without the others."""
    classes = config["leaf_classes"] or ([] if shares_memory else SPARSE_BLOCKS)
    marked = [module for target in classes for module in find(model, target)]
    lacking = [target for target in config["leaf_classes"] if not find(model, target)]
    for texts, matches in ((config["leaf_names"], str.__eq__), (config["leaf_suffixes"], str.endswith)):
        found, missing = _where(model, texts, matches)
        marked, lacking = marked + found, lacking + missing
    for module in marked:
        setattr(module, MARK, True)
    if lacking:
        logger.warning("zero_optimization.leaf_module: the model has no module %s: correct the name, or remove it",
                       " and none ".join(map(repr, lacking)))


def _of_classes(model, classes, raise_if_not_found):
    found = [module for target in classes for module in find(model, target)]
    if not found and raise_if_not_found:
        raise BadArgument(f"set_z3_leaf_modules(): the model has no module of {list(classes)}")
    return found


def _where(model, texts, matches):
    """The modules whose names match one of the texts, and the texts that match none."""
    found = {text: [module for name, module in model.named_modules() if matches(name, text)] for text in texts}
    modules = {id(module): module for several in found.values() for module in several}
    return list(modules.values()), [text for text, several in found.items() if not several]


def _mark_where(model, texts, matches, flag, raise_if_not_found):
    found, missing = _where(model, texts, matches)
    if missing and raise_if_not_found:
        raise BadArgument(f"set_z3_leaf_modules_by_name() or _by_suffix(): the model has no modules of the names {missing}")
    return _mark(found, flag), missing


def _mark(modules, flag):
    for module in modules:
        set_z3_leaf_module(module, flag)
    return modules
