"""Trains the GPT-2 of tests/golden with DeepSpeed on two ranks and records every step. Called by record_traces."""

import argparse
import json
import os
import pathlib
import sys

import torch
import torch.multiprocessing

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/data"
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")
WORLD, MICRO, LENGTH, STEPS = 2, 2, 32, 6


def traces():
    """Names and configs: bfloat16 weights and optimizer states, which torch's own Adam updates, at stages 1 to 3."""
    for stage in (1, 2, 3):
        for accumulation in (1, 4):
            more = {} if accumulation == 1 else {"gradient_accumulation_steps": accumulation}
            yield f"bf16_s{stage}_states_gas{accumulation}", {
                "train_micro_batch_size_per_gpu": MICRO, **more, "gradient_clipping": 1.0, "steps_per_print": 1000000,
                "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1e-08,
                                                          "weight_decay": 0.1, "torch_adam": True}},
                "zero_optimization": {"stage": stage},
                "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}


def make_model():
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0,
                                       embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager"))
    missing, unexpected = model.load_state_dict(load_file(DATA / "init_tiny_seed1234.safetensors"), strict=False)
    assert not unexpected and all(name == "lm_head.weight" for name in missing), (missing, unexpected)
    model.tie_weights()
    return model


def record(rank, port, name, config, out):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port), DS_ACCELERATOR="cpu")
    torch.set_num_threads(1)
    import deepspeed

    deepspeed.init_distributed("gloo")
    text = TEXT.read_bytes()[:32768]
    model = make_model()
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    accumulation = engine.gradient_accumulation_steps()
    steps = []
    for step in range(STEPS):
        losses = []
        for micro in range(accumulation):
            first = ((step * accumulation + micro) * WORLD + rank) * MICRO
            begins = [((first + j) * LENGTH) % (len(text) - LENGTH) for j in range(MICRO)]
            tokens = torch.tensor([list(text[begin:begin + LENGTH]) for begin in begins])
            logits = engine(tokens).logits.float()
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            losses.append(loss.item())
            engine.backward(loss)
            lr = engine.get_lr()
            engine.step()
        everyones = [None] * WORLD
        torch.distributed.all_gather_object(everyones, losses)
        mean = sum(sum(of_rank) for of_rank in everyones) / (WORLD * accumulation)
        norm = engine.get_global_grad_norm()
        steps.append({"losses": [[loss.hex() for loss in of_rank] for of_rank in everyones], "loss_mean": mean.hex(),
                      "grad_norm": float(norm).hex(), "lr": [rate.hex() for rate in lr],
                      "skipped": engine.skipped_steps, "loss_scale": 1.0})
    final = {}
    for parameter_name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=config["zero_optimization"]["stage"] == 3):
            values = parameter.detach().double().flatten()
            final[parameter_name] = [values.norm().item(), values[0].item(), values[-1].item()]
    if rank == 0:
        with open(out, "a") as file:
            file.write(json.dumps({"name": name, "world": WORLD, "ds_config": config, "steps": steps, "final": final}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    out = parser.parse_args().out
    if not TEXT.is_file():
        sys.exit(f"{TEXT} is missing: the traces' text is Debian's (package base-files)")
    out.unlink(missing_ok=True)
    for number, (name, config) in enumerate(traces()):
        torch.multiprocessing.spawn(record, (29600 + number, name, config, str(out)), nprocs=WORLD)
        print(name, flush=True)


if __name__ == "__main__":
    main()
