"""GPUs that are made up, and with which nothing is wrong, as `gpuring doctor` sees them."""

from __future__ import annotations

from dataclasses import replace

from gpuring.cli.doctor import gpu

GPU = gpu.Gpu(
    ordinal=0,
    name="NVIDIA H200",
    uuid="12345678-0000-0000-0000-000000000000",
    compute_mode=0,
    integrated=False,
    host_register=True,
    stream_words=True,
    ipc_events=True,
    mps=False,
    vmm=True,
    pool=True,
    peers=(1,),
)
GPUS = gpu.Gpus(
    status=0,
    status_name="",
    kernel_module="580.159",
    device_files=True,
    cuda=13000,
    cupy="14.2.0",
    cupy_error="",
    cupy_cuda=13000,
    torch="2.11.0",
    visible=None,
    wsl=False,
    mps_directory=None,
    mps_answers=False,
    in_container=False,
    gpus=(GPU, replace(GPU, ordinal=1, peers=(0,))),
)
