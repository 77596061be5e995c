"""A model of transformers on a mesh of data 2 x tensor 2, beside plain torch in one process: MODEL STAGE [ATTENTION]."""
import sys

import torch
from tensor_models import follow_parts, gpt2_plan, seeded

import zerorun

STEPS, CLIPPING = 5, 0.5
name, stage = sys.argv[1], int(sys.argv[2])
attention = sys.argv[3] if len(sys.argv) > 3 else "sdpa"


def tokens(step, data):
    return torch.randint(61, (2, 9), generator=torch.Generator().manual_seed(10 * step + data))


def plain():
    model = seeded(name, attn_implementation=attention)
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        both = [model(input_ids=tokens(step, data), labels=tokens(step, data)).loss / 2 for data in range(2)]
        sum(both).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIPPING)
        optimizer.step()
        losses.append(sum(both).item())
    return model, losses


def close(found, expected, within, what):
    off = (found - expected).abs().max().item()
    assert off <= within, f"{what} differs by {off}"


expected, expected_losses = plain()
with zerorun.zero.Init(enabled=stage == 3):
    model = seeded(name, attn_implementation=attention)
config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
          "gradient_clipping": CLIPPING,
          "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 40}}
given = {"tensor_plan": gpt2_plan()} if name == "gpt2" else {}
engine, *_ = zerorun.initialize(model=model, config=config, mesh={"data": 2, "tensor": 2}, **given)
if name == "gpt2":
    follow_parts(model)
whole = sum(parameter.numel() for parameter in expected.parameters())
assert sum(parameter.numel() for parameter in model.parameters()) < 0.7 * whole
data = engine.coordinates["data"]
for step in range(STEPS):
    loss = engine(input_ids=tokens(step, data), labels=tokens(step, data)).loss
    engine.backward(loss)
    engine.step()
    both = loss.detach().clone() / 2
    torch.distributed.all_reduce(both)  # over both tensor ranks too
    assert abs(both.item() / 2 - expected_losses[step]) <= 1e-6 * expected_losses[step], (step, both.item() / 2, expected_losses)
state = engine.consolidated_16bit_state_dict()
assert (state is None) == (engine.global_rank != 0)
for parameter_name, parameter in model.named_parameters():
    values = expected.get_parameter(parameter_name).detach()
    with zerorun.zero.GatheredParameters([parameter]):
        close(parameter.detach().clone(), values, 2e-6, parameter_name)
    close(zerorun.utils.safe_get_full_fp32_param(parameter), values, 2e-6, f"safe_get_full_fp32_param({parameter_name})")
    if state is not None:
        close(state[parameter_name], values, 2e-6, f"{parameter_name} in the state_dict")
engine.destroy()
print("PASS")
