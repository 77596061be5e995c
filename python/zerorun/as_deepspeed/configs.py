"""What programs ask DeepSpeed's config classes for."""

GRADIENT_CLIPPING_DEFAULT = 1.0

# DeepSpeed marks modules of such classes by itself. Here modules need no mark.
DEFAULT_LEAF_MODULE_CLASSES, DEFAULT_LEAF_MODULE_NAMES, DEFAULT_LEAF_MODULE_NAME_SUFFIXES = [], [], []


def get_gradient_clipping(param_dict):
    """What a config says of gradient_clipping."""
    return param_dict.get("gradient_clipping", GRADIENT_CLIPPING_DEFAULT)
