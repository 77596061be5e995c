"""What two tensor ranks say of plans that do not fit, and of modules that count on whole parameters."""
import torch
from tensor_models import gpt2_plan, llama, seeded

import zerorun

CONFIG = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
TOKENS = torch.arange(18).view(2, 9)


def initialize(model, **more):
    return zerorun.initialize(model=model, config=CONFIG, mesh={"tensor": 2}, **more)[0]


def expect(kind, action, *texts):
    try:
        action()
    except kind as error:
        for text in texts:
            assert text in str(error), error
    else:
        raise AssertionError(texts)


expect(zerorun.UserError, lambda: initialize(seeded("gpt2")), "GPT2LMHeadModel has no plan of its own (tp_plan)",
       "pass initialize(tensor_plan=")
expect(zerorun.UserError, lambda: initialize(llama(num_key_value_heads=1)), "q_proj.weight", "has 1 unit(s) of 64", "2 tensor ranks")
small = torch.nn.Sequential(torch.nn.Linear(6, 6))
expect(zerorun.UserError, lambda: initialize(small, tensor_plan={"1": "colwise"}), "the tensor plan's entry 1 names no module")
expect(zerorun.UserError, lambda: initialize(small, tensor_plan={"0": {"style": "colwise", "unit": 4}}),
       "parameter 0.weight", "units of 4")

# Each tensor rank would go on with other samples, or another dropout.
rank = torch.distributed.get_rank()
engine = initialize(llama())
expect(zerorun.UserError, lambda: engine(input_ids=TOKENS + rank), "must compute with the same samples")
assert engine(input_ids=TOKENS).logits.shape == (2, 9, 61)
engine.destroy()
engine = initialize(seeded("gpt_neox", hidden_dropout=0.1))
torch.manual_seed(rank)
expect(zerorun.UserError, lambda: engine(input_ids=TOKENS), "must draw the same random numbers for dropout")
torch.manual_seed(1)
assert engine(input_ids=TOKENS).logits.shape == (2, 9, 61)
engine.destroy()

# GPT-2's modules write sizes of whole results.
attention = gpt2_plan()
engine = initialize(seeded("gpt2"), tensor_plan=attention)
expect((RuntimeError, ValueError), lambda: engine(input_ids=TOKENS), "Module transformer.h.0.attn.c_attn (Conv1D) has parts of its "
       "parameters", "weight is [32, 48] of [32, 96]", "take those of its parts")
engine.destroy()

# Where results are gathered, it need not know.
plan = {name: {**word, "style": "colwise_gather_output"} if name.endswith(("c_attn", "c_fc")) else word
        for name, word in attention.items() if not name.endswith("c_proj")}
model, plain = seeded("gpt2"), seeded("gpt2")
engine = initialize(model, tensor_plan=plan)
assert model.transformer.h[0].mlp.c_fc.weight.shape == (32, 64)
loss, expected = (each(input_ids=TOKENS, labels=TOKENS).loss for each in (engine, plain))
assert abs(loss.item() - expected.item()) < 1e-6 * expected.item()
engine.backward(loss)
expected.backward()
for name, parameter in model.named_parameters():
    off = (zerorun.utils.safe_get_full_grad(parameter) - plain.get_parameter(name).grad).abs().max()
    assert off < 1e-6, (name, off)
engine.destroy()
print("PASS")
