from . import adagrad, adam, lamb, lion  # noqa: F401
