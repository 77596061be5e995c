"""A program written for DeepSpeed's pipelines. It does not know zerorun."""
import argparse

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--stages", type=int, default=2)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 16))
        self.classifier = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 4))


def join_layers(model):
    return [*model.features, lambda x: torch.flatten(x, 1), *model.classifier]


generator = torch.Generator().manual_seed(2)
inputs = torch.randn(64, 8, generator=generator)
dataset = torch.utils.data.TensorDataset(inputs, inputs[:, :4].argmax(1))
topology = PipeDataParallelTopology(num_pp=args.stages, num_dp=torch.distributed.get_world_size() // args.stages)
net = PipelineModule(layers=join_layers(Net()), loss_fn=torch.nn.CrossEntropyLoss(), topology=topology,
                     partition_method="type:Linear", activation_checkpoint_interval=0)
config = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 100,
          "optimizer": {"type": "Adam", "params": {"lr": 0.03}}, "pipeline": {"seed_layers": False}}
engine, _, loader, _ = deepspeed.initialize(args=args, model=net, model_parameters=[p for p in net.parameters() if p.requires_grad],
                                            training_data=dataset, config=config)
assert isinstance(engine, deepspeed.PipelineEngine) and isinstance(net, deepspeed.PipelineModule)
losses = [engine.train_batch().item() for _ in range(15)]
other = torch.utils.data.DataLoader(dataset, batch_size=4)
loss = engine.eval_batch(iter(deepspeed.utils.RepeatingLoader(other)))
assert losses[-1] < 0.5 * losses[0], losses
print(f"losses: {losses[0]:.6f} {losses[1]:.6f} {losses[-1]:.6f} {loss.item():.6f}", flush=True)
