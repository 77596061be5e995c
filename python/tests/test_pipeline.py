"""PipelineModule: models as lists of layers, which pipeline stages divide among themselves, beside plain torch."""

import itertools
import re

import pytest
import torch
import zerorun
from launch import ALL, SOURCE, run, run_several
from small import config
from zerorun.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from zerorun.runtime.pipe.topology import (PipeDataParallelTopology, PipelineParallelGrid, PipeModelDataParallelTopology,
                                           ProcessTopology)

PAGE = (SOURCE / "docs/python.md").read_text()
# Pipeline stages, ZeRO stage, partition_method, layers that are recomputed together, tensor ranks. Each choice occurs.
FEW = [(2, 0, "uniform", 2, 1), (4, 1, "parameters", 0, 1), (2, 2, "parameters", 0, 1), (4, 3, "type:block|frozen", 1, 1),
       (1, 3, "uniform", 3, 1), (2, 3, "parameters", 2, 2)]
EVERY = [*itertools.product((1, 2, 4), range(4), ("parameters", "uniform", "type:block|frozen"), (0, 2), (1,)),
         *itertools.product((1, 2), range(4), ("uniform",), (0, 2), (2,))]

PLACES = ("layer", "first", "backward", "returned", "loss")  # where something raises: pipeline_errors.py


def check_losses(output):
    lines = re.findall(r"losses: .*", output)
    assert len(lines) == 4 and len(set(lines)) == 1, output


@pytest.mark.parametrize("comm", ["shm", "gloo"] if ALL else ["shm"])
def test_models_train_like_plain_torch_and_a_program_of_deepspeed_runs(comm):
    programs = [("pipeline.py", *arguments) for arguments in (EVERY if ALL else FEW)]
    output = run_several([*programs, ("pipeline_deepspeed.py", "--stages", 2)], ranks=4, timeout=1800, kind="zerorun as deepspeed",
                         ZERORUN_COMM=comm)
    assert output.count("PASS") == 4 * len(programs)
    check_losses(output)


@pytest.mark.skipif(not ALL, reason="scripts/test_python --all")
@pytest.mark.parametrize("stages", [1, 4])
def test_a_program_of_deepspeed(stages):
    check_losses(run("pipeline_deepspeed.py", "--stages", stages, ranks=4, kind="zerorun as deepspeed"))


@pytest.mark.parametrize("comm", ["shm", "gloo"])
def test_two_ranks(comm, tmp_path):
    """The program of docs/python.md too."""
    (tmp_path / "train.py").write_text(re.search(r"### Pipelines.*?```py\n(.*?)```", PAGE, re.DOTALL)[1] + "print('PASS')\n")
    programs = [(tmp_path / "train.py",), ("pipeline.py", 2, 3), ("pipeline_errors.py", "lifetimes")]
    if comm == "shm":  # over Gloo ranks hear of an error when the rank where it came ends
        programs += [("pipeline_precisions.py",), *(("pipeline_errors.py", place) for place in PLACES)]
    assert run_several(programs, ZERORUN_COMM=comm).count("PASS") == 2 * len(programs)


def test_what_raises_on_one_stage_ends_the_job():
    assert "ZeroDivisionError: a division of the program" in run("pipeline_errors.py", "uncaught", expect=1, timeout=60)


def net(layers=None, **more):
    layers = [LayerSpec(torch.nn.Linear, 4, 4), torch.nn.Tanh(), lambda x: x] if layers is None else layers
    return PipelineModule(layers, **{"num_stages": 1, "loss_fn": torch.nn.MSELoss(), **more})


def batches(count=2):
    return iter([(torch.ones(2, 4), torch.zeros(2, 4))] * count)


@pytest.mark.parametrize("match, make", [
    ("must provide num_stages or topology", lambda: net(num_stages=None)),
    (r"num_stages \(2\) must divide the number of ranks \(1\)", lambda: net(num_stages=2)),
    ("num_stages=0.*at least 1", lambda: net(num_stages=0)),
    ("partition_method='best'.: expected \"parameters\".*\"uniform\".*\"type:REGEX\"", lambda: net(partition_method="best")),
    ("partition_method=None.: expected", lambda: net(partition_method=None)),
    ("type:conv.*no layer's class has such a name; there are Linear, Tanh, <lambda>", lambda: net(partition_method="type:conv")),
    ("a topology with the axes data, pipe is not supported", lambda: net(topology=ProcessTopology(["data", "pipe"], [1, 1]))),
    ("the topology has 4 ranks, and the job has 1", lambda: net(topology=PipeDataParallelTopology(2, 2))),
    ("layer 0 is a int: expected a module, a LayerSpec or a function", lambda: net([3])),
    ("a PipelineModule inside another is not supported", lambda: net([net()])),
    ("0 layers for 1 stages: each stage needs a layer", lambda: net([])),
    ("activation_checkpoint_interval -1", lambda: net(activation_checkpoint_interval=-1)),
    ("LayerSpec.*expected a class of modules", lambda: LayerSpec(torch.tanh)),
    ("tied_weight_attr='weights'.*Linear has no weights",
     lambda: net([TiedLayerSpec("a", torch.nn.Linear, 2, 2, tied_weight_attr="weights")])),
])
def test_modules_that_are_refused(match, make):
    with pytest.raises(zerorun.UserError, match=match):
        make()


def make(model=None, **more):
    return zerorun.initialize(model=net() if model is None else model, config=config(gradient_accumulation_steps=2, **more))[0]


