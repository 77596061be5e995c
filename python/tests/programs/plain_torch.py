"""The training of plain_loop.py with plain torch in one process, which averages the gradients of both ranks itself."""

import torch


def train(ranks=2):
    torch.manual_seed(7)
    inputs, labels = torch.randn(64, 12), torch.randn(64, 3)
    model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.LayerNorm(24), torch.nn.Linear(24, 3))
    torch.manual_seed(3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    losses = [[] for _ in range(ranks)]
    for _ in range(2):
        for micro in range(64 // (4 * ranks)):
            for rank in range(ranks):
                rows = torch.arange(rank, 64, ranks)[4 * micro:4 * micro + 4]
                loss = torch.nn.functional.mse_loss(model(inputs[rows]), labels[rows])
                (loss / (2 * ranks)).backward()
                losses[rank].append(loss.item())
            if micro % 2:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
        with torch.no_grad():
            evaluated = model(inputs).pow(2).mean().item()
        for rank in range(ranks):
            losses[rank].append(evaluated)
    return losses, scheduler.get_last_lr()
