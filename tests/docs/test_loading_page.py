"""The programs of docs/loading.md run as they stand there."""

from __future__ import annotations

import subprocess
import textwrap

import pytest

from gpuring.cli.demo.clip import SHIPPED
from tests.docs.blocks import block, run
from tests.helpers.processes import PATIENCE_S


@block("loading.md", 0)
@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_loading(code, device):
    pytest.importorskip("torch")
    from tests.torch.datasets import Numbered

    code = code.replace('"cuda"', f'"{device}"').replace("num_workers=12", "num_workers=2")
    made = run(code, dataset=Numbered(300))
    assert made["images"].device.type == device
    assert len(made["labels"]) == 300 - 256


CLIPS = """
import torch
from torch.utils.data import Dataset as Base

from gpuring.torch import DataLoader

class Dataset(Base):
    files = labels = range(40)

    def __len__(self):
        return len(self.files)

def decode(file):
    return torch.full((4, 3, 8, 8), file, dtype=torch.uint8, device="{device}")

def resize(frames):
    return frames

{classes}

if __name__ == "__main__":
    {main}
    assert clips.device.type == "{device}", clips.device
    assert (clips.cpu()[:, 0, 0, 0, 0] == labels).all() and labels.tolist() == list(range(32, 40))
"""


@block("loading.md", 1)
@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_workers_that_use_a_gpu(code, device, programs, tmp_path):
    pytest.importorskip("torch")
    start = code.index("loader =")
    main = textwrap.indent(code[start:], "    ").lstrip()
    text = CLIPS.format(device=device, classes=code[:start], main=main)
    (tmp_path / "clips.py").write_text(text)
    ended = programs.start("clips.py", stderr=subprocess.PIPE)
    _, errors = ended.communicate(timeout=PATIENCE_S)
    assert ended.returncode == 0, errors


PICTURES = """
import torch.utils.data
import gpuring.torch
{code}
if __name__ == "__main__":
    pictures = Pictures({clip!r}, 24)
    found = []
    for kind in (gpuring.torch.DataLoader, torch.utils.data.DataLoader):
        loader = kind(pictures, 4, num_workers=2, multiprocessing_context="spawn")
        found.append([(batch.clone(), numbers.tolist()) for batch, numbers in loader])
    assert sum((numbers for _, numbers in found[0]), []) == list(range(24))
    for (ours, numbers), (theirs, same) in zip(*found, strict=True):
        assert ours.is_cuda and ours.float().std() > 1, numbers
        assert numbers == same and torch.equal(ours, theirs), numbers
"""


@block("loading.md", 2)
@pytest.mark.slow
@pytest.mark.gpu
def test_pictures_by_nvdec(code, programs, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("PyNvVideoCodec", exc_type=Exception)  # it raises more than ImportError
    (tmp_path / "pictures.py").write_text(PICTURES.format(code=code, clip=str(SHIPPED)))
    ended = programs.start("pictures.py", stderr=subprocess.PIPE)
    _, errors = ended.communicate(timeout=PATIENCE_S)
    assert ended.returncode == 0, errors
