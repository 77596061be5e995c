"""What programs ask DeepSpeed's config classes for."""

from ..utils import SPARSE_BLOCKS

GRADIENT_CLIPPING_DEFAULT = 1.0

# What keys of a config, types of optimizers and routes of data are called.
TRAIN_BATCH_SIZE, TRAIN_MICRO_BATCH_SIZE_PER_GPU = "train_batch_size", "train_micro_batch_size_per_gpu"
GRADIENT_ACCUMULATION_STEPS, GRADIENT_CLIPPING = "gradient_accumulation_steps", "gradient_clipping"
OPTIMIZER, OPTIMIZER_PARAMS, SCHEDULER, SCHEDULER_PARAMS, TYPE = "optimizer", "params", "scheduler", "params", "type"
FP16, BFLOAT16, STEPS_PER_PRINT = "fp16", "bf16", "steps_per_print"
PRESCALE_GRADIENTS, GRADIENT_PREDIVIDE_FACTOR = "prescale_gradients", "gradient_predivide_factor"
ZERO_ALLOW_UNTESTED_OPTIMIZER = "zero_allow_untested_optimizer"
ADAGRAD_OPTIMIZER, ADAM_OPTIMIZER, ADAMW_OPTIMIZER, LAMB_OPTIMIZER = "adagrad", "adam", "adamw", "lamb"
LION_OPTIMIZER, MUON_OPTIMIZER = "lion", "muon"
ROUTE_TRAIN, ROUTE_EVAL, ROUTE_PREDICT = "train", "eval", "predict"

DEFAULT_LEAF_MODULE_CLASSES, DEFAULT_LEAF_MODULE_NAMES, DEFAULT_LEAF_MODULE_NAME_SUFFIXES = list(SPARSE_BLOCKS), [], []


def get_gradient_clipping(param_dict):
    """What a config says of gradient_clipping."""
    return param_dict.get("gradient_clipping", GRADIENT_CLIPPING_DEFAULT)
