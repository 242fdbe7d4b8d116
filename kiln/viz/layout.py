"""Where boxes go: layers from top to bottom, few crossings, straight lines.

    1. layers    every box below all it is made of, inputs as near to their consumers as they can be
    2. lanes     an arrow that passes layers gets a lane in each: a thin box that keeps others away. Arrows
                 from one box share their lanes: a weight that is used in a hundred steps has one trunk
    3. order     in each layer by the mean place of neighbours, sweeping down and up; the order with the
                 fewest crossings stays
    4. places    each layer in turn takes the places nearest to its neighbours that keep order and distance
                 (least squares: neighbours that want the same place are pooled)
    5. curves    between two layers from place to place, through a layer straight down its lane

Everything is a loop over layers: no recursion, and time grows with boxes and lanes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

_GAP, _LANE_GAP = 22.0, 9.0  # between boxes, beside lanes
_SWEEPS_OF_ORDER, _SWEEPS_OF_PLACES = 12, 24
_MANY = 3000  # boxes and lanes: of more, fewer sweeps

Point = tuple[float, float]


class Link(NamedTuple):
    """An arrow: `port` is its place among those that reach the target, `exit` among those that leave."""

    source: int
    target: int
    port: int
    exit: int


class Layout(NamedTuple):
    """Centres of boxes; of each link its points: a start, then cubic curves of three points each."""

    centres: list[Point]
    curves: list[list[Point]]
    width: float
    height: float


class _Path(NamedTuple):
    """The items a link goes through, and how far right of the centres of its ends it leaves and enters."""

    items: list[_Item]
    leaving: float
    entry: float


class _Item:
    """A box, or a lane through a layer."""

    __slots__ = ("above", "below", "height", "lane", "layer", "place", "rank", "width", "x")

    def __init__(self, width: float, height: float, layer: int, lane: bool) -> None:
        self.width, self.height, self.layer, self.lane = width, height, layer, lane
        # neighbours in the next layers: (item, how far right of its centre, how far right of this centre,
        # weight)
        self.above: list[tuple[_Item, float, float, float]] = []
        self.below: list[tuple[_Item, float, float, float]] = []
        self.place = 0  # in its layer
        self.rank = 0.0
        self.x = 0.0


def place(sizes: Sequence[tuple[float, float]], links: Sequence[Link]) -> Layout:
    """Places boxes of these (width, height), which `links` join; links make no circle."""
    layers_of = _layers(len(sizes), links)
    items = [_Item(w, h, layer, False) for (w, h), layer in zip(sizes, layers_of)]
    paths = _lanes(items, links)
    rows = _rows(items)
    effort = min(1.0, _MANY / max(len(items), 1))
    _order(rows, max(2, int(_SWEEPS_OF_ORDER * effort)))
    _spread(rows, max(4, int(_SWEEPS_OF_PLACES * effort)))
    return _drawn(items, rows, paths, len(sizes))


# -- layers -------------------------------------------------------------------------------------------


def _layers(count: int, links: Sequence[Link]) -> list[int]:
    after: list[list[int]] = [[] for _ in range(count)]
    before: list[list[int]] = [[] for _ in range(count)]
    for link in links:
        after[link.source].append(link.target)
        before[link.target].append(link.source)
    missing = [len(sources) for sources in before]
    ordered = [k for k in range(count) if not missing[k]]
    layer = [0] * count
    for k in ordered:  # grows while it is walked
        for target in after[k]:
            layer[target] = max(layer[target], layer[k] + 1)
            missing[target] -= 1
            if not missing[target]:
                ordered.append(target)
    assert len(ordered) == count, "links make a circle"
    for k in reversed(ordered):  # as late as it costs no length
        if after[k] and len(after[k]) >= len(before[k]):
            layer[k] = min(layer[target] for target in after[k]) - 1
    return layer


# -- lanes --------------------------------------------------------------------------------------------


def _lanes(items: list[_Item], links: Sequence[Link]) -> list[_Path]:
    """The way of each link; lanes are added to `items`."""
    entries = _ports([(k.target, k.port) for k in links], [items[k.target].width for k in links])
    exits = _ports([(k.source, k.exit) for k in links], [items[k.source].width for k in links])
    lanes: dict[tuple[int, int, int], _Item] = {}
    joined: set[tuple[int, int]] = set()
    reached = {link.target for link in links}
    paths = []
    for link, entry, leaving in zip(links, entries, exits):
        first, last = items[link.source], items[link.target]
        path = [first]
        for layer in range(first.layer + 1, last.layer):
            key = (link.source, link.exit, layer)
            if key not in lanes:
                lanes[key] = _Item(2.0, 0.0, layer, True)
                items.append(lanes[key])
            path.append(lanes[key])
        path.append(last)
        paths.append(_Path(path, leaving, entry))
        satellite = link.source not in reached  # it comes to its consumer, not the consumer to it
        for a, b in zip(path, path[1:]):
            weight = 0.2 if satellite else 1.0 + (a.lane or b.lane)
            weight = 12.0 if a.lane and b.lane else weight  # lanes want to be straight
            here, there = 0.0 if a.lane else leaving, 0.0 if b.lane else entry
            if b.lane and (id(a), id(b)) in joined:
                continue  # the trunk is there already
            joined.add((id(a), id(b)))
            a.below.append((b, there, here, weight))
            b.above.append((a, here, there, weight))
    return paths


def _ports(ends: list[tuple[int, int]], widths: list[float]) -> list[float]:
    """How far right of the box's centre each link meets it, by the order of its port there."""
    of_box: dict[int, set[int]] = {}
    for box, port in ends:
        of_box.setdefault(box, set()).add(port)
    rank = {box: {port: k for k, port in enumerate(sorted(ports))} for box, ports in of_box.items()}
    offsets = []
    for (box, port), width in zip(ends, widths):
        count = len(rank[box])
        room = min(0.72 * width, 28.0 * (count - 1))
        offsets.append(room * (rank[box][port] / (count - 1) - 0.5) if count > 1 else 0.0)
    return offsets


