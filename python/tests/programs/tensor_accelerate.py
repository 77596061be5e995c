"""A loop on Accelerate with tensor_parallel.autotp_size in the ds_config, beside a plain loop: STAGE"""
import sys

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import DeepSpeedPlugin, DummyOptim
from tensor_models import seeded

STEPS, BATCH, RATE = 4, 2, 0.1
ROWS = torch.randint(61, (2 * STEPS * BATCH, 9), generator=torch.Generator().manual_seed(1))

config = {"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "gradient_accumulation_steps": 1,
          "gradient_clipping": 0.5, "optimizer": {"type": "SGD", "params": {"lr": RATE}}, "tensor_parallel": {"autotp_size": 2},
          "zero_optimization": {"stage": int(sys.argv[1]), "stage3_gather_16bit_weights_on_model_save": True}}
accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config),
                          kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
model = seeded("llama")
loader = torch.utils.data.DataLoader(ROWS, batch_size=BATCH)
engine, optimizer, loader = accelerator.prepare(model, DummyOptim(model.parameters(), lr=RATE), loader)
data, place = engine.mesh["data"], engine.coordinates["data"]
assert engine.mesh["tensor"] == 2

plain = seeded("llama")
update = torch.optim.SGD(plain.parameters(), lr=RATE)
batches = iter(ROWS.split(BATCH))
for tokens in loader:
    loss = engine(input_ids=tokens, labels=tokens).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    of_ranks = [plain(input_ids=each, labels=each).loss for each in (next(batches) for _ in range(data))]
    update.zero_grad()
    (sum(of_ranks) / data).backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    update.step()
    assert abs(loss.item() - of_ranks[place].item()) < 1e-6 * loss.item(), (loss, of_ranks)
assert next(batches, None) is None
whole = accelerator.get_state_dict(engine)
if accelerator.is_main_process:
    for name, parameter in plain.named_parameters():
        off = (whole[name] - parameter).abs().max().item()
        assert off <= 2e-6, (name, off)
print("PASS")
