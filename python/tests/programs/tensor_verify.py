"""engine.verify_plan() on two tensor ranks: plans that are right, a plan of a module that normalises over what is split, and one that
pairs the wrong heads."""
import torch
from tensor_models import seeded

import zerorun

TOKENS = torch.arange(18).view(2, 9)


def initialize(model, stage=0, **more):
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
              "gradient_clipping": 0.5, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 40}}
    return zerorun.initialize(model=model, config=config, mesh={"tensor": 2}, **more)[0]


def expect_refused(action, *texts):
    try:
        action()
    except zerorun.UserError as error:
        for text in texts:
            assert text in str(error), error
    else:
        raise AssertionError(texts)


def loss_of(model):
    return model(input_ids=TOKENS, labels=TOKENS).loss


# Right: verified before the first step and between steps, after which training goes on as in plain torch.
for stage in (0, 3):
    engine, plain, whole = initialize(seeded("qwen3"), stage), seeded("qwen3"), seeded("qwen3")
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.zero_()  # it gets the engine's values
    update = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        with torch.no_grad():
            engine.verify_plan(whole, loss_of)
        off = (whole.lm_head.weight - plain.lm_head.weight).abs().max().item()
        assert off <= 2e-6, off
        assert whole.lm_head.weight.grad is None
        loss, expected = loss_of(engine), loss_of(plain)
        assert abs(loss.item() - expected.item()) < 1e-6 * expected.item(), (loss, expected)
        engine.backward(loss)
        engine.step()
        update.zero_grad()
        expected.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        update.step()
    expect_refused(lambda: engine.verify_plan(engine.module, loss_of), "belongs to an engine: make a second model")
    expect_refused(lambda: engine.verify_plan(whole, lambda model: model(input_ids=TOKENS).logits), "must return the loss")
    expect_refused(lambda: engine.verify_plan("model", loss_of), "expected a second instance of the model, found a str")
    expect_refused(lambda: engine.verify_plan(seeded("qwen3", intermediate_size=40), loss_of), "of the whole model is [40, 32]")
    engine.destroy()


class Normalised(torch.nn.Module):
    """Divides the hidden values, which are split, by their length: that of a part is another."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 8, bias=False), torch.nn.Linear(8, 6, bias=False)

    def forward(self, x):
        return self.down(torch.nn.functional.normalize(self.up(x), dim=-1))


def normalised():
    torch.manual_seed(3)
    return Normalised()


def square_of(model):
    return model(torch.arange(12.0).view(2, 6)).square().mean()


wrong = initialize(normalised(), tensor_plan={"up": "colwise", "down": "rowwise"})
expect_refused(lambda: wrong.verify_plan(normalised(), square_of), "verify_plan(): split among 2 tensor ranks, the model computes something "
               "else than whole", "the loss (by ", "the gradient of down.weight (by ", "Look for a module of the plan that sums, normalises")
wrong.destroy()
right = initialize(normalised(), tensor_plan={"up": "colwise_gather_output"})
right.verify_plan(normalised(), square_of)
right.destroy()

# Two groups of three heads, cut between single heads: the second rank's keys are those of other queries.
engine, whole = initialize(seeded("llama", hidden_size=48, num_attention_heads=6, num_key_value_heads=2, head_dim=8), tensor_plan={
    "model.layers.*.self_attn.q_proj": {"style": "colwise", "unit": 8, "blocks": 3},
    "model.layers.*.self_attn.k_proj": "colwise", "model.layers.*.self_attn.v_proj": "colwise",
    "model.layers.*.self_attn.o_proj": {"style": "rowwise", "unit": 8, "blocks": 3}}), seeded(
        "llama", hidden_size=48, num_attention_heads=6, num_key_value_heads=2, head_dim=8)
expect_refused(lambda: engine.verify_plan(whole, loss_of), "the model computes something else than whole")
engine.destroy()
print("PASS")
