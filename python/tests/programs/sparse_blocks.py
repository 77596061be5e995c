"""A mixture of experts at stage 3 whose ranks use different experts, beside plain torch."""

import torch
import transformers
import zerorun

zerorun.init_distributed()
rank = zerorun.comm.get_rank()


def make():
    torch.manual_seed(2)
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        num_local_experts=8, num_experts_per_tok=1, attn_implementation="eager"))


model, plain = make(), make()
optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
engine = zerorun.initialize(model=model, config={
    "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})[0]
assert len(zerorun.utils.get_z3_leaf_modules(model)) == (0 if engine.communication_shares_memory else 1)
for step in range(3):
    tokens = [torch.full((1, 3), 5 * step + of) for of in range(2)]  # equal tokens have one expert
    loss = engine(input_ids=tokens[rank], labels=tokens[rank]).loss
    every = [plain(input_ids=each, labels=each).loss for each in tokens]
    torch.testing.assert_close(loss.detach(), every[rank].detach(), rtol=1e-5, atol=1e-6)
    engine.backward(loss)
    engine.step()
    (sum(every) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
print("done", flush=True)
