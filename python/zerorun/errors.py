"""Errors that only the Python part raises."""

from ._core import UserError


class BadArgument(UserError, ValueError):
    """An argument of a function that cannot be, where DeepSpeed raises ValueError."""


class FailedAssertion(UserError, AssertionError):
    """A wrong argument, where DeepSpeed raises AssertionError."""


class NotSupportedError(UserError, NotImplementedError):
    """A function of DeepSpeed that ZeroRun does not have. The message names the remedy."""


_REMEDIES = {
    "init_inference": "serve the model with another package: save it with engine.save_16bit_model()",
    "DeepSpeedTransformerLayer": "use torch's layers",
    "default_inference_config": "serve the model with another package",
}


def not_supported(name, remedy):
    return NotSupportedError(f"{name} is not supported by zerorun: {remedy}")


def not_supported_attribute(name):
    if name in _REMEDIES:
        return not_supported(f"zerorun.{name}", _REMEDIES[name])
    return AttributeError(f"module 'zerorun' has no attribute '{name}': docs/python.md lists what it has")
