"""The pattern of an attention kernel: what is given, what it gives, how work and memory are cut.

Launches are the same on every machine, so of bfloat16 a thread's memory has the regions of both drivers:
those on vectors, and those on tiles.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from kiln.codegen.arguments import Arguments
from kiln.codegen.attention.vector_rows import Mask
from kiln.codegen.gemm.amx_tile import LINE, PANEL, ROW, STEP_BYTES
from kiln.codegen.nests.nest import TEXTS
from kiln.scalars.scalar import Scalar, program_text, select
from kiln.table.order import ATTENTION_ROWS, LANES

UNIT_ROWS = 4 * ATTENTION_ROWS  # four blocks of queries: packed keys are used as often
PAD = 32  # columns of every region are a multiple of this, the most a panel has
PITCH = 16  # further elements of its rows, so that they fall into different cache sets
SIZES = ("n", "h", "r", "l", "s", "e", "v")
DIMS = ("n", "h", "r", "row", "column")  # of an operand
KEYS = 256  # whose scores tiles make at a time: they stay in the first cache; whole chains of a reduction
QUERIES = 128  # of which gradients on tiles sum products before they go to memory


class Drop(NamedTuple):
    """Dropout: the probability (f64), the position of the first weight and the seed (i64), of numbers."""

    chance: Scalar
    position: Scalar
    seed: Scalar

    @property
    def factor(self) -> Scalar:
        """What is kept is multiplied by it; where nothing is kept, 0."""
        return select(self.chance < 1.0, 1.0 / (1.0 - self.chance), 0.0)


class AttentionSpec(NamedTuple):
    """The pattern of an attention kernel: what is given, what it gives, how scores are made."""

    dtype: str  # of all operands but the mask
    mask: Mask | None
    causal: bool
    gives: str  # "o", or of the gradients of query, key and value those that are wanted: "qkv"
    scale: Scalar  # of numbers
    drop: Drop | None
    numbers: tuple[str, ...]  # "i64" or "f64" each

    @property
    def backward(self) -> bool:
        """Whether gradients are computed."""
        return self.gives != "o"

    @property
    def operands(self) -> str:
        """The operands in order: g q k v mask, then what is given, in capitals."""
        return ("g" if self.backward else "") + "qkv" + ("m" if self.mask else "") + self.gives.upper()

    @property
    def arguments(self) -> Arguments:
        """The kernel's arguments; of each region of the thread's own memory, where it begins."""
        strides = dict.fromkeys(self.operands, DIMS)
        regions, numbers = self.regions(dict.fromkeys(SIZES, 0)), range(len(self.numbers))
        return Arguments(
            self.operands, ("memory",), size=SIZES, region=regions.keys(), stride=strides, number=numbers
        )

    @property
    def scalars(self) -> list[Scalar]:
        """What is computed of the numbers."""
        return [self.scale, *(self.drop or ())]

    def text(self) -> str:
        """The canonical text: printed form and cache key."""
        return _text(self)

    def units(self, sizes: dict[str, Any]) -> Any:
        """The units of work of a launch, on ints or symbolic sizes."""
        heads = sizes["n"] * sizes["h"]
        if self.backward:
            return heads + 2 * heads // (
                heads * heads + 1
            )  # the quotient is 1 of one head, 0 of more: one is cut in two
        return heads * sizes["r"] * ((sizes["l"] + UNIT_ROWS - 1) // UNIT_ROWS)

    def regions(self, sizes: dict[str, Any]) -> dict[str, Any]:
        """The regions of a thread's own memory and their sizes in summed elements."""
        found = self._vector_regions(sizes)
        return {**found, **self._tile_regions(sizes)} if self.dtype == "bfloat16" else found

    def _vector_regions(self, sizes: dict[str, Any]) -> dict[str, Any]:
        rows = ATTENTION_ROWS
        keys, e, v = (padded(sizes[name]) for name in "sev")
        found = {
            "kt": keys * sizes["e"], "query": (e + PITCH) * rows, "weights": (keys + PITCH) * rows,
            "sums": (v + e + PITCH) * rows, "shares": rows,
        }  # fmt: skip
        if self.drop is not None:
            found["kept"] = keys // PAD * rows
        if not self.backward:
            return {**found, "value": (v + PITCH) * sizes["s"]}
        return {
            **found, "vt": keys * sizes["v"], "key": (e + PITCH) * sizes["s"], "grad": (v + PITCH) * rows,
            "slopes": (keys + PITCH) * rows, "dk": (e + PITCH) * sizes["s"], "dv": (v + PITCH) * sizes["s"],
        }  # fmt: skip

    def _tile_regions(self, sizes: dict[str, Any]) -> dict[str, Any]:
        """Those on tiles; what is packed is half as wide as what is summed."""
        keys, e, v = (padded(sizes[name]) for name in "sev")
        found = {
            "tile keys": keys * e // 2, "tile scores": PANEL * KEYS, "tile kept": PANEL * KEYS // PAD,
            "tile sums": (e + v) * QUERIES, "tile lanes": 2 * LANES * PANEL, "tile rows": 4 * QUERIES,
            "tile stage": STEP_BYTES // 4,
        }  # fmt: skip
        if not self.backward:
            return {
                **found, "tile query": PANEL * e // 2, "tile weights": PANEL * KEYS // 2,
                "tile values": _vnni_panels(v, keys),
            }  # fmt: skip
        return {
            **found, "tile values": keys * v // 2, "tile slopes": PANEL * KEYS,
            "tile across": KEYS * QUERIES // 2, "tile weights": KEYS * QUERIES // 2,
            "tile down": KEYS * QUERIES // 2,
            "tile query": QUERIES * e // 2, "tile grad": QUERIES * v // 2,
            "tile queries": QUERIES * e // 2, "tile grads": QUERIES * v // 2,
            "tile key": _vnni_panels(e, keys), "tile dk": (keys + PITCH) * e, "tile dv": (keys + PITCH) * v,
        }  # fmt: skip


def padded(size: Any) -> Any:
    """A size in whole panels."""
    return (size + (PAD - 1)) // PAD * PAD


def _vnni_panels(columns: Any, depth: Any) -> Any:
    """Panels in VNNI packing, each a row longer, so that they fall into different cache sets."""
    return columns // PANEL * (depth * LINE + ROW) // 4


@lru_cache(maxsize=TEXTS)
def _text(spec: AttentionSpec) -> str:
    mask = " ".join(spec.mask) if spec.mask else "none"
    return "\n".join([
        f"attention {spec.dtype} gives {spec.gives} {'causal' if spec.causal else 'whole'} mask {mask}",
        f"numbers {' '.join(spec.numbers)}".rstrip(),
        program_text(spec.scalars),
    ])  # fmt: skip
