"""Losses that hold less than their operators would."""

from . import _core
from .errors import UserError


def linear_cross_entropy(x, weight, labels, bias=None, *, ignore_index=-100, reduction="mean", tokens=0):
    """cross_entropy(linear(x, weight, bias), labels) for some tokens at a time: those whose logits take 64 MiB, or `tokens`. x:
    (..., hidden), weight: (vocab, hidden), labels: (...) int64. `reduction`: "mean" or "sum". Throws UserError."""
    if reduction not in ("mean", "sum"):
        raise UserError(f"linear_cross_entropy(): reduction {reduction!r}, expected \"mean\" or \"sum\"")
    return _core.linear_cross_entropy(x, weight, labels, bias, ignore_index, reduction == "sum", tokens)
