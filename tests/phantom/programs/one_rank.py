"""Collectives of one rank of four, as a serving engine calls them, without the other ranks."""

import sys
from types import ModuleType

import torch
import torch.distributed as dist

for name in ("vllm", "vllm.distributed", "vllm.distributed.device_communicators"):
    sys.modules[name] = ModuleType(name)
queue = sys.modules["vllm.distributed.device_communicators.shm_broadcast"] = ModuleType("queue")
queue.MessageQueue = type("MessageQueue", (), {})
sys.path.insert(0, sys.argv[1])
import start_vllm  # noqa: E402

start_vllm.leave_out_other_ranks(queue.MessageQueue, "vllm.")
dist.init_process_group("nccl", init_method="tcp://nowhere:1", world_size=4, rank=0, timeout=None)
group = dist.new_group([0, 1, 2, 3], backend="gloo")
assert (group.rank(), group.size()) == (0, 4)

handles = [["mine"], [None], [None], [None]]
for source, handle in enumerate(handles):
    dist.broadcast_object_list(handle, src=source, group=group)
assert handles == [["mine"]] * 4

gathered = [None] * 4
dist.all_gather_object(gathered, {"free": 5}, group=group)
assert gathered == [{"free": 5}] * 4

least = torch.tensor([7])
dist.all_reduce(least, op=dist.ReduceOp.MIN, group=group)
dist.barrier(group=group)
dist.monitored_barrier(group=group, wait_all_ranks=True)
assert least.item() == 7
print("one rank of", dist.get_world_size())
