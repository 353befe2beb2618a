"""What of torch.distributed works, run by `test_support.py` at each rank:
`support.py BACKEND OUTPUT [ROW...]`.

Each row is a function that returns tensors. They are compared with those of Gloo. OUTPUT gets a
pickle: for each row the tensors, or the error, and which collectives the switch and Gloo did.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import sys
import tempfile
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.algorithms.ddp_comm_hooks as hooks
from torch.nn.parallel import DistributedDataParallel as DDP

ROWS: dict = {}


def row(name):
    def add(function):
        ROWS[name] = function
        return function

    return add


def data(shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 10, (shape,) if isinstance(shape, int) else shape, generator=generator).to(dtype)


def everyone():
    return range(dist.get_world_size())


# Collectives.

for _name in ("float32", "float16", "bfloat16", "int32", "int16", "int8", "float64", "int64", "uint8"):

    @row(f"`all_reduce` SUM, {_name}")
    def _(dtype=getattr(torch, _name)):
        tensor = data(1000, dtype)
        dist.all_reduce(tensor)
        return [tensor]


@row("`all_reduce` AVG, float32")
def _():
    tensor = data(1000)
    if dist.get_backend() == "gloo":
        dist.all_reduce(tensor)
        return [tensor / dist.get_world_size()]
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    return [tensor]


for _name in ("MAX", "PRODUCT"):

    @row(f"`all_reduce` {_name}")
    def _(op=getattr(dist.ReduceOp, _name)):
        tensor = data(1000)
        dist.all_reduce(tensor, op=op)
        return [tensor]


for _name in ("float32", "float64"):

    @row(f"`all_reduce` of a transposed tensor, {_name}")
    def _(dtype=getattr(torch, _name)):
        # Gloo alone sums these wrongly.
        tensor = data((20, 30), dtype)
        if dist.get_backend() == "gloo":
            dist.all_reduce(tensor)
            return [tensor]
        strided = tensor.t().contiguous().t()
        dist.all_reduce(strided)
        return [strided]


@row("`all_reduce(async_op=True)`, `is_completed`, `get_future`")
def _():
    tensors = [data(1000 + i) for i in range(20)]
    works = [dist.all_reduce(it, async_op=True) for it in tensors]
    for i, work in enumerate(works):
        if i % 2:
            work.get_future().wait()
        else:
            while not work.is_completed():
                pass
        work.wait()
    return tensors


@row("`_coalescing_manager`")
def _():
    from torch.distributed.distributed_c10d import _coalescing_manager

    tensors = [data(10 + i) for i in range(5)]
    with _coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    return tensors


for _name in ("float32", "int64", "bool", "complex64"):

    @row(f"`broadcast`, {_name}")
    def _(dtype=getattr(torch, _name)):
        tensor = data(1001, dtype)
        dist.broadcast(tensor, 1)
        return [tensor]


@row("`barrier`")
def _():
    dist.barrier()
    return []


@row("`monitored_barrier`")
def _():
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    return []


@row("`all_gather`, up to 64 KiB")
def _():
    parts = [torch.empty(101, dtype=torch.float64) for _ in everyone()]
    dist.all_gather(parts, data(101, torch.float64))
    return parts


@row("`all_gather`, more")
def _():
    parts = [torch.empty(100_001) for _ in everyone()]
    dist.all_gather(parts, data(100_001))
    return parts


@row("`all_gather_into_tensor`, up to 64 KiB")
def _():
    out = torch.empty(dist.get_world_size() * 7, 3)
    dist.all_gather_into_tensor(out, data((7, 3)))
    return [out]


@row("`all_gather_into_tensor`, more")
def _():
    out = torch.empty(dist.get_world_size() * 100_000)
    dist.all_gather_into_tensor(out, data(100_000))
    return [out]


@row("`reduce_scatter_tensor`")
def _():
    out = torch.empty(100)
    dist.reduce_scatter_tensor(out, data(100 * dist.get_world_size()))
    return [out]


@row("`reduce`")
def _():
    tensor = data(100)
    dist.reduce(tensor, 0)
    return [tensor] if dist.get_rank() == 0 else []


@row("`gather`, `scatter`")
def _():
    first = dist.get_rank() == 0
    parts = [torch.empty(10) for _ in everyone()] if first else None
    dist.gather(data(10), parts, 0)
    got = torch.empty(10)
    dist.scatter(got, parts, 0)
    return [got]


@row("`all_to_all_single`")
def _():
    out = torch.empty(8 * dist.get_world_size())
    dist.all_to_all_single(out, data(8 * dist.get_world_size()))
    return [out]


@row("`send`, `recv`")
def _():
    tensor = data(10)
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    elif dist.get_rank() == 1:
        dist.recv(tensor, 0)
    return [tensor]


@row("`batch_isend_irecv`")
def _():
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.empty(10)
    ops = [
        dist.P2POp(dist.isend, data(10), (rank + 1) % size),
        dist.P2POp(dist.irecv, got, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [got]


@row("`all_gather_object`, `broadcast_object_list`")
def _():
    objects = [None for _ in everyone()]
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    other = [f"of {dist.get_rank()}"]
    dist.broadcast_object_list(other, 1)
    return [torch.tensor([it["rank"] for it in objects]), torch.tensor(list(other[0].encode()))]


@row("`new_group` of all ranks: `all_reduce`, `broadcast`, `barrier`")
def _():
    group = dist.new_group()
    tensor, other = data(1000), data(100, torch.int64)
    dist.all_reduce(tensor, group=group)
    dist.broadcast(other, 1, group=group)
    dist.barrier(group)
    dist.destroy_process_group(group)
    return [tensor, other]


@row("`new_group` of some ranks: `all_reduce`")
def _():
    group = dist.new_group([0, 1])
    tensor = data(1000)
    if dist.get_rank() < 2:
        dist.all_reduce(tensor, group=group)
    return [tensor]


@row("functional `all_reduce`")
def _():
    import torch.distributed._functional_collectives as functional

    return [functional.all_reduce(data(1000), "sum", dist.group.WORLD) + 0]


@row("functional `all_gather_tensor`, `reduce_scatter_tensor`")
def _():
    import torch.distributed._functional_collectives as functional

    all_of = functional.all_gather_tensor(data((4, 3)), 0, dist.group.WORLD)
    part = functional.reduce_scatter_tensor(all_of + 0, "sum", 0, dist.group.WORLD)
    return [all_of + 0, part + 0]


@row("profiler spans")
def _():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        tensor = data(1000)
        dist.all_reduce(tensor, async_op=True).wait()
    names = {it.key for it in profile.key_averages()}
    name = dist.get_backend()
    assert any(it.startswith(f"{name}:all_reduce") for it in names), names
    return [tensor]


# What is built of them.


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(20, 64), torch.nn.Linear(64, 64)
        self.norm, self.c = torch.nn.LayerNorm(64), torch.nn.Linear(64, 5)

    def forward(self, x):
        return self.c(self.norm(torch.relu(self.b(torch.relu(self.a(x))))))


def net():
    torch.manual_seed(3)
    return Net()


def train(model, optimizer=None, steps=5, around=contextlib.nullcontext):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(7 + dist.get_rank())
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 20, generator=generator)
        optimizer.zero_grad()
        loss = (model(x) - x[:, :5]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def weights(model):
    return [it.detach().clone() for it in model.parameters()]


for _name, _options in (("DDP", {}), ("DDP, `static_graph`", {"static_graph": True})):

    @row(_name)
    def _(options=_options):
        model = DDP(net(), bucket_cap_mb=0.01, **options)
        return train(model) + weights(model)


@row("DDP, `no_sync`")
def _():
    model = DDP(net())
    x = data((16, 20))
    with model.no_sync():
        model(x).square().mean().backward()
    model(x * 2).square().mean().backward()
    return [it.grad for it in model.parameters()]


@row("DDP, `join` of uneven inputs")
def _():
    model = DDP(net())
    with model.join():
        train(model, steps=3 + dist.get_rank())
    return weights(model)


@row("`torch.compile(DDP)`")
def _():
    # The graph and its partition at buckets are what touches collectives; inductor is left out.
    model = torch.compile(DDP(net()), backend="aot_eager")
    return train(model) + weights(model)


def with_hook(state, hook, bucket_cap_mb=0.01):
    model = DDP(net(), bucket_cap_mb=bucket_cap_mb)
    model.register_comm_hook(state, hook)
    return train(model) + weights(model)


for _name in ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"):

    @row(f"DDP, `{_name}`")
    def _(name=_name):
        return with_hook(None, getattr(hooks.default_hooks, name))


@row("DDP, `fp16_compress_wrapper`")
def _():
    return with_hook(None, hooks.default_hooks.fp16_compress_wrapper(hooks.default_hooks.allreduce_hook))


for _name in ("powerSGD_hook", "batched_powerSGD_hook"):

    @row(f"DDP, `{_name}`")
    def _(name=_name):
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=1
        )
        # One bucket: the order of collectives of callbacks and of backward() differs between ranks,
        # and Gloo aborts.
        return with_hook(state, getattr(powerSGD_hook, name), bucket_cap_mb=25)


@row("DDP, `post_localSGD_hook`")
def _():
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook

    group, _ = dist.new_subgroups(2)
    state = post_localSGD_hook.PostLocalSGDState(None, group, start_localSGD_iter=2)
    return with_hook(state, post_localSGD_hook.post_localSGD_hook)


for _name in ("quantization_pertensor_hook", "quantization_perchannel_hook"):

    @row(f"DDP, `{_name}`")
    def _(name=_name):
        from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks

        return with_hook(None, getattr(quantization_hooks, name), bucket_cap_mb=25)


@row("DDP, `tally.ddp_hook`")
def _():
    if dist.get_backend() == "gloo":
        return with_hook(None, hooks.default_hooks.allreduce_hook)
    import tally

    return with_hook(tally.torch.HookState(), tally.ddp_hook)


@row("`ZeroRedundancyOptimizer`")
def _():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(net())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, lr=0.05, momentum=0.9
    )
    return train(model, optimizer) + weights(model)


@row("FSDP1")
def _():
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    model = FSDP(net(), device_id=torch.device("cpu"))
    losses = train(model)
    with FSDP.summon_full_params(model):
        return losses + weights(model)


@row("`init_device_mesh`")
def _():
    from torch.distributed.device_mesh import init_device_mesh

    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("a", "b"))
    tensor = data(100)
    dist.all_reduce(tensor, group=mesh.get_group("a"))
    return [tensor]


@row("DTensor")
def _():
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    except ImportError:
        from torch.distributed._tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(5)
    left, right = torch.randn(8, 16), torch.randn(16, 8)
    a = distribute_tensor(left, mesh, [Shard(1)])
    b = distribute_tensor(right, mesh, [Shard(0)])
    product = a @ b
    assert product.placements[0].is_partial()
    return [product.redistribute(mesh, [Replicate()]).to_local(), a.full_tensor()]


def sharded():
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        from torch.distributed._composable.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = net()
    fully_shard(model.b, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@row("FSDP2 `fully_shard`")
def _():
    model = sharded()
    return train(model) + [it.detach().full_tensor() for it in model.parameters()]


@row("`torch.distributed.checkpoint`")
def _():
    import torch.distributed.checkpoint as checkpoint

    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    model = DDP(net())
    train(model)
    state = {"model": model.module.state_dict()}
    checkpoint.save(state, checkpoint_id=folder[0])
    other = {"model": net().state_dict()}
    checkpoint.load(other, checkpoint_id=folder[0])
    return list(other["model"].values())


def main():
    backend, output = sys.argv[1:3]
    wanted = sys.argv[3:] or list(ROWS)
    if backend == "tally":
        import tally.torch
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    results = {}
    for name in wanted:
        before = copy.deepcopy(tally.torch.counters()) if backend == "tally" else {}
        with warnings.catch_warnings(record=True) as said, contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("always")
            try:
                got = ("tensors", [it.detach().clone() for it in ROWS[name]()])
            except Exception as error:
                got = ("error", f"{type(error).__name__}: {error}")
        by = {}
        if backend == "tally":
            after = tally.torch.counters()
            by = {who: sorted(k for k, n in after[who].items() if n > before[who].get(k, 0)) for who in after}
        results[name] = (*got, by, [str(it.message) for it in said])
        print(dist.get_rank(), name, got[0] if got[0] == "tensors" else got[1].splitlines()[0][:300], by, flush=True)
    torch.save(results, f"{output}.{dist.get_rank()}")
    os.sync()
    dist.destroy_process_group()
    if backend == "gloo":
        # A thread of torch's Gloo that still holds a tensor when the interpreter ends aborts the
        # process.
        os._exit(0)


if __name__ == "__main__":
    main()
