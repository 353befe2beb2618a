"""The table of docs/PYTORCH.md: every row of `support.py` with the backend tally, against Gloo.

TALLY_WRITE_SUPPORT=1 writes the column of this version of torch.
"""

import os
import pathlib
import re

import pytest
from cluster import ROOT, Cluster

torch = pytest.importorskip("torch")
import tally.torch  # noqa: E402

DOCUMENT = ROOT / "docs" / "PYTORCH.md"
PROGRAM = pathlib.Path(__file__).with_name("support.py")
BEGIN, END = "<!-- support table -->\n", "<!-- end of the support table -->\n"
VERSION = ".".join(torch.__version__.split(".")[:2])
TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 4e-2, torch.float64: 1e-12, torch.float32: 1e-4}
# Rounding on the way differs: Gloo rounds after each addition.
LOSSY = {
    "DDP, `fp16_compress_hook`": 5e-3,
    "DDP, `fp16_compress_wrapper`": 5e-3,
    "DDP, `bf16_compress_hook`": 4e-2,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """For each backend and rank what support.py wrote."""
    folder = tmp_path_factory.mktemp("support")
    all_of = {}
    with Cluster(4) as cluster:
        for backend in ("tally", "gloo"):
            arguments = (backend, str(folder / backend))
            # Each row's warnings are recorded, so that each has to be given.
            for rank, (code, text) in enumerate(cluster.run_python(PROGRAM.read_text(), *arguments, timeout=240)):
                assert code == 0, f"{backend} rank {rank}: {code}\n{text}\n{cluster.logs()}"
            all_of[backend] = [torch.load(folder / f"{backend}.{rank}", weights_only=True) for rank in range(4)]
    return all_of


def cell(result):
    kind, got, by, _ = result
    if kind == "error":
        return f"`{got.splitlines()[0].split(':')[0]}`"
    parts = ["switch"] if by["switch"] else []
    if by["gloo"]:
        parts.append("Gloo" if not by["switch"] else f"Gloo: {', '.join(by['gloo'])}")
    return "; ".join(parts) or "nothing sent"


def table():
    text = DOCUMENT.read_text()
    lines = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].splitlines()
    rows = [[it.strip() for it in line.strip("|").split("|")] for line in lines]
    return rows[0], {row[0]: row[1:] for row in rows[2:]}


def write(cells):
    head, rows = table()
    if VERSION not in head:
        head.append(VERSION)
        rows = {name: [*row, ""] for name, row in rows.items()}
    at = head.index(VERSION) - 1
    rows = {name: rows.get(name, [""] * (len(head) - 1)) for name in cells}
    for name, it in cells.items():
        rows[name][at] = it
    lines = [head, ["---"] * len(head), *([name, *row] for name, row in rows.items())]
    text = "".join(f"| {' | '.join(it)} |\n" for it in lines)
    document = DOCUMENT.read_text()
    before, after = document.split(BEGIN)[0], document.split(END)[1]
    DOCUMENT.write_text(before + BEGIN + text + END + after)


def test_results_are_those_of_gloo(results):
    wrong = []
    for rank, (ours, theirs) in enumerate(zip(results["tally"], results["gloo"])):
        for name, (kind, got, *_) in ours.items():
            if kind == "error" or theirs[name][0] == "error":
                continue
            want = theirs[name][1]
            assert len(got) == len(want), name
            for a, b in zip(got, want):
                tolerance = LOSSY.get(name, TOLERANCES.get(a.dtype, 0))
                if a.dtype != b.dtype or not torch.allclose(a, b, rtol=tolerance, atol=tolerance):
                    wrong.append((rank, name, a, b))
    assert not wrong


def test_what_gloo_does_alone_tally_does_too(results):
    failed = {
        name: got
        for name, (kind, got, *_) in results["tally"][0].items()
        if kind == "error" and results["gloo"][0][name][0] != "error"
    }
    if not tally.torch.HAS_PYTHON_BACKENDS:
        # torch before 2.14 asks for the name "gloo".
        failed.pop("`monitored_barrier`", None)
    assert not failed


def test_gloo_is_said(results):
    for rank in results["tally"]:
        said = "\n".join(text for *_, texts in rank.values() for text in texts)
        for name, (_, _, by, _) in rank.items():
            for kind in by["gloo"]:
                assert f"{kind} is done by Gloo: " in said, (name, kind)


def test_the_document_says_who_does_what(results):
    cells = {name: cell(result) for name, result in results["tally"][0].items()}
    if os.environ.get("TALLY_WRITE_SUPPORT"):
        write(cells)
    head, rows = table()
    if VERSION not in head:
        pytest.skip(f"docs/PYTORCH.md has no column for torch {VERSION}")
    at = head.index(VERSION) - 1
    assert {name: row[at] for name, row in rows.items()} == cells
    assert re.search(r"\bswitch\b", cells["DDP"])
