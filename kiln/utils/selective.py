"""Checkpoints that keep some results: a policy says of each call whether backward finds its results or
computes them again.

    forward    the policy is asked after each call: results are kept, or only that there was a call
    again      the k-th call of a function finds what the k-th of forward left
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, NoReturn

from kiln._core import Tensor
from kiln.autograd import watch
from kiln.table.callables import name_helpers as _name_helpers
from kiln.utils._operators import Overload, Packet, called

Policy = Callable[..., Any]


class CheckpointPolicy(Enum):
    """What a policy says of a call's results: the SAVE ones are kept, all others are computed again.

    The offloading ones are computed again too: there is no other memory to put them into.
    """

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


class SelectiveCheckpointContext:
    """The first argument of a policy: `op_output` is what the operator gave, `is_recompute` always False."""

    def __init__(self, *, is_recompute: bool, op_output: Any = None) -> None:
        self.is_recompute, self.op_output = is_recompute, op_output


class _Kept(NamedTuple):
    """Results of a call, with their versions then, and what the call looked like."""

    results: tuple[Tensor, ...]
    versions: tuple[int, ...]
    looks: tuple[Any, ...]


class _Past(Enum):
    """What is left of a call without results."""

    AGAIN = 1
    TAKEN = 2


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _looks(handle: Any, operands: tuple[Any, ...], hidden: bool) -> tuple[Any, ...]:
    """What two calls must share for the results of one to stand for those of the other."""
    given = [(x.dtype, tuple(x.shape)) if isinstance(x, Tensor) else type(x) for x in operands]
    return (handle, hidden, *given)


class _Storage:
    """What forward leaves for running again: of each function its calls in turn."""

    def __init__(self, policy: Policy, allow_mutation: bool) -> None:
        self.policy, self.allow_mutation = policy, allow_mutation
        self.calls: dict[str, list[_Kept | _Past]] = defaultdict(list)
        self.again: dict[str, int] = {}

    def keep(self, name: str, handle: Any, operands: tuple[Any, ...], hidden: bool) -> watch.Answer:
        """Asks the policy when the call is over."""

        def over(results: tuple[Tensor, ...]) -> None:
            operator, args = called(name, operands, results)
            output = results if len(results) > 1 else results[0]
            said = self.policy(
                SelectiveCheckpointContext(is_recompute=False, op_output=output), operator, *args
            )
            saves = said in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE) or said is True
            versions = tuple(map(_version, results))
            kept = _Kept(tuple(x.detach() for x in results), versions, _looks(handle, operands, hidden))
            self.calls[name].append(kept if saves else _Past.AGAIN)

        return over

    def find(self, name: str, handle: Any, operands: tuple[Any, ...], hidden: bool) -> watch.Answer:
        """The results that are kept; None where the call is to run again."""
        at = self.again[name] = self.again.get(name, -1) + 1
        calls = self.calls.get(name, [])
        if at >= len(calls):
            _refuse(f"{name} (its call {at})")
        kept = calls[at]
        if kept is _Past.TAKEN:
            raise RuntimeError(
                "Trying to backward an extra time. You are only allowed to backward once on any region "
                "computed under selective activation checkpoint."
            )
        if not isinstance(kept, _Kept):
            return None
        if _looks(handle, operands, hidden) != kept.looks:
            _refuse(f"{name} of these shapes and dtypes")
        calls[at] = _Past.TAKEN
        if not self.allow_mutation and tuple(map(_version, kept.results)) != kept.versions:
            raise RuntimeError(
                "Tensor cached during selective activation checkpoint has been mutated: change a clone() "
                "instead, or pass allow_cache_entry_mutation=True"
            )
        return kept.results

    def begin_again(self) -> None:
        self.again = {}


def _refuse(call: str) -> NoReturn:
    raise RuntimeError(
        f"{call} encountered during backward but not found in storage: the function must make the same calls "
        "when it is run again"
    )


class _Again(watch.Asked):
    """The context of running again, which starts at the first calls each time."""

    def __init__(self, storage: _Storage) -> None:
        super().__init__(storage.find)
        self._storage = storage

    def __enter__(self) -> None:
        self._storage.begin_again()
        super().__enter__()


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Policy | list[Any], allow_cache_entry_mutation: bool = False
) -> tuple[Any, Any]:
    """The two context managers of a checkpoint's `context_fn` that keeps some results and not others.

    `policy(ctx, op, *args)` is asked after each operation but views and writes into tensors, which are done
    again: `op` is PyTorch's operator (`torch.ops.aten.mm.default`; of a Linear with bias `addmm`), and it
    gives a CheckpointPolicy, or True to keep. A list is of the operators to keep. What is kept is not
    computed again, and RuntimeError if it was written meanwhile, unless `allow_cache_entry_mutation`. Only
    one backward pass may go through. ValueError for a list of something else, TypeError for neither.

    >>> from functools import partial
    >>> from kiln.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
    >>> def policy(ctx, op, *args, **kwargs):
    ...     saves = str(op) == "aten.mm.default"
    ...     return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE
    >>> x, w = kiln.ones(2, 3), kiln.ones(3, 3, requires_grad=True)
    >>> contexts = partial(create_selective_checkpoint_contexts, policy)
    >>> checkpoint(lambda t: (t @ w).tanh().sum(), x, use_reentrant=False, context_fn=contexts).backward()
    >>> w.grad[0]
    tensor([0.0197, 0.0197, 0.0197])
    """
    if isinstance(policy_fn_or_list, list):
        for op in policy_fn_or_list:
            if not isinstance(op, Overload) or isinstance(op, Packet):
                raise ValueError(
                    f"Expected op in `op_list` to be an OpOverload but got: {op} of type {type(op)}; "
                    "torch.ops.aten.mm.default is one"
                )
        saved = frozenset(policy_fn_or_list)

        def policy(ctx: SelectiveCheckpointContext, op: Overload, *args: Any) -> bool:
            return op in saved

    elif callable(policy_fn_or_list):
        policy = policy_fn_or_list
    else:
        raise TypeError("policy_fn_or_list must be either a function or a list of ops.")
    storage = _Storage(policy, allow_cache_entry_mutation)
    return watch.Asked(storage.keep), _Again(storage)


_name_helpers(globals(), __name__)
