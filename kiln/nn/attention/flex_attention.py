"""Attention whose scores a function changes: `flex_attention`, with masks that functions describe.

    score_mod(score, batch, head, query, key)     the score that is taken instead
    mask_mod(batch, head, query, key)             whether it is taken at all

The functions are called once, with positions that broadcast to all scores [B, H, Q, K], so they are written
for single positions: comparisons, `kiln.where`, tables that they index. All scores are in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from kiln import ops
from kiln._core import Tensor, float32, int32
from kiln.absent import hint_missing as _hint_missing
from kiln.errors import message

__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "and_masks", "create_block_mask", "create_mask", "flex_attention",
    "noop_mask", "or_masks",
]  # fmt: skip

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

_DEFAULT_SPARSE_BLOCK_SIZE = 128


class AuxRequest(NamedTuple):
    """What `flex_attention` is to give beside its result."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What it gave: [B, H, Q] each, or None."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def noop_mask(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> Tensor:
    """Takes every score."""
    return ops.ones((), dtype=bool)


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """What takes the scores that all functions take."""

    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        found: Tensor = ops.ones((), dtype=bool)
        for mod in mask_mods:
            found = found & mod(b, h, q, k)
        return found

    return mask


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """What takes the scores that any of the functions takes."""

    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        found: Tensor = ops.zeros((), dtype=bool)
        for mod in mask_mods:
            found = found | mod(b, h, q, k)
        return found

    return mask


def _positions(*sizes: int) -> list[Tensor]:
    """The positions along each of four dims, to broadcast."""
    return [ops.arange(n).view([-1 if d == dim else 1 for d in range(4)]) for dim, n in enumerate(sizes)]


def create_mask(
    mod_fn: Any, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None
) -> Tensor:
    """What a mask_mod says of all positions, as bools [B, H, Q, K]; of a score_mod, where it leaves scores
    above -infinity.

    >>> create_mask(lambda b, h, q, k: q >= k, None, None, 2, 3)
    tensor([[[[ True, False, False],
              [ True,  True, False]]]])
    """
    sizes = (B or 1, H or 1, Q_LEN, KV_LEN)
    places = _positions(*sizes)
    takes = getattr(getattr(mod_fn, "__code__", None), "co_argcount", 4)
    if takes == 5 and not getattr(mod_fn, "__defaults__", None):
        kept: Tensor = mod_fn(ops.zeros(sizes), *places) != -math.inf
        return kept
    taken: Tensor = mod_fn(*places).expand(sizes).contiguous()
    return taken


def _blocks(flags: Tensor) -> tuple[Tensor, Tensor]:
    """Of flags [.., rows, columns]: how many of a row are set, and their columns, then the others."""
    order = ops.argsort(flags.int(), -1, descending=True, stable=True)
    return flags.int().sum(-1, dtype=int32), order.int()


def _flags(counts: Tensor | None, indices: Tensor | None, columns: int) -> Tensor | None:
    """The flags of which `_blocks` made counts and columns."""
    if counts is None or indices is None:
        return None
    set_ = ops.arange(indices.shape[-1]) < counts.unsqueeze(-1)
    spread = ops.zeros((*indices.shape[:-1], columns + 1), dtype=int32)
    at = ops.where(set_, indices.long(), ops.full((), columns, dtype=int))
    flags: Tensor = spread.scatter(-1, at, 1)[..., :columns] > 0
    return flags


class BlockMask:
    """Which blocks of scores hold some that are taken, and which hold only such: see `create_block_mask`.

    `kv_num_blocks` [B, H, Q blocks] and `kv_indices` [B, H, Q blocks, K blocks] name those of which
    `mask_mod` has the say, `full_...` those that are taken whole; `q_...` the same by columns.
    """

    def __init__(
        self,
        seq_lengths: tuple[int, int],
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None,
        BLOCK_SIZE: tuple[int, int] = (_DEFAULT_SPARSE_BLOCK_SIZE, _DEFAULT_SPARSE_BLOCK_SIZE),
        mask_mod: MaskMod = noop_mask,
    ) -> None:
        self.seq_lengths, self.BLOCK_SIZE, self.mask_mod = seq_lengths, BLOCK_SIZE, mask_mod
        self.kv_num_blocks, self.kv_indices = kv_num_blocks, kv_indices
        self.full_kv_num_blocks, self.full_kv_indices = full_kv_num_blocks, full_kv_indices
        columns = -(-seq_lengths[1] // BLOCK_SIZE[1])
        partial = _flags(kv_num_blocks, kv_indices, columns)
        assert partial is not None
        self._partial, self._full = partial, _flags(full_kv_num_blocks, full_kv_indices, columns)
        self.q_num_blocks, self.q_indices = _blocks(self._partial.transpose(-2, -1))
        self.full_q_num_blocks: Tensor | None = None
        self.full_q_indices: Tensor | None = None
        if self._full is not None:
            self.full_q_num_blocks, self.full_q_indices = _blocks(self._full.transpose(-2, -1))

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks: Tensor,
        kv_indices: Tensor,
        full_kv_num_blocks: Tensor | None = None,
        full_kv_indices: Tensor | None = None,
        BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE,
        mask_mod: MaskMod | None = None,
        seq_lengths: tuple[int, int] | None = None,
        compute_q_blocks: bool = True,
    ) -> BlockMask:
        """The mask of the blocks that are named. AssertionError where full blocks are named by half."""
        if kv_indices.dim() < 2:
            raise RuntimeError("BlockMask must have at least 2 dimensions")
        if (full_kv_num_blocks is None) != (full_kv_indices is None):
            raise AssertionError("full_kv_num_blocks and full_kv_indices must be both provided or omitted")
        size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
        blocks = kv_indices.shape[-2:]
        lengths = seq_lengths or (blocks[0] * size[0], blocks[1] * size[1])
        return cls(
            lengths,
            kv_num_blocks,
            kv_indices,
            full_kv_num_blocks,
            full_kv_indices,
            size,
            mask_mod or noop_mask,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, H, Q, K), with 1 where it is the same for all."""
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def __str__(self) -> str:
        return f"BlockMask(shape={tuple(self.shape)}, sparsity={self.sparsity():.2f}%)"

    __repr__ = __str__

    def __getitem__(self, index: Any) -> BlockMask:
        picked = [
            None if x is None else x[index]
            for x in (self.kv_num_blocks, self.kv_indices, self.full_kv_num_blocks, self.full_kv_indices)
        ]
        return BlockMask(self.seq_lengths, picked[0], picked[1], picked[2], picked[3], self.BLOCK_SIZE)  # type: ignore[arg-type]

    def numel(self) -> int:
        """How many scores there are."""
        return math.prod(self.shape)

    def sparsity(self) -> float:
        """How much of the scores no block holds, in percent."""
        held = int(self.to_dense().sum().item()) * self.BLOCK_SIZE[0] * self.BLOCK_SIZE[1]
        return 100 * (1 - held / self.numel())

    def to_dense(self) -> Tensor:
        """Whether each block holds scores that are taken: int32 [B, H, Q blocks, K blocks]."""
        found = self._partial if self._full is None else self._partial | self._full
        return found.int()

    def to(self, device: Any) -> BlockMask:
        """The mask, which is on the CPU; an error for another device."""
        self.kv_indices.to(device)
        return self

    def _scores(self, places: list[Tensor], q_len: int, kv_len: int) -> Tensor:
        """Whether each score is taken: bools that broadcast to [B, H, Q, K]."""

        def spread(flags: Tensor) -> Tensor:
            rows = flags.repeat_interleave(self.BLOCK_SIZE[0], -2)[..., :q_len, :]
            return rows.repeat_interleave(self.BLOCK_SIZE[1], -1)[..., :kv_len]

        taken = spread(self._partial) & self.mask_mod(*places)
        return taken if self._full is None else taken | spread(self._full)


def create_block_mask(
    mask_mod: MaskMod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE,
    _compile: bool = False,
    separate_full_blocks: bool = True,
) -> BlockMask:
    """The blocks of scores of which `mask_mod` takes some, and those of which it takes all.

    >>> mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 4, 4, BLOCK_SIZE=2)
    >>> mask.to_dense()
    tensor([[[[1, 0],
              [1, 1]]]], dtype=kiln.int32)
    """
    rows, columns = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    mask = create_mask(mask_mod, B, H, Q_LEN, KV_LEN)
    b, h = mask.shape[:2]
    high, wide = -(-Q_LEN // rows), -(-KV_LEN // columns)
    whole = ops.zeros(b, h, high * rows, wide * columns, dtype=bool)
    whole[:, :, :Q_LEN, :KV_LEN] = mask
    counts = whole.view(b, h, high, rows, wide, columns).int().sum((3, 5))
    full = counts == rows * columns
    partial = (counts > 0) & ~full if separate_full_blocks else counts > 0
    some, whose = _blocks(partial)
    all_, theirs = _blocks(full) if separate_full_blocks else (None, None)
    return BlockMask((Q_LEN, KV_LEN), some, whose, all_, theirs, (rows, columns), mask_mod)


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """softmax(score_mod(query @ key.T * scale)) @ value, of [B, H, Q, E], [B, H, K, E] and [B, H, K, F].

    `scale` is 1/sqrt(E) if it is not given. With `enable_gqa` key and value may have fewer heads, each for
    several of query's. A query whose scores are all masked gives zeros. Half dtypes are scored in float32.
    With `return_lse` the logarithms of the sums of exponentials [B, H, Q] come second, with `return_aux` an
    AuxOutput of what it asks for. ValueError for sizes that do not fit.

    >>> x = kiln.ones(1, 1, 2, 1)
    >>> def before(score, b, h, q, k):
    ...     return kiln.where(q > k, score, -kiln.inf)
    >>> flex_attention(x, x, kiln.arange(1.0, 3.0).view(1, 1, 2, 1), before)
    tensor([[[[0.],
              [1.]]]])
    """
    if min(query.dim(), key.dim(), value.dim()) != 4 or max(query.dim(), key.dim(), value.dim()) != 4:
        raise NotImplementedError("NYI: query, key, and value must be 4D tensors")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype}, key.dtype: {key.dtype}, and value.dtype: {value.dtype} instead."
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "Expect query and key/value to have the same embedding dimension but got "
            f"E={query.shape[-1]} and E={key.shape[-1]}."
        )
    if query.shape[0] != key.shape[0] and block_mask is None:
        raise ValueError(
            "Expect query and key/value to have the same batch size, or non-none block_mask, but got "
            f"block_mask=None, Bq={query.shape[0]}, and Bkv={key.shape[0]}."
        )
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and not enable_gqa:
        raise ValueError(
            f"Expect query and key/value to have the same number of heads but got Hq={heads} and "
            f"Hkv={kv_heads}. Try setting enable_gqa=True for GQA."
        )
    if heads % kv_heads:
        raise ValueError(
            "Expect number of query heads to be a multiple of kv heads for GQA but got "
            f"Hq={heads} and Hkv={kv_heads}."
        )
    if heads != kv_heads:
        key, value = (x.repeat_interleave(heads // kv_heads, 1) for x in (key, value))
    q_len, kv_len = query.shape[2], key.shape[2]
    if block_mask is not None and block_mask.seq_lengths != (q_len, kv_len):
        raise ValueError(
            f"block_mask was created for block_mask.shape={tuple(block_mask.shape)} but got q_len={q_len} "
            f"and kv_len={kv_len}: create one of these lengths"
        )
    working = query.dtype if query.dtype.itemsize == 8 else float32
    q, k, v = (x.to(working) for x in (query, key, value))
    scores = q @ k.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    places = _positions(*scores.shape)
    if score_mod is not None:
        scores = score_mod(scores, *places)
        if not isinstance(scores, Tensor):
            raise TypeError(message("flex_attention", "a tensor from score_mod", type(scores).__name__))
    if block_mask is not None:
        scores = ops.where(block_mask._scores(places, q_len, kv_len), scores, -math.inf)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    weights = ops.where(empty, 0.0, ops.softmax(ops.where(empty, 0.0, scores), -1))
    out = (weights @ v).to(query.dtype)
    if return_aux is not None:
        lse = ops.logsumexp(scores, -1) if return_aux.lse else None
        return out, AuxOutput(lse, scores.amax(-1) if return_aux.max_scores else None)
    return (out, ops.logsumexp(scores, -1)) if return_lse else out


_hint_missing(__name__)
