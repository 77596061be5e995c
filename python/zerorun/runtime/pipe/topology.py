"""Ranks as a grid with named axes, as deepspeed.runtime.pipe.topology has them. The mesh has DeepSpeed's order: pipe, data, model."""

import collections
import itertools

from ..._core import UserError
from ...errors import BadArgument, not_supported

ORDER = ("pipe", "data", "model")


class ProcessTopology:
    """Coordinates of ranks. The last axis changes fastest from rank to rank."""

    def __init__(self, axes, dims):
        self.axes, self.dims = list(axes), list(dims)
        self.ProcessCoord = collections.namedtuple("ProcessCoord", self.axes)
        places = itertools.product(*map(range, self.dims))
        self.mapping = {self.ProcessCoord(*place): rank for rank, place in enumerate(places)}
        self._coords = list(self.mapping)

    def get_rank(self, **coord):
        if set(coord) != set(self.axes):
            raise BadArgument(f"get_rank(): give a coordinate for each axis ({', '.join(self.axes)}), or call filter_match()")
        place = self.ProcessCoord(**coord)
        if place not in self.mapping:
            raise UserError(f"get_rank(): there is no rank at {place}")
        return self.mapping[place]

    def get_coord(self, rank):
        if not 0 <= rank < len(self._coords):
            raise BadArgument(f"get_coord(): there is no rank {rank}, only {len(self._coords)} ranks")
        return self._coords[rank]

    def get_axis_names(self):
        return self.axes

    def get_dim(self, axis):
        """The number of ranks along the axis; 0 if there is no such axis."""
        return self.dims[self.axes.index(axis)] if axis in self.axes else 0

    def get_rank_repr(self, rank, omit_axes=("data", "pipe"), inner_sep="_", outer_sep="-"):
        place = self.get_coord(rank)
        return outer_sep.join(f"{axis}{inner_sep}{getattr(place, axis):02d}" for axis in self.axes if axis not in omit_axes)

    def get_axis_comm_lists(self, axis):
        """The groups of ranks that differ in this coordinate only."""
        if axis not in self.axes:
            return []
        groups = collections.defaultdict(list)
        for place, rank in self.mapping.items():
            groups[place._replace(**{axis: 0})].append(rank)
        return list(groups.values())

    def filter_match(self, **coord):
        """The ranks that have these coordinates."""
        return [rank for place, rank in self.mapping.items() if all(getattr(place, axis) == at for axis, at in coord.items())]

    def get_axis_list(self, axis, idx):
        return self.filter_match(**{axis: idx})

    def world_size(self):
        return len(self.mapping)

    def __str__(self):
        return str(self.mapping)


class PipeDataParallelTopology(ProcessTopology):
    def __init__(self, num_pp, num_dp):
        super().__init__(["pipe", "data"], [num_pp, num_dp])


class PipeModelDataParallelTopology(ProcessTopology):
    def __init__(self, num_pp, num_mp, num_dp):
        super().__init__(["pipe", "data", "model"], [num_pp, num_dp, num_mp])


def check_order(topology):
    """Raises UserError unless the axes are those of the mesh, in its order."""
    axes = list(topology.get_axis_names())
    if axes == [axis for axis in ORDER if axis in axes]:
        return
    raise not_supported(f"a topology with the axes {', '.join(axes)}",
                        "give pipe, data and model, in this order, as PipeDataParallelTopology and PipeModelDataParallelTopology do")


def _no_group(name):
    raise not_supported(f"{name}(), a torch process group of a part of the ranks",
                        "make it with torch.distributed.new_group(), on all ranks, of the ranks that the grid names")


class PipelineParallelGrid:
    """Which ranks are in which stage. engine.grid and engine.mpu."""

    def __init__(self, topology, global_rank):
        self._topo = topology
        self.global_rank = global_rank
        self.world_size = topology.world_size()
        sizes = [max(topology.get_dim(axis), 1) for axis in ORDER]
        self.pipe_parallel_size, self.data_parallel_size, self.model_parallel_size = sizes
        self.slice_parallel_size = self.model_parallel_size
        self.stage_id, self.data_parallel_id, self._slice_id = (self._along(axis) for axis in ORDER)
        self.is_first_stage = self.stage_id == 0
        self.is_last_stage = self.stage_id == self.pipe_parallel_size - 1
        self.dp_groups, self.dp_group = self._groups("data")
        self.pipe_groups, self.pp_group = self._groups("pipe")
        self.slice_group = self._groups("model")[1]

    def _along(self, axis):
        return getattr(self._topo.get_coord(self.global_rank), axis, 0)

    def _groups(self, axis):
        """All groups of ranks along the axis, and this rank's."""
        groups = self._topo.get_axis_comm_lists(axis) or [[rank] for rank in range(self.world_size)]
        return groups, next(group for group in groups if self.global_rank in group)

    def topology(self):
        return self._topo

    def stage_to_global(self, stage_id, **coord):
        """The rank of that stage with otherwise this rank's coordinates, but for those given."""
        return self._topo.get_rank(**self._topo.get_coord(self.global_rank)._replace(pipe=stage_id, **coord)._asdict())

    def get_global_rank(self):
        return self.global_rank

    def get_stage_id(self):
        return self.stage_id

    get_pipe_parallel_rank = get_pipeline_model_parallel_rank = get_stage_id

    def get_pipe_parallel_world_size(self):
        return self.pipe_parallel_size

    get_pipeline_model_parallel_world_size = get_pipe_parallel_world_size

    def get_data_parallel_id(self):
        return self.data_parallel_id

    get_data_parallel_rank = get_data_parallel_id

    def get_data_parallel_world_size(self):
        return self.data_parallel_size

    def get_data_parallel_group_ranks(self):
        return self.dp_group

    def _of_model(self):
        """The ranks that have the same samples: those of all stages."""
        return self._topo.filter_match(data=self.data_parallel_id) if "data" in self._topo.axes else list(range(self.world_size))

    def get_model_parallel_rank(self):
        return self._of_model().index(self.global_rank)

    def get_model_parallel_world_size(self):
        return len(self._of_model())

    def get_slice_parallel_rank(self):
        return self._slice_id

    get_tensor_model_parallel_rank = get_slice_parallel_rank

    def get_slice_parallel_world_size(self):
        return self.slice_parallel_size

    get_tensor_model_parallel_world_size = get_slice_parallel_world_size

    def get_pipe_parallel_group(self):
        _no_group("get_pipe_parallel_group")

    def get_data_parallel_group(self):
        _no_group("get_data_parallel_group")

    def get_model_parallel_group(self):
        _no_group("get_model_parallel_group")

    def get_slice_parallel_group(self):
        _no_group("get_slice_parallel_group")
