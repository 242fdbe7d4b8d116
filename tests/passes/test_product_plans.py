"""What products read where it lies: heads, broadcasts, rows of several dims; in how many launches."""

from __future__ import annotations

from typing import Any

import pytest
from plan_checks import check, launches, normal, temporaries

from kiln import ops
from kiln.passes.layout import Layout, Links, before_reshape, contiguous, resolve
from kiln.table.record import find


def _heads(x: Any) -> Any:
    """Heads of [b, s, h, d], where they lie."""
    return x.permute(0, 2, 1, 3)


def _later(x: Any) -> Any:
    """[b, s, k] from the third place of s on."""
    return find("slice")(x, 1, (2, 4, 1))


# function, arguments, launches, temporaries
PRODUCTS: dict[str, tuple[Any, tuple[Any, ...], int, int]] = {
    "batches": (lambda a, b: ops.bmm(a, b.permute(0, 2, 1)), (normal(2, 3, 5), normal(2, 4, 5)), 1, 0),
    "heads": (lambda a: _heads(a) @ _heads(a).permute(0, 1, 3, 2), (normal(2, 9, 3, 8),), 1, 0),
    "heads, a mask": (
        lambda a, m: (_heads(a) @ _heads(a).permute(0, 1, 3, 2)) * 0.5 + m,
        (normal(2, 9, 3, 8), normal(2, 1, 1, 9)),
        1,
        0,
    ),
    "heads computed": (
        lambda a, b: _heads(a) @ _heads(ops.relu(b)).permute(0, 1, 3, 2),
        (normal(2, 9, 3, 8), normal(2, 7, 3, 8)),
        1,
        0,
    ),
    "rows of two dims": (lambda a, w: a.permute(0, 2, 1) @ w, (normal(3, 7, 5), normal(7, 4)), 1, 0),
    "rows of two dims, linear": (
        lambda a, w, b: ops.gelu(ops.linear(_later(a), w, b)),
        (normal(3, 6, 7), normal(4, 7), normal(4)),
        1,
        0,
    ),
    "rows of two dims by a column": (
        lambda a, w: _later(a) @ w,
        (normal(3, 6, 600), normal(600)),
        1,
        0,
    ),
    "rows of three dims": (lambda a, w: _heads(a) @ w, (normal(2, 9, 3, 8), normal(8, 4)), 1, 0),
    "rows of two dims by a computed factor": (
        lambda a, w: a.permute(0, 2, 1) @ ops.gelu(w),
        (normal(3, 7, 5), normal(7, 4)),
        2,
        1,
    ),
    "rows of two dims in a batch": (
        lambda a, b: ops.bmm(
            a.permute(0, 2, 1, 3).reshape(a.shape[0], a.shape[2] * a.shape[1], a.shape[3]), b
        ),
        (normal(2, 5, 3, 7), normal(2, 7, 4)),
        1,
        0,
    ),
    "rows of three dims in a batch": (
        lambda a, b: ops.bmm(
            a.permute(0, 3, 2, 1, 4).reshape(a.shape[0], a.shape[3] * a.shape[2] * a.shape[1], a.shape[4]), b
        ),
        (normal(2, 3, 4, 5, 7), normal(2, 7, 4)),
        1,
        0,
    ),
    "rows of two dims in a batch of two": (
        lambda a, b: ops.bmm(
            a.permute(1, 0, 3, 2, 4).reshape(a.shape[1] * a.shape[0], a.shape[3] * a.shape[2], a.shape[4]),
            b,
        ),
        (normal(2, 3, 4, 5, 7), normal(6, 7, 4)),
        2,
        1,
    ),
    "rows of more dims than a batch has": (
        lambda a, w: a.permute(5, 4, 3, 2, 1, 0, 6) @ w,
        (normal(2, 3, 2, 3, 2, 2, 7), normal(7, 4)),
        2,
        1,
    ),
    "k of two dims": (
        lambda a, w: a.permute(0, 2, 1, 3).reshape(a.shape[0], a.shape[2], a.shape[1] * a.shape[3]) @ w,
        (normal(3, 5, 4, 2), normal(10, 4)),
        2,
        1,
    ),
    "heads of groups": (
        lambda q, k: q.permute(0, 2, 3, 1, 4) @ k.permute(0, 2, 3, 4, 1),
        (normal(2, 9, 3, 2, 4), normal(2, 7, 3, 1, 4)),
        1,
        0,
    ),
    "four dims of a batch": (
        lambda a, b: a @ b.permute(2, 3, 0, 1, 4, 5),
        (normal(2, 3, 2, 4, 5, 6), normal(2, 4, 2, 3, 6, 7)),
        1,
        0,
    ),
    "four dims of a batch, too many": (
        lambda a, b: a @ b.permute(3, 2, 1, 0, 4, 5),
        (normal(2, 3, 2, 4, 5, 6), normal(4, 2, 3, 2, 6, 7)),
        2,
        1,
    ),
    "a broadcast batch": (lambda a, b: a @ b, (normal(2, 1, 4, 5), normal(2, 3, 5, 6)), 1, 0),
    "a broadcast batch, one row": (lambda a, b: a @ b, (normal(2, 1, 1, 5), normal(2, 3, 5, 6)), 1, 0),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    """The interpreter's bits in the expected number of launches and temporaries."""
    function, arguments, expected, temps = PRODUCTS[name]
    plan = check(function, *arguments)
    assert (launches(plan), temporaries(plan)) == (expected, temps), plan.text()


def test_what_is_before_reshapes() -> None:
    """Also of something repeated along a first dim; not along another."""
    links, base, permuted = Links(), contiguous((2, 3, 4)), (1, 0, 2)
    transposed = links.make("permute", permuted, None, None)
    assert resolve(base, transposed) == Layout((3, 2, 4), (4, 12, 1), 0)

    def before(shape: Any, repeated: Any) -> Layout | None:
        chain = links.make("reshape", shape, None, links.make("expand", repeated, None, None))
        return before_reshape(base, links.make("permute", permuted, None, chain))

    assert before((1, 6, 4), (5, 6, 4)) == Layout((5, 3, 2, 4), (0, 4, 12, 1), 0)
    assert before((6, 1, 4), (6, 5, 4)) is None
    assert before((1, 1, 6, 4), (5, 7, 6, 4)) is None
