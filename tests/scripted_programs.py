"""Functions whose branches and loops depend on values, each with calls that take its different ways.

A list is a tensor (of floats or ints), `Py(x)` is x itself. `T` is kiln, or what the answers are of.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import kiln

T: Any = kiln
CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {}


class Py(NamedTuple):
    """An argument that is no tensor."""

    value: Any


def case(*calls: Any) -> Any:
    """Adds a function with the arguments of its calls."""

    def add(f: Any) -> Any:
        CASES[f.__name__] = f, calls
        return f

    return add


# -- if ---------------------------------------------------------------------------------------------


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def if_else(x):
    if x.sum() > 0:
        y = x * 2
    else:
        y = -x
    return y + 1


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def if_alone(x):
    if x.sum() > 0:
        x = x * 2
    return x


@case(([1.0],), ([20.0],), ([-3.0],), ([0.0],))
def elif_chain(x):
    if x > 10:
        y = x / 10
    elif x > 0:
        y = x * 2
    elif x == 0:
        y = x + 5
    else:
        y = x * x
    return y


@case(([1.0, 2.0], [3.0, 4.0]), ([-1.0, 2.0], [-3.0, 4.0]), ([-1.0, -2.0], [3.0, 4.0]))
def nested_if(x, y):
    if x[0] > 0:
        if y[0] > 0:
            z = x + y
        else:
            z = x - y
    else:
        if y.sum() > 2:
            z = x * y
        else:
            z = x / y
    return z


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def two_names(x):
    a, b = x, x * 3
    if x.mean() > 0:
        a, b = b, a
    return a - b, a * b


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def branch_calls_softmax(x):
    if x.max() > 0:
        return x.softmax(0)
    return x.log_softmax(0)


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def if_item(x):
    if x.sum().item() > 0:
        return x * 2
    return x * 3


@case(([1.0, 2.0],), ([-1.0, -2.0],), ([0.0, 0.0],))
def if_tensor_itself(x):
    s = x.sum()
    if s:
        return x / s
    return x


@case(([1.0, 2.0], Py(True)), ([1.0, 2.0], Py(False)), ([-1.0, 2.0], Py(True)))
def if_python_and_tensor(x, flag):
    if flag and x[0] > 0:
        return x + 1
    return x - 1


@case(([True],), ([False],))
def if_bool_tensor(c):
    return 1 if c else 2


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def temporaries_of_other_shapes(x):
    if x.sum() > 0:
        t = x.unsqueeze(0)
        y = t.sum()
    else:
        t = x.repeat(2)
        y = t.mean()
    return y


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def string_in_python(x):
    mode = "double"
    if x.sum() > 0:
        y = x * (2 if mode == "double" else 3)
    else:
        y = x
    return y


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def numbers_in_branches(x):
    if x.sum() > 0:
        k = 2
    else:
        k = 3
    return x * k, k


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def floats_in_branches(x):
    k = 0.1 if x.sum() > 0 else 0.3
    return x * k + k, k


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def tuple_in_branches(x):
    if x.sum() > 0:
        p = (x, x + 1)
    else:
        p = (x - 1, x)
    a, b = p
    return a * b, p


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def dict_in_branches(x):
    d = {"a": x, "b": 1}
    if x.sum() > 0:
        d = {"a": x * 2, "b": 2}
    return d["a"] * d["b"], d


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def dict_item_set(x):
    d = {"a": x}
    if x.sum() > 0:
        d["a"] = x * 2
    return d["a"] + 1


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def list_item_set(x):
    items = [x, x + 1, x + 2]
    if x.sum() > 0:
        items[1] = x * 10
    else:
        items[2] = x * 20
    return items[0] + items[1] * items[2]


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def both_append(x):
    items = [x]
    if x.sum() > 0:
        items.append(x * 2)
    else:
        items.append(x * 3)
    return T.stack(items)


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def new_list_in_branch(x):
    if x.sum() > 0:
        parts = []
        for i in range(3):
            parts.append(x * i)
        y = T.stack(parts).sum(0)
    else:
        y = x
    return y


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def write_in_branch(x):
    y = x.clone()
    if x.sum() > 0:
        y[0] = 5.0
        y *= 2
    else:
        y.add_(1)
    return y


@case(([1.0, 2.0, 3.0],), ([-1.0, -2.0, -3.0],))
def write_view_in_branch(x):
    y = x * 1
    v = y[1:]
    if x.sum() > 0:
        v.mul_(3)
    return y + 0, v + 1


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def if_expression(x):
    return (x * 2 if x.sum() > 0 else x / 2) + 1


@case(([1.0, 2.0],), ([-1.0, -2.0],), ([-1.0, 3.0],))
def nested_if_expression(x):
    return x if x[0] > 0 else (x * 2 if x[1] > 0 else x * 3)


@case(([1.0, 2.0],), ([-1.0, -2.0],), ([5.0, -2.0],))
def and_or(x):
    a = x[0] > 0 and x[1] > 0
    b = x[0] > 0 or x[1] > 0
    if a:
        return x + 1
    if b:
        return x + 2
    return x + 3


@case(([1.0, 2.0],), ([-1.0, -2.0],), ([5.0, -2.0],))
def not_in(x):
    if not (x[0] > 0 and not x[1] > 0):
        return x + 1
    return x - 1


@case(([1.0],), ([3.0],), ([7.0],))
def chained(x):
    if 2 < x < 5:
        return x * 10
    return x


@case(([1.0, 2.0, 3.0],), ([3.0, 2.0, 1.0],), ([1.0, 3.0, 2.0],))
def chained_three(x):
    return x * 2 if x[0] < x[1] < x[2] else x


@case(([2.0, 4.0],), ([0.0, 1.0],))
def and_gives_operand(x):
    return x[0] and x[1]


@case(([2.0, 4.0],), ([0.0, 1.0],))
def or_gives_operand(x):
    return x[0] or x[1]


@case(([1.0, 2.0],), ([-1.0, 0.0],))
def contains_tensor(x):
    return 1 if 2.0 in x else 0


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def walrus(x):
    if (s := x.sum()) > 0:
        return s * 2
    return s


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def no_grad_inside(x):
    if x.sum() > 0:
        with T.no_grad():
            y = x * 2
        return y * x
    return x * x


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def detach_inside(x):
    if x.sum() > 0:
        return x.detach() * x
    return x


# -- return -----------------------------------------------------------------------------------------


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def early_return(x):
    if x.sum() > 0:
        return x * 2
    y = x - 1
    return y * y


@case(([1.0],), ([15.0],), ([-3.0],), ([200.0],))
def many_returns(x):
    if x < 0:
        return -x
    if x < 10:
        y = x * 2
        if y > 15:
            return y
    else:
        y = x / 2
        if y > 50:
            return y * 0
    return y + 1


@case(([1.0],), ([15.0],), ([-3.0],))
def return_in_one_of_three(x):
    if x < 0:
        x = x * 2
    elif x < 10:
        return x
    else:
        x = x * 3
    return x + 1


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def return_tuple(x):
    if x.sum() > 0:
        return x, 1
    return x * 2, 2


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def return_dict(x):
    if x.sum() > 0:
        return {"a": x, "n": 1.5}
    return {"a": x * 2, "n": 2.5}


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def return_bool(x):
    return bool(x.sum() > 0)


@case(([1.0, 2.0],), ([-4.0, 2.0],))
def return_numbers(x):
    return x.sum().item(), int(x[0]), float(x[1]), bool(x[0] > 0), len(x)


@case(([3.0],), ([-3.0],))
def return_in_with(x):
    with T.no_grad():
        if x > 0:
            return x * 2
    return x


@case(([1.0, 2.0, 3.0],), ([-1.0, 5.0, 3.0],), ([-1.0, -5.0, -3.0],))
def return_in_loop(x):
    for v in x:
        if v > 0:
            return v
    return x.sum()


@case(([1.0],), ([5.0],), ([100.0],))
def return_in_while(x):
    while True:
        if x > 50:
            return x
        x = x * 3


@case(([1.0],), ([5.0],), ([100.0],))
def return_in_while_condition(x):
    n = 0
    while x < 1000:
        x = x * 2 + 1
        n += 1
        if n > 5:
            return x - n
    return x


# -- while ------------------------------------------------------------------------------------------


@case(([1.0],), ([500.0],), ([2000.0],))
def while_simple(x):
    while x < 1000:
        x = x * 2
    return x


@case(([1.0, 2.0],), ([5000.0, 0.0],))
def while_counts(x):
    n = 0
    while x.sum() < 1000:
        x = x * 2
        n += 1
    return x, n


@case(([27],), ([1],), ([6],))
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@case(([10.0],), ([2.0],))
def newton(a):
    x = a / 2
    while (x * x - a).abs() > 1e-4:
        x = (x + a / x) / 2
    return x


@case(([10.0],), ([2.0],))
def while_break(x):
    n = 0
    while True:
        x = x - 1.5
        n += 1
        if x < 0:
            break
    return x, n


@case(([10.0],), ([2.0],), ([3.0],))
def while_continue(x):
    n = 0
    t = x * 0
    while n < x:
        n += 1
        if n % 2 == 0:
            continue
        t = t + n
    return t, n


@case(([10.0],), ([2.0],))
def while_else(x):
    n = 0
    while n < x:
        n += 1
        if n == 5:
            break
    else:
        n = n * 100
    return n


@case(([3],), ([0],), ([6],))
def nested_while(n):
    total = 0
    i = 0
    while i < n:
        j = 0
        while j < i:
            total = total + j
            j += 1
        i += 1
    return total


@case(([3],), ([0],), ([6],))
def python_bound_while(n):
    i = 0
    x = n * 2
    while i < 4:
        if x > 3:
            x = x - 3
        i += 1
    return x, i


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def while_two_conditions(x):
    i = 0
    while i < 5 and x.sum() > 0:
        x = x - 0.5
        i += 1
    return x, i


@case(([6, 4],), ([35, 21],), ([7, 1],))
def gcd(x):
    a, b = x[0], x[1]
    while b != 0:
        a, b = b, a % b
    return a


@case(([1.0],), ([3.0],))
def while_swap(x):
    a, b = x, x + 1
    i = 0
    while i < x:
        a, b = b, a
        i = i + 1
    return a - 2 * b


@case(([5.0],), ([0.0],))
def while_tuple_state(x):
    s = (x, x * 2)
    while s[0] > 0:
        s = (s[0] - 1, s[1] + s[0])
    return s


@case(([5.0],), ([0.0],))
def while_dict_state(x):
    s = {"a": x, "b": x * 2}
    while s["a"] > 0:
        s = {"a": s["a"] - 1, "b": s["b"] + s["a"]}
    return s["b"]


@case(([5.0],), ([0.0],))
def while_list_item(x):
    s = [x, x * 2]
    while s[0] > 0:
        s[0] = s[0] - 1
        s[1] = s[1] + s[0]
    return s[1]


@case(([5.0, 1.0],), ([0.0, 1.0],))
def while_in_place(x):
    y = x.clone()
    while y[0] > 0:
        y.sub_(1)
        y[1] = y[1] + 3
    return y


@case(([3],), ([0],), ([8],))
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


# -- for --------------------------------------------------------------------------------------------


@case(([3],), ([0],), ([8],))
def range_of_tensor(n):
    s = 0
    for i in range(n):
        s = s + i
    return s


@case(([3],), ([0],), ([8],))
def range_three(n):
    s = 0
    for i in range(2, n, 2):
        s += i * i
    return s


@case(([3],), ([0],), ([8],))
def range_down(n):
    s = 0
    for i in range(n, 0, -1):
        s = s * 2 + i
    return s


@case(([3], [1.0, 2.0]), ([0], [1.0, 2.0]))
def range_of_int(n, x):
    for i in range(int(n)):
        x = x * 2 + i
    return x


@case(([1.0, 2.0, 3.0],), ([-1.0, 2.0, -3.0],))
def for_rows(x):
    s = x[0] * 0
    for v in x:
        if v > 0:
            s = s + v
        else:
            s = s - 2 * v
    return s


@case(([1.0, 2.0, 30.0, 4.0],), ([100.0, 2.0, 3.0, 4.0],), ([1.0, 2.0, 3.0, 4.0],))
def for_break(x):
    s = x[0] * 0
    n = 0
    for v in x:
        if v > 10:
            break
        s = s + v
        n += 1
    return s, n


@case(([1.0, 2.0, 30.0, 4.0],), ([100.0, 2.0, 3.0, 4.0],), ([1.0, 2.0, 3.0, 4.0],))
def for_continue_else(x):
    s = x[0] * 0
    for v in x:
        if v > 10:
            continue
        if v == 4:
            break
        s = s + v
    else:
        s = s + 1000
    return s


@case(([1.0, 2.0, 3.0],), ([-1.0, 2.0, -3.0],))
def enumerate_zip(x):
    s = x[0] * 0
    for i, (a, b) in enumerate(zip(x, x * 2)):
        if a > 0:
            s = s + i * b
    return s


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def list_grows(x):
    out = []
    for i in range(4):
        if x.sum() > 0:
            x = x - 1
        out.append(x * i)
    return T.stack(out)


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def dict_grows(x):
    out = {}
    for k in ("a", "b", "c"):
        if x.sum() > 0:
            x = x - 1
        out[k] = x
    return sum(out.values())


@case(([3], [5]), ([0], [5]), ([5], [0]))
def nested_ranges(n, m):
    s = 0
    for i in range(n):
        for j in range(m):
            if (i + j) % 2 == 0:
                s += i * j
    return s


@case(([3],), ([5],), ([20],))
def break_of_range(n):
    s = 0
    for i in range(n):
        if s > 20:
            break
        s += i
    return s


@case(([1.0, 2.0, 3.0],), ([3.0, 2.0, 1.0],))
def rnn_cell(x):
    h = x[0] * 0
    for v in x:
        h = T.tanh(h * 0.5 + v)
        if h > 0.98:
            h = h * 0.1
    return h


@case(([4], [1.0, 2.0, 3.0, 4.0, 5.0]), ([0], [1.0, 2.0, 3.0, 4.0, 5.0]))
def index_by_counter(n, x):
    s = x[0] * 0
    for i in range(n):
        s = s + x[i] * i
    return s


@case(([4],), ([0],))
def write_by_counter(n):
    y = T.zeros(5)
    for i in range(n):
        y[i] = i * 1.5
    return y


@case(([5, 2, 9, 1],), ([1, 2, 3, 4],), ([4, 3, 2, 1],))
def bubble_sort(x):
    y = x.clone()
    n = 4
    for i in range(n):
        for j in range(n - 1 - i):
            if y[j] > y[j + 1]:
                t = y[j].clone()
                y[j] = y[j + 1]
                y[j + 1] = t
    return y


@case(([1, 3, 5, 7, 9], [7]), ([1, 3, 5, 7, 9], [1]), ([1, 3, 5, 7, 9], [4]))
def binary_search(x, key):
    low, high = 0, len(x) - 1
    while low <= high:
        mid = (low + high) // 2
        if x[mid] == key:
            return mid
        if x[mid] < key:
            low = mid + 1
        else:
            high = mid - 1
    return -1


# -- numbers ----------------------------------------------------------------------------------------


@case(([7.0],), ([-7.5],))
def number_arithmetic(x):
    a = x.item()
    b = int(x)
    return a + 1, a * 2.5, b // 2, b % 3, b / 2, a - b, -a, abs(b), b**2


@case(([7.0, 1.0],), ([-7.5, 2.0],))
def number_beside_tensor(x):
    a = x[0].item()
    k = int(x[0])
    return x * a, x + k, a - x, k / x, x > a, x * (a > 0)


@case(([2, 3],), ([5, -3],))
def int_tensor_with_numbers(x):
    k = int(x[0])
    f = float(x[1])
    return x + k, x * 2.5, x * f, x // 2, x % k, x / k


@case(([2.6],), ([-2.4],), ([2.5],))
def rounding(x):
    a = x.item()
    return int(a), round(a), math.floor(a), math.ceil(a), math.trunc(a), int(round(a * 3))


@case(([2.0, 5.0, 3.0],), ([-2.0, 1.0, -3.0],))
def min_max(x):
    a, b, c = x[0], x[1], x[2]
    return min(a, b), max(a, b, c), min(int(a), int(c)), max(a.item(), 2.0), max([a, b, c])


@case(([2.0, 5.0, 3.0],), ([-2.0, 1.0, -3.0],))
def any_all_sum(x):
    return any(v > 4 for v in x), all(v > 0 for v in x), sum(v * 2 for v in x), any([x[0] > 0, x[1] < 0])


@case(([2.0],), ([9.0],))
def sqrt_of_number(x):
    return math.sqrt(x.item()) * 2


@case(([2.0],), ([-9.0],))
def comparisons_as_values(x):
    a = x.item() > 0
    b = not a
    return a, b, a == b, a and not b, int(a) + 1


@case(([3],), ([4],))
def even_or_odd(n):
    k = int(n)
    return "odd" if False else k * 2 if k % 2 == 0 else k * 3


@case(([3.0, 4.0],))
def tensor_of_numbers(x):
    return T.tensor(x[0].item()) + T.tensor([x[0].item(), x[1].item()])


@case(([3.0, 4.0],), ([-3.0, 4.0],))
def clamp_with_number(x):
    return x.clamp(min=x[0].item() / 2), T.full((2,), x[0].item()) * 2


@case(([3.0, 4.0],), ([-3.0, 4.0],))
def isinstance_kept(x):
    n = int(x[0])
    if isinstance(x, T.Tensor) and isinstance(n, int) and not isinstance(n, float):
        return n + 1
    return n


@case(([1.0, 2.0],), ([1.0, 3.0],))
def equal_allclose(x):
    y = T.ones(2) * x[0]
    y[1] = 2.0
    return T.equal(x, y), T.allclose(x, y), x.tolist()


@case(([2, 0, 1],), ([1, 1, 1],))
def list_by_position(i):
    items = [10, 20, 30]
    return items[i[0]] + items[int(i[1])] * items[i[2]]


# -- functions --------------------------------------------------------------------------------------


def _helper(x, scale=2.0, *, shift=0):
    if x.sum() > 0:
        return x * scale + shift
    return x / scale - shift


def _sign(v):
    if v > 0:
        return 1
    elif v < 0:
        return -1
    return 0


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def calls_helper(x):
    return _helper(x) + _helper(-x, 3.0, shift=1)


@case(([1.0, 0.0, -3.0],), ([0.0, 5.0, 2.0],))
def helper_in_comprehension(x):
    return sum([_sign(v) for v in x]), [_sign(v) * v for v in x]


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def local_function(x):
    def inner(y):
        if y.sum() > 0:
            return y + x
        return y - x

    return inner(x * 2) * inner(-x)


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def lambda_inside(x):
    f = lambda v: v * 2 if v.sum() > 0 else v * 3  # noqa: E731
    return f(x) + f(-x)


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def closure_nonlocal(x):
    count = x * 0

    def add(v):
        nonlocal count
        if v.sum() > 0:
            count = count + v
        else:
            count = count - v

    add(x)
    add(-x * 2)
    return count


def _power(x, n):
    return x if n == 1 else x * _power(x, n - 1)


@case(([1.0, 2.0], Py(3)), ([1.0, 2.0], Py(1)))
def recursion_python(x, n):
    return _power(x, n)


def _count_down(n, depth):
    if n <= 0:
        return n * 0
    if depth == 6:
        return n
    return _count_down(n - 1, depth + 1) + 1


@case(([3],), ([0],), ([20],))
def recursion_bounded(n):
    return _count_down(n, 0)


@case(([3.0, -4.0],), ([-3.0, 4.0],))
def map_and_partial(x):
    scaled = functools.partial(_helper, scale=4.0)
    return list(map(scaled, [x, -x])), functools.reduce(
        lambda a, b: a + b if a > b else a - b, [x[0], x[1], x[0]]
    )


@case(([1.0, 2.0], Py([1, 2, 3])), ([-1.0, -2.0], Py([])))
def python_list_argument(x, ks):
    for k in ks:
        if x.sum() > 0:
            x = x - k
        else:
            x = x + k
    return x


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def default_none(x, y=None):
    if y is None:
        y = x * 2
    if y.sum() > 0:
        return y
    return x


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def star_arguments(*xs, **named):
    def inner(a, *rest, scale=1, **more):
        return a * scale if a.sum() > 0 else a

    return inner(*xs, scale=3, **named)


Pair = namedtuple("Pair", "a b")


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def named_tuple(x):
    p = Pair(x, x * 2)
    if x.sum() > 0:
        p = Pair(p.b, p.a)
    return p.a - p.b


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def ordered_dict(x):
    d = OrderedDict()
    d["x"] = x
    d["y"] = x + 1
    s = x * 0
    for k, v in d.items():
        if v.sum() > 1:
            s = s + v
        elif k == "x":
            s = s - v
    return s


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def python_try(x):
    try:
        y = {"a": x}["b"]
    except KeyError:
        y = x * 2
    finally:
        x = x + 1
    if y.sum() > 0:
        return y
    return x


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def try_in_branch(x):
    if x.sum() > 0:
        try:
            y = int("no") * x
        except ValueError:
            y = x * 7
    else:
        y = x
    return y


class Box:
    """An object of the program."""

    def __init__(self, x):
        self.x = x
        self.n = 0

    def step(self):
        if self.x.sum() > 0:
            self.x = self.x - 1
            self.n += 1
        else:
            self.x = self.x * 2
        return self.x


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def object_with_state(x):
    box = Box(x)
    box.step()
    box.step()
    return box.x, box.n


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def annotations(x: Any, k: int = 2):
    y: Any = x
    n: int = 0
    if x.sum() > 0:
        n = k
        y = x * n
    return y, n


@case(([1.0, 2.0, 3.0],), ([-1.0, -2.0, 3.0],))
def slices_and_views(x):
    a, b = x[:2], x[1:]
    if a.sum() > 0:
        a = a * 2
    return a + b, x[-1], x[..., 0], x[None, 1:]


@case(([[1.0, 2.0], [3.0, 4.0]],), ([[1.0, -2.0], [-3.0, 4.0]],))
def matrix(x):
    if x[0, 1] * x[1, 0] > 0:
        return x @ x
    return x.t() @ x


@case(([[1.0, 2.0], [3.0, 4.0]],), ([[1.0, -2.0], [-3.0, 4.0]],))
def power_iteration(x):
    v = T.ones(2)
    change = v.sum()
    while change > 1e-2:
        w = x.matmul(v)
        w = w / w.abs().max()
        change = (w - v).abs().max().clamp(max=0.5) * 0.5
        v = w if change > 1e-2 else v
    return v


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def unused_results(x):
    if x.sum() > 0:
        a = x * 2
        b = a + 1
    else:
        a = x
        b = x - 1
    del a
    return b


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def pass_and_docstring(x):
    """A docstring."""
    if x.sum() > 0:
        pass
    else:
        x = x - 1
    return x


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def falls_off_the_end(x):
    y = x
    if x.sum() > 0:
        y = x * 2
    y = y + 1


@case(([5, 3],), ([2, 8],))
def int_state(x):
    a = int(x[0])
    b = int(x[1])
    while a > 0 and b > 0:
        if a > b:
            a -= b
        else:
            b -= a
    return a + b


@case(([0.5, 1.5],), ([5.0, 1.5],))
def float_accumulator(x):
    total = 0.0
    n = 0
    while total < 3:
        total += x[0].item()
        n += 1
    return total, n


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def half_precision(x):
    h = x.half()
    if h.sum() > 0:
        h = h.softmax(0) * 0.1
    else:
        h = h * h.sum().item()
    return h.float()


@case(([1.0, 2.0],), ([-1.0, -2.0],))
def branch_changes_python_number_twice(x):
    k = 1
    if x[0] > 0:
        k += 1
    if x[1] > 0:
        k *= 3
    return x * k


@case(([3.0],), ([-3.0],))
def flag_variable(x):
    done = False
    n = 0
    while not done:
        x = x - 1
        n += 1
        if x < 0:
            done = True
    return n, done
