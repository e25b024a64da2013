"""Beyond one GPU: the same fine-tune on several workers with Ray, and what to expect of it.

Read it in this order: ``article`` (a design that never learns), ``window``, ``pipeline`` and ``layout``
(rows as a stream), ``worker``, ``handover`` and ``training`` (Ray Train), ``bottleneck`` (is it the data or the computing?), ``scaling`` (8 to
1,024 GPUs on paper), ``cluster`` (starting, joining and stopping Ray).

Needs the extra ``ray``: ``pip install 'onegpu[ray]'``. ``scaling``, ``bottleneck`` and the parts of ``pipeline`` that run in
one process work without it.
"""

from onegpu.ray_scale_out.bottleneck import BottleneckMeter, StepTimes, loaders_needed
from onegpu.ray_scale_out.cluster import (
    Cluster,
    NotEnoughResources,
    RayMissing,
    SpillRoom,
    local_ray,
    spill_room,
    spilled_bytes,
    worker_resources,
)
from onegpu.ray_scale_out.layout import StreamCounts, schedule, shard, steps_per_epoch
from onegpu.ray_scale_out.pipeline import Recipe, count_rows, packed_dataset, packed_rows
from onegpu.ray_scale_out.scaling import (
    RingRun,
    ScalingModel,
    ScalingPoint,
    ring_allreduce,
    ring_seconds,
    two_workers,
)
from onegpu.ray_scale_out.training import DistributedResult, finetune_distributed
from onegpu.ray_scale_out.window import Window, windows

__all__ = [
    "BottleneckMeter",
    "Cluster",
    "DistributedResult",
    "NotEnoughResources",
    "RayMissing",
    "Recipe",
    "RingRun",
    "ScalingModel",
    "ScalingPoint",
    "SpillRoom",
    "StepTimes",
    "StreamCounts",
    "Window",
    "count_rows",
    "finetune_distributed",
    "loaders_needed",
    "local_ray",
    "packed_dataset",
    "packed_rows",
    "ring_allreduce",
    "ring_seconds",
    "schedule",
    "shard",
    "spill_room",
    "spilled_bytes",
    "steps_per_epoch",
    "two_workers",
    "windows",
    "worker_resources",
]
