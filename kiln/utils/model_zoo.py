"""PyTorch's old path of `kiln.hub`'s downloads."""

from typing import Any

from kiln.absent import no_attribute
from kiln.hub import load_state_dict_from_url

__all__ = ["load_state_dict_from_url", "load_url"]

load_url = load_state_dict_from_url


def __getattr__(name: str) -> Any:
    if name != "tqdm":  # which torchvision takes from here
        no_attribute(__name__, name)
    from tqdm import tqdm

    return tqdm
