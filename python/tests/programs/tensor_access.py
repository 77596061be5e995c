"""Whole values, gradients and states of a model that is split among tensor ranks: STAGE."""
import io
import sys

import torch
from tensor_models import seeded

import zerorun
from zerorun import utils

stage = int(sys.argv[1])
TOKENS = torch.arange(18).view(2, 9)

plain = seeded("qwen3")
model = seeded("qwen3")
config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0}},
          "gradient_clipping": 0, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 40}}
engine, *_ = zerorun.initialize(model=model, config=config, mesh={"data": 2, "tensor": 2})
names = dict(model.named_parameters())
CHECKED = ["model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_norm.weight", "model.layers.0.mlp.down_proj.weight",
           "model.norm.weight", "lm_head.weight"]
names["lm_head.weight"] = model.lm_head.weight


def expect(found, expected, what, within=1e-6):
    assert found.shape == expected.shape, (what, found.shape, expected.shape)
    assert (found - expected).abs().max() <= within, (what, (found - expected).abs().max())


def expect_refused(action, text):
    try:
        action()
    except zerorun.UserError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)


def backward():
    loss = engine(input_ids=TOKENS, labels=TOKENS).loss
    engine.backward(loss)
    return loss


# Gradients
loss = backward()
plain(input_ids=TOKENS, labels=TOKENS).loss.backward()
for name in CHECKED:
    expect(utils.safe_get_full_grad(names[name]), plain.get_parameter(name).grad, f"gradient of {name}")
for name in CHECKED:
    value = torch.full(plain.get_parameter(name).shape, 0.25)
    utils.safe_set_full_grad(names[name], value)
    expect(utils.safe_get_full_grad(names[name]), value, f"set gradient of {name}", 0)
engine.step()

# States: Adam's first step moves each element of a constant gradient by lr
for name in CHECKED:
    before = plain.get_parameter(name).detach()
    expect(utils.safe_get_full_fp32_param(names[name]), before - 0.01, name, 2e-6)
    expect(utils.safe_get_full_optimizer_state(names[name], "exp_avg"), torch.full(before.shape, 0.025), f"exp_avg of {name}")
    value = torch.randn(before.shape, generator=torch.Generator().manual_seed(3))
    utils.safe_set_full_optimizer_state(names[name], value, "exp_avg")
    expect(utils.safe_get_full_optimizer_state(names[name], "exp_avg"), value, f"set exp_avg of {name}", 0)
    utils.safe_set_full_fp32_param(names[name], value)
    expect(utils.safe_get_full_fp32_param(names[name]), value, f"set {name}", 0)

# Scopes: one rank of the job writes, in place or by other memory, and all ranks have it
for name in CHECKED:
    parameter = names[name]
    for rank in (0, 3):
        with zerorun.zero.GatheredParameters([parameter], modifier_rank=rank):
            shape = parameter.shape
            if engine.global_rank == rank:
                with torch.no_grad():
                    parameter.copy_(torch.arange(parameter.numel()).view(shape) + rank)
        with zerorun.zero.GatheredParameters([parameter]):
            expect(parameter.detach().clone(), torch.arange(parameter.numel()).view(shape).float() + rank, f"{name} of rank {rank}", 0)
    with zerorun.zero.GatheredParameters([parameter], modifier_rank=1):
        if engine.global_rank == 1:
            parameter.data = torch.full(shape, 5.0)
    with zerorun.zero.GatheredParameters([parameter]):
        expect(parameter.detach().clone(), torch.full(shape, 5.0), f"{name} by other memory", 0)
        with torch.no_grad():  # all ranks write the same
            parameter.mul_(0.5)
    expect(utils.safe_get_full_fp32_param(parameter), torch.full(shape, 2.5), f"{name}, written by all ranks", 0)
    with zerorun.zero.GatheredParameters([parameter]):  # a scope in a scope
        with zerorun.zero.GatheredParameters([parameter], modifier_rank=2):
            if engine.global_rank == 2:
                with torch.no_grad():
                    parameter.fill_(1.5)
        expect(parameter.detach().clone(), torch.full(shape, 1.5), f"{name} in a scope in a scope", 0)
    expect(utils.safe_get_full_fp32_param(parameter), torch.full(shape, 1.5), f"{name} after a scope in a scope", 0)

# All of the model: load_state_dict() in a scope, and back
with zerorun.zero.GatheredParameters(model.parameters(), modifier_rank=0):
    if engine.global_rank == 0:
        model.load_state_dict(plain.state_dict())
state = engine.consolidated_16bit_state_dict()
if state is not None:
    assert set(state) == set(plain.state_dict()) and state["lm_head.weight"] is state["model.embed_tokens.weight"]
    for name, values in plain.state_dict().items():
        expect(state[name], values, f"{name} in the state_dict", 0)
with zerorun.zero.GatheredParameters(model.parameters()):
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    expect(model(input_ids=TOKENS, labels=TOKENS).loss, plain(input_ids=TOKENS, labels=TOKENS).loss, "a forward in a scope")
for name, values in torch.load(io.BytesIO(saved.getvalue())).items():
    expect(values, plain.state_dict()[name], f"{name} in a file", 0)
expect(engine(input_ids=TOKENS, labels=TOKENS).loss, plain(input_ids=TOKENS, labels=TOKENS).loss, "a forward after it")

# Refusals
part = names[CHECKED[0]]
assert part.shape == (32, 32)
expect_refused(lambda: torch.save(model.state_dict(), io.BytesIO()), "has only its part in state_dict()")
expect_refused(lambda: zerorun.runtime.utils.clone_tensors_for_torch_save(model.state_dict()), "has only its part in state_dict()")
expect_refused(lambda: utils.safe_set_full_fp32_param(part, torch.zeros(32, 32)), "expected values of shape (64, 32), found (32, 32)")
expect_refused(lambda: engine.gather_around(torch.nn.Linear), "split among tensor ranks: leave the parameters whole")
engine.destroy()
print("PASS")
