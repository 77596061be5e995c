"""Cells of a notebook, run one after another in one process as Jupyter runs them: a cell that raises leaves the engine as it
was, and a cell that makes the model and the engine may run again."""

CELLS = {
    "make": """
import torch
import zerorun
from small import config, net
model = net()
engine, optimizer, _, _ = zerorun.initialize(model=model, config=config(3))
def step(rows):
    loss = engine(rows).pow(2).mean()
    engine.backward(loss)
    engine.step()
    return loss.item()
""",
    "train": "losses = [step(torch.ones(2, 6)) for _ in range(3)]",
    "wrong shape": "step(torch.ones(2, 5))",
    "in backward": """
handle = model[0].weight.register_hook(lambda gradient: 1 / 0)
step(torch.ones(2, 6))
""",
    "repair": "handle.remove(); engine.zero_grad()",
    "display": "print(model[0].weight.clone())",
}


class Notebook:
    def __init__(self):
        self.names = {}
        self.last_error = None  # notebooks keep the traceback, and with it the frames of the engine

    def run(self, *names):
        for name in names:
            try:
                exec(compile(CELLS[name], f"<{name}>", "exec"), self.names)
                raised = None
            except Exception as error:
                self.last_error, raised = error, type(error)
            assert raised is {"wrong shape": RuntimeError, "in backward": ZeroDivisionError}.get(name), (name, self.last_error)
        return self.names["losses"]


first = Notebook().run("make", "train", "train")
notebook = Notebook()
assert notebook.run("make", "train", "wrong shape", "display", "in backward", "repair", "train") == first
notebook.run("train")
assert notebook.run("make", "train", "train") == first  # the engine of before is garbage
