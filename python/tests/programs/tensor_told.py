"""deepspeed.tp_model_init() before initialize(), in a program for DeepSpeed."""
import deepspeed
import torch
from tensor_models import seeded

CONFIG = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
model = seeded("llama")
assert deepspeed.tp_model_init(model, tp_size=2, dtype=torch.float32, config=CONFIG) is model
deepspeed.set_autotp_mode(training=True)
try:
    deepspeed.initialize(model=model, config=CONFIG, mesh={"tensor": 1})
except deepspeed.DeepSpeedConfigError as error:
    assert "tp_model_init() was told 2 tensor ranks, and mesh says 1" in str(error), error
else:
    raise AssertionError("other sizes")
engine, *_ = deepspeed.initialize(model=model, config=CONFIG)
assert engine.mesh == {"data": 1, "tensor": 2, "pipeline": 1}
assert model.model.layers[0].self_attn.k_proj.weight.shape == (16, 32)
tokens = torch.arange(18).view(2, 9)
found, expected = (each(input_ids=tokens, labels=tokens).loss.item() for each in (engine, seeded("llama")))
assert abs(found - expected) < 1e-6 * expected
engine.destroy()
print("PASS")
