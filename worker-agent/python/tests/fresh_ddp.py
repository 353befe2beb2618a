"""A training with PyTorch, for `fresh`."""

import time

import tally.torch
import torch
import torch.distributed as dist

dist.init_process_group("tally")
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(dist.get_rank())
for step in range(20):
    x = torch.randn(64, 8)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 0:
        print("first step at", time.time_ns())
same = model.module.weight.detach().clone()
dist.all_reduce(same)
assert torch.equal(same / dist.get_world_size(), model.module.weight.detach())
print("sums are right")
dist.destroy_process_group()
