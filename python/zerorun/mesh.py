"""The sizes of the mesh that a program gives to initialize(): its own words, or DeepSpeed's."""

from ._core import UserError
from .errors import not_supported

AXES = ("data", "tensor", "pipeline", "replicate")
_OTHER_NAMES = {"dp_replicate": "replicate", "dp_shard": "shard", "dp": "data", "data_parallel": "data", "tp": "tensor", "tensor_parallel": "tensor", "pp": "pipeline",
                "pipeline_parallel": "pipeline"}


def mesh_of(mesh=None, mesh_device=None, mesh_param=None, mpu=None):
    """(data, tensor, pipeline, replicate), with 0 for the data ranks that the others leave; None if no argument says anything.
    `replicate`: into how many replicas the data ranks divide (zerorun.mesh.replicate)."""
    given = {name: sizes for name, sizes in (("mesh", _of_words(mesh, "mesh")), ("mesh_device", _of_device(mesh_device)),
                                             ("mesh_param", _of_pair(mesh_param)), ("mpu", _of_mpu(mpu))) if sizes}
    if not given:
        return None
    (first, sizes), *others = given.items()
    for other, its_sizes in others:
        if its_sizes != sizes:
            raise UserError(f"initialize(): {first} has the sizes {_shown(sizes)}, and {other} {_shown(its_sizes)}: give the same, "
                            "or one of them")
    return sizes


def _shown(sizes):
    return " x ".join(f"{axis} {size}" for axis, size in zip(AXES, sizes) if axis != "replicate" or size > 1)


def _of_words(words, argument):
    if words is None:
        return None
    try:
        named = {_OTHER_NAMES.get(axis, axis): size for axis, size in dict(words).items()}
    except (TypeError, ValueError):
        raise UserError(f"initialize({argument}=...): expected a dict such as {{\"data\": 2, \"tensor\": 2}}, found {words!r}") from None
    for axis, size in named.items():
        if axis not in (*AXES, "shard"):
            raise UserError(f"initialize({argument}=...): there is no axis {axis!r}, only {', '.join(AXES)}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UserError(f"initialize({argument}=...): {axis} {size!r}: expected a number of ranks, at least 1")
    if "shard" in named and "data" in named:
        raise UserError(f"initialize({argument}=...): dp_shard and data: give dp_shard and dp_replicate, or data and replicate")
    data = named["shard"] * named.get("replicate", 1) if "shard" in named else named.get("data", 0)
    return data, named.get("tensor", 1), named.get("pipeline", 1), named.get("replicate", 1)


def _of_device(device):
    """torch's DeviceMesh. Only its sizes are used: ranks are in zerorun's order."""
    if device is None:
        return None
    names = getattr(device, "mesh_dim_names", None)
    if not names:
        raise UserError("initialize(mesh_device=...): the mesh has no mesh_dim_names: name its dimensions, such as (\"data\", \"tensor\")")
    return _of_words(dict(zip(names, map(int, device.mesh.shape))), "mesh_device")


def _of_pair(pair):
    """DeepSpeed's (data, sequence)."""
    if pair is None:
        return None
    data, sequence = pair
    if sequence != 1:
        raise not_supported(f"initialize(mesh_param={tuple(pair)!r})", "give (data, 1): there is no sequence parallelism")
    return _of_words({"data": data}, "mesh_param")


def _of_mpu(mpu):
    """Megatron's object. Its parameters are parts that only it knows of, so it may have no model parallelism."""
    if mpu is None:
        return None
    for name in ("get_model_parallel_world_size", "get_tensor_model_parallel_world_size", "get_pipeline_model_parallel_world_size",
                 "get_pipe_parallel_world_size"):
        if hasattr(mpu, name) and getattr(mpu, name)() != 1:
            raise not_supported(f"initialize(mpu=...) with {name}() {getattr(mpu, name)()}",
                                "train at stage 3, which partitions every parameter over all data ranks")
    return (mpu.get_data_parallel_world_size(), 1, 1, 1) if hasattr(mpu, "get_data_parallel_world_size") else None
