"""Replays golden traces of one world size with a Python loop: golden.py RUNS OUT FOLDER. RUNS: a JSON file with the names of the traces of
each model. Rank 0 writes the results of each run of each model to OUT as JSON, and test_golden.py checks them. FOLDER is for offloaded
state."""

import copy
import json
import sys

import torch

import zerorun
from golden_data import batch, text, traces, weights
from gpt2 import Gpt2


def make_model(kind):
    if kind == "own":
        model = Gpt2()
        model.load_state_dict(weights())
        return model, lambda engine, tokens: engine(tokens)
    import transformers

    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=32, resid_pdrop=0,
                                     embd_pdrop=0, attn_pdrop=0)
    model = transformers.GPT2LMHeadModel(config)
    missing, unexpected = model.load_state_dict(weights(), strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model, lambda engine, tokens: engine(input_ids=tokens, labels=tokens).loss


def groups(model, weight_decay):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def replay(trace, model, loss_of, tokens, folder):
    config = trace["ds_config"]
    for section in ("offload_optimizer", "offload_param"):
        offload = config["zero_optimization"].get(section, {})
        if offload.get("device") == "nvme":
            offload["nvme_path"] = folder
    chosen = groups(model, float(trace["groups"])) if "groups" in trace else None
    engine, _, _, _ = zerorun.initialize(model=model, config=config, model_parameters=chosen)
    assert type(engine).__module__ == "zerorun.engine"
    accumulation, micro_batch = engine.gradient_accumulation_steps(), engine.train_micro_batch_size_per_gpu()
    result = {"losses": [], "norms": [], "lrs": [], "betas": [], "scales": [], "skipped": [], "raised": None}
    for step in range(len(trace["steps"]) + ("raised" in trace)):
        lrs, losses = engine.get_lr(), []
        try:
            for micro in range(accumulation):
                rows = batch(tokens, step, micro, engine.global_rank, accumulation, engine.world_size, micro_batch)
                loss = loss_of(engine, rows)
                losses.append(float(loss.detach()))
                engine.backward(loss * float("inf") if step in trace.get("inject_inf_steps", []) else loss)
                engine.step()
        except zerorun.TrainingError:
            result["raised"] = step
            break
        result["losses"].append(losses)
        result["norms"].append(engine.get_global_grad_norm())
        result["lrs"].append(lrs)
        result["betas"].append(engine.get_mom())
        result["scales"].append(engine.loss_scale)
        result["skipped"].append(engine.skipped_steps)
    every = [None] * engine.world_size
    zerorun.comm.all_gather_object(every, result["losses"])
    result["losses"] = [sum(ranks, []) for ranks in zip(*every)]
    # Each of these operators gathers a parameter, so all ranks run them.
    result["final"] = {name: float(p.detach().double().norm()) for name, p in model.named_parameters()}
    engine.destroy()
    return result


def main():
    runs, out, folder = sys.argv[1:]
    with open(runs, encoding="utf-8") as file:
        runs = json.load(file)
    torch.set_num_threads(1)
    zerorun.init_distributed(dist_backend="nccl")  # as programs for GPUs have it; on CPUs it means Gloo
    tokens, results = text(), {}
    for kind, names in runs.items():
        model, loss_of = make_model(kind)
        results[kind] = {}
        for trace in traces():
            if trace["name"] in names:
                assert trace["world"] == zerorun.comm.get_world_size()
                results[kind][trace["name"]] = replay(trace, copy.deepcopy(model), loss_of, tokens, folder)
    if zerorun.comm.get_rank() == 0:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(results, file)


main()