# -- order --------------------------------------------------------------------------------------------


def _rows(items: list[_Item]) -> list[list[_Item]]:
    """The layers, ordered as a walk up from the results meets them, arguments from left to right."""
    rows: list[list[_Item]] = [[] for _ in range(max((item.layer for item in items), default=-1) + 1)]
    seen: set[int] = set()
    starts = [item for item in items if not item.below]
    waiting = list(reversed(starts))
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        rows[item.layer].append(item)
        waiting += [n[0] for n in sorted(item.above, key=lambda n: -n[2])]
    for row in rows:
        _number(row)
    return rows


def _number(row: list[_Item]) -> None:
    for k, item in enumerate(row):
        item.place = k


def _order(rows: list[list[_Item]], sweeps: int) -> None:
    best, fewest = [list(row) for row in rows], _crossings(rows)
    for sweep in range(sweeps):
        down = sweep % 2 == 1
        for row in rows if down else reversed(rows):
            for item in row:
                near = item.above if down else item.below
                # the place of a neighbour, and a little of where on it the link ends
                near_at = [n[0].place + n[1] / (n[0].width + 1.0) for n in near]
                item.rank = sum(near_at) / len(near_at) if near_at else float(item.place)
            row.sort(key=lambda item: item.rank)
            _number(row)
        if (count := _crossings(rows)) < fewest:
            best, fewest = [list(row) for row in rows], count
    for row, kept in zip(rows, best):
        row[:] = kept
        _number(row)


def _crossings(rows: list[list[_Item]]) -> int:
    """How many pairs of links cross."""
    total = 0
    for row in rows:
        ends = [
            (item.place + n[2] / (item.width + 1.0), n[0].place + n[1] / (n[0].width + 1.0))
            for item in row
            for n in item.below
        ]
        total += _inversions([there for _, there in sorted(ends)])
    return total


def _inversions(values: list[float]) -> int:
    """How many pairs stand in the wrong order, counted with a tree of counts."""
    known = sorted(set(values))
    tree = [0] * (len(known) + 1)
    total = 0
    for seen, value in enumerate(values):
        at = bisect_left(known, value) + 1
        smaller, k = 0, at
        while k:
            smaller += tree[k]
            k &= k - 1
        total += seen - smaller
        k = at
        while k < len(tree):
            tree[k] += 1
            k += k & -k
    return total


