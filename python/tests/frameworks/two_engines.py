"""Two engines in one program, by hand: a GAN whose generator learns through the discriminator, and the distillation of a teacher that only
computes. two_engines.py STAGE gan|distillation OUT; STAGE "plain": by DDP"""

import sys

import torch
from report import write
from torch.nn.parallel import DistributedDataParallel

stage, kind, out = sys.argv[1:]
BATCH, STEPS = 6, 6


def layers(*kinds):
    generator = torch.Generator().manual_seed(4)
    model = torch.nn.Sequential(*kinds)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def prepare(model, trains=True):
    """Returns the engine and its optimizer; for plain torch DDP and Adam."""
    if stage == "plain":
        if not trains:
            return model, None
        return DistributedDataParallel(model, broadcast_buffers=False), torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.5, 0.999))
    used = int(stage) if trains or stage == "3" else 0
    config = {"train_micro_batch_size_per_gpu": BATCH, "gradient_clipping": 0.0,
              "zero_optimization": {"stage": used, "stage3_param_persistence_threshold": 0}}
    if not trains:
        return deepspeed.initialize(model=model, config=config)[0], None
    config["optimizer"] = {"type": "Adam", "params": {"lr": 5e-3, "betas": [0.5, 0.999], "adam_w_mode": False}}
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return engine, optimizer


def backward(engine, loss):
    if stage == "plain":
        loss.backward()
    else:
        engine.backward(loss)


def step(engine, optimizer):
    if stage == "plain":
        optimizer.step()
    else:
        engine.step()


def zero_grad(engine):
    """Drops the gradients, also what another model's loss has left."""
    engine.zero_grad()


def draw(number, *shape):
    return torch.randn(BATCH, *shape, generator=torch.Generator().manual_seed(100 * number + rank))


if stage == "plain":
    torch.distributed.init_process_group("gloo")
else:
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
rank, losses = torch.distributed.get_rank(), []
if kind == "gan":
    linear, relu = torch.nn.Linear, torch.nn.LeakyReLU
    made, judged = layers(linear(4, 16), relu(), linear(16, 8)), layers(linear(8, 16), relu(), linear(16, 1))
    generator, generator_optimizer = prepare(made)
    discriminator, discriminator_optimizer = prepare(judged)
    criterion = torch.nn.BCEWithLogitsLoss()
    for number in range(STEPS):
        zero_grad(discriminator)
        fake = generator(draw(number, 4))
        inputs = torch.cat([draw(number + 50, 8), fake.detach()])
        labels = torch.cat([torch.ones(BATCH, 1), torch.zeros(BATCH, 1)])
        loss = criterion(discriminator(inputs), labels)
        backward(discriminator, loss)
        step(discriminator, discriminator_optimizer)
        zero_grad(generator)
        generator_loss = criterion(judged(fake) if stage == "plain" else discriminator(fake), torch.ones(BATCH, 1))
        backward(generator, generator_loss)
        step(generator, generator_optimizer)
        losses += [loss.item(), generator_loss.item()]
    engine = discriminator
else:
    linear = torch.nn.Linear
    teacher, _ = prepare(layers(linear(8, 32), torch.nn.Tanh(), linear(32, 5)).requires_grad_(False).eval(), trains=False)
    engine, optimizer = prepare(layers(linear(8, 8), torch.nn.Tanh(), linear(8, 5)))
    for number in range(STEPS):
        inputs = draw(number, 8)
        with torch.no_grad():
            wanted = teacher(inputs).softmax(-1)
        loss = torch.nn.functional.kl_div(engine(inputs).log_softmax(-1), wanted, reduction="batchmean")
        backward(engine, loss)
        step(engine, optimizer)
        zero_grad(engine)
        losses.append(loss.item())
write(out, None if stage == "plain" else engine, losses)
