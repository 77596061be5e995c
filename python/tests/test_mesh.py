"""Data groups of a larger job, and the arguments of initialize() that give them."""

import pytest
import torch
import zerorun
from launch import ALL, run
from small import config, make, net
from zerorun.mesh import mesh_of


@pytest.mark.parametrize("comm", ["shm", "gloo"] if ALL else ["shm"])  # groups_test has both
def test_data_groups_train_like_plain_torch(comm):
    assert run("mesh_groups.py", 0, 2, 3, ranks=4, ZERORUN_COMM=comm).count("PASS") == 4


def test_ranks_that_send_less_train_like_plain_torch():
    assert run("zeropp.py", ranks=4, ZERORUN_COMM="gloo").count("PASS") == 4


class Mpu:
    def __init__(self, model_parallel):
        self.model_parallel = model_parallel

    def get_model_parallel_world_size(self):
        return self.model_parallel

    def get_data_parallel_world_size(self):
        return 4


class DeviceMesh:  # as torch's
    mesh, mesh_dim_names = torch.arange(8).view(4, 2), ("dp", "tp")


def test_arguments_that_give_sizes():
    assert mesh_of() is None
    assert mesh_of(mesh={"tensor": 2}) == (0, 2, 1, 1)
    assert mesh_of(mesh={"data": 2, "pp": 4}) == (2, 1, 4, 1)
    assert mesh_of(mesh={"data": 8, "replicate": 2}) == mesh_of(mesh={"dp_shard": 4, "dp_replicate": 2}) == (8, 1, 1, 2)
    assert mesh_of(mesh_device=DeviceMesh()) == (4, 2, 1, 1)
    assert mesh_of(mesh_param=(4, 1)) == (4, 1, 1, 1)
    assert mesh_of(mpu=Mpu(1)) == (4, 1, 1, 1)
    assert mesh_of(mesh={"data": 4}, mpu=Mpu(1)) == (4, 1, 1, 1)


@pytest.mark.parametrize("match, arguments", [
    ("there is no axis 'sequence', only data, tensor, pipeline, replicate", {"mesh": {"sequence": 2}}),
    ("tensor 0: expected a number of ranks, at least 1", {"mesh": {"tensor": 0}}),
    ("expected a dict", {"mesh": 4}),
    ("dp_shard and data: give", {"mesh": {"dp_shard": 2, "data": 2}}),
    ("a multiple of replicate", {"mesh": {"data": 1, "replicate": 2}}),
    ("mesh has the sizes data 2 x tensor 1 x pipeline 1, and mpu data 4", {"mesh": {"data": 2}, "mpu": Mpu(1)}),
    ("get_model_parallel_world_size.. 2 is not supported", {"mpu": Mpu(2)}),
    (r"mesh_param=\(2, 2\).* is not supported", {"mesh_param": (2, 2)}),
    ("tensor 3 x pipeline 1 does not fit 1 rank", {"mesh": {"tensor": 3}}),
])
def test_sizes_that_are_refused(match, arguments):
    with pytest.raises(zerorun.UserError, match=match):
        zerorun.initialize(model=net(), config=config(), tensor_plan={}, **arguments)


def test_sizes_of_program_and_config_must_agree():
    with pytest.raises(zerorun.UserError, match="zerorun.mesh.*the mesh of the program|does not fit"):
        zerorun.initialize(model=net(), config=config(zerorun={"mesh": {"data": 1}}), mesh={"tensor": 2}, tensor_plan={})
    engine = make(zerorun={"mesh": {"data": 1}})
    assert engine.mesh == {"data": 1, "tensor": 1, "pipeline": 1} and engine.data_parallel_size == 1
    engine.destroy()