def test_engines_that_are_refused():
    with pytest.raises(zerorun.UserError, match=r"num_stages 1, and the config says 2 \(pipeline.stages"):
        make(pipeline={"stages": 2})
    with pytest.raises(zerorun.UserError, match="num_stages 1 and 1 tensor ranks, and the program's mesh has pipeline 2"):
        zerorun.initialize(model=net(), config=config(), mesh={"pipeline": 2})
    added = net()
    added.more = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(zerorun.UserError, match="more is in no layer of the PipelineModule"):
        make(added)
    used = net()
    make(used).destroy()
    with pytest.raises(zerorun.UserError, match="has an engine already"):
        make(used)
    assert used.stage_owner(2) == 0 and used.partitions() == [0, 3]
    with pytest.raises(AssertionError, match="mpu must be None"):
        zerorun.initialize(model=net(), config=config(), mpu=net().mpu())


def test_calls_that_are_refused():
    engine = make(pipeline={"stages": 1})
    for call in (lambda: engine(torch.ones(2, 4)), lambda: engine.backward(torch.ones(())), engine.step):
        with pytest.raises(zerorun.UserError, match="accessible in pipeline mode"):
            call()
    for match, call in (("without data: pass an iterator", engine.train_batch),
                        ("a list is no iterator", lambda: engine.train_batch([1])),
                        (r"expected \(inputs, labels\).*found a tensor", lambda: engine.train_batch(iter([torch.ones(2)]))),
                        ("reduce_output='sum'. is not supported", lambda: engine.eval_batch(batches(), reduce_output="sum")),
                        ("compute_loss=False.*give reduce_output=None", lambda: engine.eval_batch(batches(), compute_loss=False))):
        engine.data_iterator = None
        with pytest.raises(zerorun.UserError, match=match):
            call()
    with pytest.raises(StopIteration):
        engine.train_batch(batches(1))
    with torch.no_grad(), pytest.raises(zerorun.UserError, match="autograd off"):
        engine.train_batch(batches())
    assert engine.train_batch(batches()).item() > 0 and engine.global_steps == 1
    engine.destroy()


def test_data_and_batch_functions():
    engine = make(net(loss_fn=lambda outputs, labels: (outputs - labels["target"]).square().mean()))
    engine.set_batch_fn(lambda row: (row["x"], {"target": row["y"]}))
    engine.set_dataloader(torch.utils.data.DataLoader([{"x": torch.ones(4), "y": torch.zeros(4)}] * 4, batch_size=2))
    first = engine.train_batch()
    assert first.dtype == torch.float32 and first.item() == engine.agg_train_loss.item()
    with pytest.raises(StopIteration):
        engine.train_batch()
    engine.set_dataiterator(iter([{"x": torch.ones(2, 4), "y": torch.zeros(2, 4)}] * 2))
    assert engine.train_batch() < first
    engine.destroy()


def test_layers_that_write_to_their_inputs():
    engine = make(net([torch.nn.ReLU(inplace=True), LayerSpec(torch.nn.Linear, 4, 4)]))
    rows = [(-torch.ones(2, 4), torch.zeros(2, 4))] * 2
    engine.train_batch(iter(rows))
    assert torch.equal(rows[0][0], -torch.ones(2, 4))
    engine.destroy()


def test_interval_of_the_config():
    """pipeline.activation_checkpoint_interval recomputes layers without the module's own argument."""
    calls = []

    def counted(x):
        calls.append(torch.is_grad_enabled())
        return x

    engine = make(net([counted, LayerSpec(torch.nn.Linear, 4, 4)]), pipeline={"activation_checkpoint_interval": 2})
    assert engine.module.activation_checkpoint_interval == 2
    engine.train_batch(batches())
    assert len(calls) == 4  # twice for each of two micro-batches
    engine.destroy()


def test_no_loss_fn():
    """The last layer returns the loss."""
    engine = make(net([LayerSpec(torch.nn.Linear, 4, 4), lambda x: x.square().mean()], loss_fn=None))
    assert engine.train_batch(batches()) > engine.train_batch(batches())
    engine.destroy()


def test_topologies():
    topology = PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2)
    assert topology.get_rank(pipe=1, data=0, model=1) == 5 and topology.get_coord(6) == (1, 1, 0)
    assert topology.get_axis_comm_lists("pipe") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert topology.get_axis_comm_lists("expert") == [] and topology.get_dim("expert") == 0 and topology.get_dim("model") == 2
    assert topology.filter_match(pipe=0, data=1) == [2, 3] and topology.get_axis_list("model", 1) == [1, 3, 5, 7]
    assert topology.get_rank_repr(3) == "model_01" and topology.world_size() == 8
    grid = PipelineParallelGrid(topology, 5)
    assert (grid.get_stage_id(), grid.get_data_parallel_id(), grid.get_slice_parallel_rank()) == (1, 0, 1)
    assert grid.stage_to_global(0) == 1 and grid.dp_group == [5, 7] and grid.pp_group == [1, 5] and grid.slice_group == [4, 5]
    assert grid.get_model_parallel_world_size() == 4 and grid.get_model_parallel_rank() == 3
    with pytest.raises(ValueError, match="no rank 8"):
        topology.get_coord(8)
    with pytest.raises(zerorun.NotSupportedError, match="get_data_parallel_group"):
        grid.get_data_parallel_group()
