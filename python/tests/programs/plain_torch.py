"""What plain_loop.py and lora_loop.py train, without any engine, in one process: the average of all ranks' gradients by
hand. In bf16 the weights of forward are the rounded fp32 weights that the optimizer updates."""

import torch


def train(precision="fp32", ranks=2, idle_step=False):
    """Returns the losses of each rank, and the last learning rates. `idle_step`: begins with an optimizer step whose
    gradients are 0, as DeepSpeed's stage 0 does in 16 bits."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    torch.manual_seed(7)
    inputs, labels = torch.randn(256, 12), torch.randn(256, 3)
    model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.LayerNorm(24), torch.nn.Linear(24, 3))
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape))
    model.to(dtype)
    masters = [parameter.detach().float().clone().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-2, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    if idle_step:
        for master in masters:
            master.grad = torch.zeros_like(master)
        _update(masters, optimizer)
    losses = [[] for _ in range(ranks)]
    for _ in range(2):
        for micro in range(256 // (16 * ranks)):
            for rank in range(ranks):
                rows = torch.arange(rank, 256, ranks)[16 * micro:16 * micro + 16]
                loss = torch.nn.functional.mse_loss(model(inputs[rows].to(dtype)).float(), labels[rows])
                _add_gradients(loss / (2 * ranks), model.parameters(), masters)
                losses[rank].append(loss.item())
            if micro % 2:
                _update(masters, optimizer)
                scheduler.step()
                with torch.no_grad():
                    for parameter, master in zip(model.parameters(), masters):
                        parameter.copy_(master)
        with torch.no_grad():
            evaluated = torch.nn.functional.mse_loss(model(inputs.to(dtype)).float(), labels).item()
        for rank in range(ranks):
            losses[rank].append(evaluated)
    return losses, scheduler.get_last_lr()


def train_lora(reentrant, ranks=2):
    """Returns the losses of each rank."""
    from lora_model import batch, make_model

    model, losses = make_model(reentrant), [[] for _ in range(ranks)]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.0)
    for step in range(6):
        for rank in range(ranks):
            tokens = batch(step * ranks + rank)
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            (loss / ranks).backward()
            losses[rank].append(loss.item())
        _update(trained, optimizer)
    return losses


def _add_gradients(loss, parameters, masters):
    parameters = list(parameters)
    for master, gradient in zip(masters, torch.autograd.grad(loss, parameters)):
        master.grad = gradient.float() if master.grad is None else master.grad + gradient.float()


def _update(parameters, optimizer):
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()
