"""How the engine ends if an exception ends the program, or nothing does. exception.py FOLDER raise|return"""

import sys

from small import make, step


class Watched:
    """An engine's core that tells how it ends."""

    def __init__(self, core):
        self.core = core

    def __getattr__(self, name):
        return getattr(self.core, name)

    def wait_for_checkpoint(self):
        self.core.wait_for_checkpoint()
        print("waited for the checkpoint", flush=True)

    def destroy(self):
        self.core.destroy()
        print("destroyed", flush=True)

    def destroy_after_exception(self):
        self.core.destroy_after_exception()
        print("destroyed after an exception", flush=True)


engine = make(3)
step(engine)
engine.save_checkpoint(sys.argv[1], asynchronous=True)
engine._core = Watched(engine._core)
if sys.argv[2] == "raise":
    raise RuntimeError("a step is wrong")
