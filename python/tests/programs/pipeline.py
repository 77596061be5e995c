"""A model of pipeline stages beside plain torch in one process: pipeline.py NUM_STAGES STAGE [METHOD [INTERVAL [TENSOR_RANKS]]]. The
ranks that are left are data ranks."""
import sys

import pipeline_models as models
import torch

import zerorun
from zerorun.pipe import PipelineModule
from zerorun.runtime.pipe.topology import PipeModelDataParallelTopology

STEPS, MICRO_BATCHES, CLIPPING = 4, 5, 0.3
num_stages, stage = map(int, sys.argv[1:3])
method = sys.argv[3] if len(sys.argv) > 3 else "parameters"
interval = int(sys.argv[4]) if len(sys.argv) > 4 else 0
tensor_ranks = int(sys.argv[5]) if len(sys.argv) > 5 else 1
zerorun.init_distributed()
ranks_of_stage = zerorun.comm.get_world_size() // num_stages
data_ranks = ranks_of_stage // tensor_ranks


def plain():
    torch.manual_seed(3)
    model = models.Plain()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0
        for data in range(data_ranks):
            for micro in range(MICRO_BATCHES):
                inputs, labels = models.batch(step, data, micro)
                loss = models.loss_fn(model(inputs), labels) / (data_ranks * MICRO_BATCHES)
                loss.backward()
                total += loss.item()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, CLIPPING).item())
        optimizer.step()
        schedule.step()
        losses.append(total)
    with torch.no_grad():
        last = [models.loss_fn(model(inputs), labels).item() for inputs, labels in
                (models.batch(99, data, micro) for data in range(data_ranks) for micro in range(MICRO_BATCHES))]
    return model, losses, norms, sum(last) / len(last)


def close(found, expected, within, what):
    assert abs(found - expected) <= within * abs(expected), (what, found, expected)


expected, losses, norms, expected_eval = plain()
torch.manual_seed(3)
size = {"num_stages": num_stages} if tensor_ranks == 1 else {
    "topology": PipeModelDataParallelTopology(num_pp=num_stages, num_mp=tensor_ranks, num_dp=data_ranks)}
net = PipelineModule(models.specs(), loss_fn=models.loss_fn, partition_method=method, activation_checkpoint_interval=interval, **size)
config = {"train_micro_batch_size_per_gpu": models.BATCH, "gradient_accumulation_steps": MICRO_BATCHES, "gradient_clipping": CLIPPING,
          "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20, "reduce_bucket_size": 500}}
optimizer = torch.optim.AdamW([{"params": [each for each in net.parameters() if each.requires_grad]}], lr=0.01, weight_decay=0.1)
engine, optimizer, _, _ = zerorun.initialize(model=net, config=config, optimizer=optimizer,
                                             lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
                                             tensor_plan={"*.up": "colwise", "*.down": "rowwise"} if tensor_ranks > 1 else None)
assert engine.is_pipe_parallel == (num_stages > 1) and engine.num_stages == num_stages and engine.micro_batches == MICRO_BATCHES
assert engine.stage_id == engine.global_rank // ranks_of_stage == engine.coordinates["pipeline"]
assert engine.is_first_stage() == (engine.stage_id == 0) and engine.is_last_stage() == (engine.stage_id == num_stages - 1)
assert engine.grid.get_data_parallel_rank() == engine.coordinates["data"]
assert engine.grid.pp_group == [engine.grid.stage_to_global(each) for each in range(num_stages)]
data = engine.coordinates["data"]
drawn = [None] * engine.world_size  # each data rank draws its part of the samples, on all stages alike
torch.distributed.all_gather_object(drawn, (data, sorted(map(int, engine.deepspeed_io(range(12), batch_size=1)))))
assert all(dict(drawn)[each] == samples for each, samples in drawn)
assert sorted(sum(dict(drawn).values(), [])) == list(range(12)), drawn


def batches(step):
    """Inner stages need no data."""
    for micro in range(MICRO_BATCHES):
        yield models.batch(step, data, micro) if engine.is_first_stage() or engine.is_last_stage() else None


for step in range(STEPS):
    loss = engine.train_batch(batches(step))
    close(loss.item(), losses[step], 1e-6, f"loss {step}")
    close(engine.get_global_grad_norm(), norms[step], 1e-5, f"norm {step}")
    assert engine.get_lr() == [0.01 * 0.5 ** ((step + 1) // 2)]
assert engine.global_steps == STEPS and engine.global_samples == STEPS * MICRO_BATCHES * models.BATCH * data_ranks
value, outputs = engine.eval_batch(batches(99), return_logits=True)
close(value.item(), expected_eval, 2e-6, "eval_batch()")
assert (outputs is not None) == engine.is_last_stage() and net.training
if engine.is_last_stage():
    with torch.no_grad():
        off = outputs - expected.eval()(models.batch(99, data, MICRO_BATCHES - 1)[0])
    assert not outputs.requires_grad and off.abs().max() < 1e-5, off.abs().max()
each = engine.eval_batch(batches(99), reduce_output=None)
outputs = engine.eval_batch(batches(99), compute_loss=False, reduce_output=None)
assert len(each or outputs or []) == (MICRO_BATCHES if engine.is_last_stage() else 0)
names = dict(net.named_parameters())
with zerorun.zero.GatheredParameters(list(names.values())):
    for name, parameter in names.items():
        off = (parameter.detach() - expected.get_parameter(name).detach()).abs().max().item()
        assert off <= 5e-6, (name, off)
engine.destroy()
print("PASS", flush=True)
