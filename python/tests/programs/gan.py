"""Weights of plain torch: G's backward leaves gradients in D, which netD.zero_grad() (of the module) or engine.zero_grad()
drops before D's next step. Arguments: STAGE and who drops the gradients"""

import sys

import torch
import torch.distributed as dist
import zerorun as deepspeed

stage = int(sys.argv[1])
ZERO = sys.argv[2]  # "module", "engine", "optimizer", or "frozen": requires_grad off while G trains
deepspeed.init_distributed(dist_backend="gloo")
rank, world = dist.get_rank(), dist.get_world_size()
criterion = torch.nn.BCEWithLogitsLoss()


def nets():
    torch.manual_seed(0)
    g = torch.nn.Sequential(torch.nn.ConvTranspose2d(5, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.ConvTranspose2d(8, 1, 3), torch.nn.Tanh())
    d = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.LeakyReLU(0.2), torch.nn.Conv2d(8, 1, 3))
    return g, d


def data(step, of_rank):
    gen = torch.Generator().manual_seed(10 * step + of_rank)
    return torch.randn(6, 1, 5, 5, generator=gen).clamp(-1, 1), torch.randn(6, 5, 1, 1, generator=gen)


def out(net, x):
    return net(x).flatten()


def engine_of(model):
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), optimizer=torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.999), eps=1e-4),
                                config={"train_micro_batch_size_per_gpu": 6, "gradient_clipping": 0.0, "zero_optimization": {"stage": stage}, "steps_per_print": 1000})


(netG, netD), plains = nets(), [nets() for _ in range(world)]  # a replica for each rank, because of the batch norm
(engineD, optimizerD, _, _), (engineG, optimizerG, _, _) = engine_of(netD), engine_of(netG)
plain_optimizers = [[torch.optim.Adam(m.parameters(), lr=2e-3, betas=(0.5, 0.999), eps=1e-4) for m in pair] for pair in plains]


def drop_d():
    {"module": netD.zero_grad, "engine": engineD.zero_grad, "optimizer": optimizerD.zero_grad, "frozen": lambda: None}[ZERO]()


def average(models):
    for same in zip(*(m.parameters() for m in models)):
        mean = sum(p.grad for p in same) / world
        for p in same:
            p.grad = mean.clone()


for step in range(6):
    real, noise = data(step, rank)
    ones, zeros = torch.ones(6), torch.zeros(6)
    drop_d()
    engineD.backward(criterion(out(engineD, real), ones))
    fake = engineG(noise)
    engineD.backward(criterion(out(engineD, fake.detach()), zeros))
    engineD.step()
    netG.zero_grad()
    if ZERO == "frozen":
        netD.requires_grad_(False)
    loss_g = criterion(out(engineD, fake), ones)
    engineG.backward(loss_g)
    engineG.step()
    if ZERO == "frozen":
        netD.requires_grad_(True)

    fakes = []
    for r, (g, d) in enumerate(plains):
        real, noise = data(step, r)
        d.zero_grad()
        criterion(out(d, real), ones).backward()
        fakes.append(g(noise))
        criterion(out(d, fakes[r].detach()), zeros).backward()
    average([d for _, d in plains])
    for r in range(world):
        plain_optimizers[r][1].step()
    for r, (g, d) in enumerate(plains):
        g.zero_grad()
        loss = criterion(out(d, fakes[r]), ones)
        loss.backward()
        if r == rank:
            torch.testing.assert_close(loss_g.detach(), loss.detach(), rtol=1e-4, atol=1e-5, msg=lambda t: f"G's loss in step {step}: {t}")
    average([g for g, _ in plains])
    for r in range(world):
        plain_optimizers[r][0].step()
for which, engine, plain in (("G", engineG, plains[rank][0]), ("D", engineD, plains[rank][1])):
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        for (name, a), b in zip(engine.module.named_parameters(), plain.parameters()):
            torch.testing.assert_close(a.detach().clone(), b.detach(), rtol=1e-3, atol=1e-4, msg=lambda t: f"{which} {name}: {t}")
print("PASS", flush=True)
