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
from gpuring.torch import DataLoader
{code}
if __name__ == "__main__":
    pictures = Pictures("{clip}", 48)
    loader = DataLoader(pictures, 4, num_workers=2, multiprocessing_context="spawn")
    numbers = []
    for batch, of_batch in loader:
        assert batch.is_cuda and batch.float().std() > 1
        for picture, number in zip(batch, of_batch.tolist()):
            assert torch.equal(picture, pictures[number][0]), number
            numbers.append(number)
    assert numbers == list(range(48))
"""


@block("loading.md", 2)
@pytest.mark.slow
@pytest.mark.gpu
def test_pictures_by_nvdec(code, programs, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("PyNvVideoCodec", exc_type=Exception)  # it raises more than ImportError
    (tmp_path / "pictures.py").write_text(PICTURES.format(code=code, clip=SHIPPED))
    ended = programs.start("pictures.py", stderr=subprocess.PIPE)
    _, errors = ended.communicate(timeout=PATIENCE_S)
    assert ended.returncode == 0, errors
