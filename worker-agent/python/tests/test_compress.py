"""Compression of gradients, with all ranks in one process; test_hook.py uses a switch."""

import pytest

torch = pytest.importorskip("torch")

import tally
from tally.compress import Int8, Residuals, TopK, ZeroBlocks

# Small tensors: more threads only wait for each other.
torch.set_num_threads(1)


class Ranks:
    """What n ranks keep."""

    def __init__(self, compression, n, sizes):
        self.compression, self.n = compression, n
        self.parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
        self.residuals = [Residuals() for _ in range(n)]

    def average(self, flats, parameters=None):
        """Runs the hook's two rounds. Returns their results, and the second round's elements."""
        parameters = self.parameters if parameters is None else parameters
        flats = [it.clone() for it in flats]
        exchanges = [
            self.compression.exchange(flat, parameters, residuals, self.n)
            for flat, residuals in zip(flats, self.residuals)
        ]
        asked = total([it.ask() for it in exchanges])
        told = [it.tell(asked.clone()) for it in exchanges]
        assert len({(it.dtype, it.shape) for it in told}) == 1
        sums = total(told)
        if sums.dtype == torch.float32:
            sums /= self.n
        for exchange in exchanges:
            exchange.result(sums.clone())
        return flats, told[0]

    def owed(self, parameters=None):
        """By all ranks, for each of the elements."""
        parameters = self.parameters if parameters is None else parameters
        n = sum(it.numel() for it in parameters)
        return sum(it.of(parameters, self.compression.block).view(-1)[:n] for it in self.residuals)


def total(tensors):
    """As the switch: int8 that leaves its range is an error."""
    if tensors[0].dtype == torch.int8:
        whole = torch.stack(tensors).to(torch.int32).sum(0)
        assert whole.numel() == 0 or whole.abs().max() <= 127
        return whole.to(torch.int8)
    total = tensors[0].clone()
    for it in tensors[1:]:
        total += it
    return total


def same(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 63, 64])
@pytest.mark.parametrize("elements", [1, 255, 256, 257, 5000])
def test_what_is_left_out_is_owed(n, elements):
    torch.manual_seed(n * elements)
    for compression in (TopK(0.1), TopK(1.0, block=7), Int8(), Int8(block=3)):
        ranks = Ranks(compression, n, [elements])
        brought, arrived = torch.zeros(elements), torch.zeros(elements)
        for _ in range(5):
            # Some ranks have far larger gradients than others.
            flats = [torch.randn(elements) * 10.0 ** (rank % 5) for rank in range(n)]
            averages, _ = ranks.average(flats)
            assert all(same(it, averages[0]) for it in averages)
            brought += sum(flats)
            arrived += averages[0] * n
        error = (arrived + ranks.owed() - brought).abs().max()
        assert error <= 1e-5 * brought.abs().max(), (compression, error)


@pytest.mark.parametrize("n", [1, 4, 64])
def test_zero_blocks_change_nothing_but_what_travels(n):
    torch.manual_seed(n)
    ranks = Ranks(ZeroBlocks(16), n, [1000])
    flats = [torch.zeros(1000) for _ in range(n)]
    averages, told = ranks.average(flats)
    assert told.numel() == 0 and not averages[0].any()
    for rank, flat in enumerate(flats):
        flat[7 * rank] = torch.randn(())
    flats[0][999] = -1e-45
    averages, told = ranks.average(flats)
    assert all(torch.equal(it, total(flats) / n) for it in averages)
    assert told.numel() <= 16 * (n + 1)
    averages, told = ranks.average([torch.ones(1000)] * n)
    assert torch.equal(averages[-1], torch.ones(1000)) and told.numel() == 1008


def test_int8_has_the_steps_that_it_says():
    # Alike, and so that all round the same way.
    for n, steps in ((1, 126), (4, 31), (8, 15), (64, 1)):
        flats = [torch.linspace(-1, 1, 256)] * n
        _, told = Ranks(Int8(), n, [256]).average(flats)
        assert told.abs().max() == steps, n


def test_int8_waits_with_what_is_too_small_and_takes_zeros():
    ranks = Ranks(Int8(), 2, [256])
    averages, told = ranks.average([torch.zeros(256)] * 2)
    assert not averages[0].any() and not told.any()
    small = torch.full((256,), 1e-40)
    averages, _ = ranks.average([small] * 2)
    assert not averages[0].any()
    assert torch.allclose(ranks.owed(), 2 * small, rtol=1e-3, atol=0)
    assert ranks.average([torch.ones(256)] * 2)[0][0].sub(1).abs().max() < 0.01


def test_top_k_takes_the_share_and_the_largest():
    ranks = Ranks(TopK(0.1, block=10), 2, [1000])
    flats = [torch.ones(1000), torch.ones(1000)]
    flats[0][300:400] = 5
    averages, told = ranks.average(flats)
    assert told.numel() == 100
    assert (averages[0][300:400] == 3).all() and averages[0].count_nonzero() == 100
    # The next time the rest has grown.
    averages, _ = ranks.average(flats)
    assert (averages[0][300:400] == 3).all()
    averages, _ = ranks.average([torch.zeros(1000)] * 2)
    assert not averages[0][300:400].any() and averages[0].count_nonzero() == 100


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_arrives_and_is_not_owed(bad):
    for compression in (ZeroBlocks(16), TopK(0.02, block=16), Int8(16)):
        ranks = Ranks(compression, 3, [1000])
        flats = [torch.randn(1000) for _ in range(3)]
        # More of them than the share.
        places = torch.tensor([3, 100, 101, 500, 999])
        flats[1][places] = bad
        for average in ranks.average(flats)[0]:
            if isinstance(compression, Int8):
                assert average[places].isnan().all()
                assert average[16:96].isfinite().all()
            else:
                assert torch.equal(average[places].nan_to_num(7), torch.full((5,), bad).nan_to_num(7))
                assert average.isfinite().sum() == 995
        if not isinstance(compression, ZeroBlocks):
            assert ranks.owed().isfinite().all()
        average = ranks.average([torch.ones(1000)] * 3)[0][0]
        assert average.isfinite().all()


def test_residuals_follow_parameters_into_other_buckets():
    ranks = Ranks(TopK(0.01, block=8), 2, [100, 30, 7])
    a, b, c = ranks.parameters
    flats = [torch.arange(1.0, 138), torch.arange(1.0, 138)]
    ranks.average(flats)
    before = ranks.owed().clone()
    # As DDP does it after the first iteration: another order, other neighbours.
    first, second = ranks.owed([c, b]), ranks.owed([a])
    assert torch.equal(first, torch.cat([before[130:], before[100:130]]))
    assert torch.equal(second, before[:100])
    # From there they continue, and those of old buckets are gone.
    ranks.average([torch.zeros(100)] * 2, [a])
    assert ranks.owed([a]).count_nonzero() < before[:100].count_nonzero()
    assert torch.equal(ranks.owed([c, b]), first)
    for it in ranks.residuals:
        assert len(it._buckets) == 2


def test_options_that_cannot_be_are_refused():
    for block in (0, -1, 65537, 2.0, True, "256"):
        for kind in (ZeroBlocks, TopK, Int8):
            with pytest.raises(tally.ArgumentError, match="block: found"):
                kind(block=block)
    for share in (0, -0.1, 1.01, float("nan")):
        with pytest.raises(tally.ArgumentError, match="share: found"):
            TopK(share)
