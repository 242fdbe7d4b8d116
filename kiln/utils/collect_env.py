"""What a report of a fault should say of the machine: `python -m kiln.utils.collect_env` prints it."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import NamedTuple

from kiln.absent import leave_out as _leave_out
from kiln.version import __version__

__all__ = ["SystemEnv", "get_env_info", "get_pretty_env_info", "main"]
_PACKAGES = ("numpy", "llvmlite", "scipy", "safetensors", "matplotlib", "tqdm", "torch")


class SystemEnv(NamedTuple):
    """The facts, by PyTorch's names where they are the same."""

    torch_version: str
    is_debug_build: str
    cuda_compiled_version: str
    hip_compiled_version: str
    os: str
    libc_version: str
    python_version: str
    python_platform: str
    is_cuda_available: str
    cpu_info: str
    caching_allocator_config: str
    pip_version: str
    pip_packages: str


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name and how many cores this process may use."""
    name = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        name = names[0] if names else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def get_env_info() -> SystemEnv:
    """The facts of this process.

    >>> from kiln.utils.collect_env import get_env_info
    >>> get_env_info().is_cuda_available
    'False'
    """
    bits = sys.maxsize.bit_length() + 1
    found = [f"{name}=={version}" for name in _PACKAGES if (version := _version(name)) is not None]
    return SystemEnv(
        torch_version=__version__,
        is_debug_build="False",
        cuda_compiled_version="None",
        hip_compiled_version="N/A",
        os=f"{platform.system()} {platform.release()} ({platform.machine()})",
        libc_version="-".join(filter(None, platform.libc_ver())) or "N/A",
        python_version=f"{sys.version} ({bits}-bit runtime)".replace("\n", " "),
        python_platform=platform.platform(),
        is_cuda_available="False",
        cpu_info=_processor(),
        caching_allocator_config="N/A",
        pip_version=f"pip {_version('pip') or 'not installed'}",
        pip_packages="\n".join(f"[pip3] {line}" for line in found),
    )


def get_pretty_env_info() -> str:
    """The facts as lines of a report."""
    env = get_env_info()
    return "\n".join([
        f"kiln version: {env.torch_version}",
        f"Is debug build: {env.is_debug_build}",
        f"CUDA used to build: {env.cuda_compiled_version}",
        "",
        f"OS: {env.os}",
        f"Libc version: {env.libc_version}",
        "",
        f"Python version: {env.python_version}",
        f"Python platform: {env.python_platform}",
        f"Is CUDA available: {env.is_cuda_available}",
        f"CPU: {env.cpu_info}",
        "",
        "Versions of relevant libraries:",
        env.pip_packages,
    ])  # fmt: skip


def main() -> None:
    """Prints the report."""
    print("Collecting environment information...")
    print(get_pretty_env_info())


if __name__ == "__main__":
    main()


_leave_out(
    SystemEnv,
    "clang_version cmake_version conda_packages cuda_module_loading cuda_runtime_version cudnn_version "
    "gcc_version hip_runtime_version is_xnnpack_available is_xpu_available miopen_runtime_version "
    "nvidia_driver_version nvidia_gpu_models",
    "kiln runs on the CPU and needs no compiler",
)
