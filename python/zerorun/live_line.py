"""A line on rank 0 that shows how training goes."""

import sys

from . import _core
from .errors import UserError


class LiveLine:
    """Made by engine.live_line(). On a terminal one line that stays, elsewhere a line every `steps_per_print` steps of the config.
    Works as a context, which calls end()."""

    def __init__(self, engine, steps, tokens_per_step):
        self._engine = engine
        self._line = _core.LiveLine(engine._core, steps, tokens_per_step)

    def show(self, loss, lr=None, grad_norm=None):
        """Shows the optimizer step that ended last, if it is time to. `loss`: a number, or a tensor of one element, which is waited
        for."""
        if self._line is None:
            raise UserError("LiveLine.show() after end(), or after the engine was destroyed")
        sys.stdout.flush()  # the line is written by the core, behind what the program has printed
        self._line.show(self._engine.global_steps, float(loss), lr, grad_norm)

    def end(self):
        """Ends a line that stays, so that other output begins on a new one."""
        if self._line is not None:
            self._line.end()
        self._engine = self._line = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.end()