# -- places -------------------------------------------------------------------------------------------


def _distance(left: _Item, right: _Item) -> float:
    gap = _LANE_GAP if left.lane or right.lane else _GAP
    return (left.width + right.width) / 2 + gap


def _spread(rows: list[list[_Item]], sweeps: int) -> None:
    for row in rows:
        x = 0.0
        for k, item in enumerate(row):
            x += _distance(row[k - 1], item) if k else 0.0
            item.x = x
        for item in row:
            item.x -= x / 2
    for sweep in range(sweeps):
        last = sweep >= sweeps // 2
        for row in rows if sweep % 2 else reversed(rows):
            _settle(row, sweep % 2 == 1, last)


def _settle(row: list[_Item], down: bool, both: bool) -> None:
    """Moves a layer to where its neighbours above (or below; or `both`) want it."""
    wanted, weights, offsets = [], [], []
    offset = 0.0
    for k, item in enumerate(row):
        offset += _distance(row[k - 1], item) if k else 0.0
        near = item.above + item.below if both else (item.above if down else item.below)
        near = near or item.above or item.below
        total = sum(n[3] for n in near)
        pull = sum((n[0].x + 0.3 * (n[1] - n[2])) * n[3] for n in near)
        wanted.append((pull / total if total else item.x) - offset)
        weights.append(total or 0.01)
        offsets.append(offset)
    for item, x, at in zip(row, _ascending(wanted, weights), offsets):
        item.x = x + at


def _ascending(wanted: list[float], weights: list[float]) -> list[float]:
    """The ascending numbers nearest to `wanted` by weighted squares: those in the wrong order are pooled."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(wanted, weights):
        count = 1
        while pools and pools[-1][0] > value:
            mean, mass, members = pools.pop()
            value = (value * weight + mean * mass) / (weight + mass)
            weight, count = weight + mass, count + members
        pools.append((value, weight, count))
    return [mean for mean, _, count in pools for _ in range(count)]


# -- curves -------------------------------------------------------------------------------------------


def _drawn(items: list[_Item], rows: list[list[_Item]], paths: list[_Path], boxes: int) -> Layout:
    left = min((item.x - item.width / 2 for item in items), default=0.0)
    right = max((item.x + item.width / 2 for item in items), default=0.0)
    bands: list[tuple[float, float]] = []  # top and bottom of each layer
    for k, row in enumerate(rows):
        top = bands[-1][1] + _between(rows[k - 1]) if k else 0.0
        bands.append((top, top + max(item.height for item in row)))
    curves = [_curve(path, bands, left) for path in paths]
    centres = [(item.x - left, sum(bands[item.layer]) / 2) for item in items[:boxes]]
    return Layout(centres, curves, right - left, bands[-1][1] if bands else 0.0)


def _between(row: list[_Item]) -> float:
    """The height of the gap below a layer: more where links go far to the side."""
    far = max((abs(n[0].x + n[1] - item.x - n[2]) for item in row for n in item.below), default=0.0)
    return min(30.0 + 0.08 * far, 80.0)


def _curve(path: _Path, bands: list[tuple[float, float]], left: float) -> list[Point]:
    """Down from the source, across each gap, straight through each lane, into the target."""
    source, target = path.items[0], path.items[-1]
    x = source.x + path.leaving - left
    points = [(x, sum(bands[source.layer]) / 2 + source.height / 2)]
    for a, b in zip(path.items, path.items[1:]):
        low, high = bands[a.layer][1], bands[b.layer][0]
        if points[-1][1] < low - 0.1:
            points += _straight(points[-1], (x, low))
        bend, after = (high - low) / 2, b.x + (path.entry if b is target else 0.0) - left
        points += [(x, low + bend), (after, high - bend), (after, high)]
        x = after
    end = sum(bands[target.layer]) / 2 - target.height / 2
    return points + (_straight(points[-1], (x, end)) if end > points[-1][1] + 0.1 else [])


def _straight(start: Point, end: Point) -> list[Point]:
    return [start, end, end]
