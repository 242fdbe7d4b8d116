"""GradScaler: losses times a power of two, so that small float16 gradients do not become zero."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from kiln import _core, ops
from kiln.autograd import no_grad
from kiln.device import device as device_of
from kiln.errors import warn
from kiln.table.callables import name_constructor

Tensor = _core.Tensor


class _Stage(Enum):
    """What has been done for an optimizer since the last update."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


class GradScaler:
    """Multiplies losses by a scale, divides gradients by it before a step, and finds a scale that works.

    scale(loss).backward()     gradients are `scale` times too large
    unscale_(optimizer)        divides them (only needed where they are read, as by clipping)
    step(optimizer)            unscales, then the optimizer's step; left out if a gradient is inf or NaN
    update()                   scale *= backoff_factor if one was; after growth_interval good steps in a row,
                               scale *= growth_factor

    The scale is a float32 tensor of shape (). `device` is "cpu"; for another device, which this machine has
    not, it warns and changes nothing. With enabled=False, scale and step do only what the names say.
    AssertionError for growth_factor <= 1 or backoff_factor >= 1.

    >>> import kiln
    >>> w = kiln.ones(2, requires_grad=True)
    >>> scaler, optimizer = kiln.amp.GradScaler("cpu", init_scale=8.0), kiln.optim.SGD([w], lr=1.0)
    >>> scaler.scale((w * 3).sum()).backward()
    >>> w.grad.tolist()
    [24.0, 24.0]
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> w.tolist(), scaler.get_scale()
    ([-2.0, -2.0], 8.0)
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._device = device
        self._enabled = enabled
        if enabled and device_of(device).type != "cpu":
            warn(f"GradScaler is enabled, but {device.upper()} is not available.  Disabling.")
            self._enabled = False
        if not self._enabled:
            return
        _expect(growth_factor > 1.0, "The growth factor must be > 1.0.")
        _expect(backoff_factor < 1.0, "The backoff factor must be < 1.0.")
        self._init_scale = init_scale
        self._init_growth_tracker = 0
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        # made at the first call of `scale`
        self._scale: Tensor | None = None
        self._growth_tracker: Tensor | None = None
        self._per_optimizer_states: dict[int, dict[str, Any]] = {}

    def scale(self, outputs: Any) -> Any:
        """A tensor, or each of a list, tuple or other iterable of tensors, times the scale.

        ValueError for anything else.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._begun()[0]
        if isinstance(outputs, Iterable):
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def _begun(self) -> tuple[Any, Any]:
        """The scale and the count of good steps, made if they are not there."""
        if self._scale is None or self._growth_tracker is None:
            self._scale = ops.full((), float(self._init_scale), dtype=_core.float32)
            self._growth_tracker = ops.full((), self._init_growth_tracker, dtype=_core.int32)
        return self._scale, self._growth_tracker

    def _of(self, optimizer: Any) -> dict[str, Any]:
        """What is known of an optimizer since the last update."""
        fresh = {"stage": _Stage.READY, "found_inf_per_device": {}}
        return self._per_optimizer_states.setdefault(id(optimizer), fresh)

    def _expect_begun(self, what: str) -> None:
        hint = "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the "
        hint += "iteration."
        _expect(self._scale is not None, f"Attempted {what} but _scale is None.  {hint}")

    @no_grad()
    def unscale_(self, optimizer: Any) -> None:
        """Divides the gradients of an optimizer's parameters by the scale, and looks whether all are finite.

        Once between two steps; RuntimeError otherwise. ValueError for float16 gradients, which hold no scaled
        value precisely: keep parameters in float32 and compute under autocast.
        """
        if not self._enabled:
            return
        self._expect_begun("unscale_")
        state = self._of(optimizer)
        if state["stage"] is _Stage.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        if state["stage"] is _Stage.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        state["found_inf_per_device"] = self._unscale(optimizer)
        state["stage"] = _Stage.UNSCALED

    def _unscale(self, optimizer: Any) -> dict[Any, Tensor]:
        """{device: 1.0 if a gradient was not finite}; empty if there is no gradient."""
        scale: Any = self._scale
        inverse = scale.double().reciprocal().float()
        grads = _grads(optimizer)
        if any(grad.dtype is _core.float16 for grad in grads):
            raise ValueError("Attempting to unscale FP16 gradients.")
        found = self._infinite(grads)
        for grad in grads:
            grad.mul_(inverse.to(grad.dtype))
        return found

    def _infinite(self, grads: list[Any]) -> dict[Any, Tensor]:
        """{device: 1.0 if a gradient is inf or NaN, else 0.0}; empty for no gradients."""
        if not grads:
            return {}
        finite = ops.stack([ops.isfinite(grad).all() for grad in grads]).all()
        return {self._begun()[0].device: ops.logical_not(finite).float()}

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """unscale_(optimizer) if it was not called, then optimizer.step(*args, **kwargs) if all gradients are
        finite. Gives what the step gives, None where it is left out. RuntimeError for a closure, and where
        step was called since the last update.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._expect_begun("step")
        state = self._of(optimizer)
        if state["stage"] is _Stage.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if state["stage"] is _Stage.READY:
            self.unscale_(optimizer)
        _expect(bool(state["found_inf_per_device"]), "No inf checks were recorded for this optimizer.")
        result = self._maybe_opt_step(optimizer, state, *args, **kwargs)
        state["stage"] = _Stage.STEPPED
        return result

    def _maybe_opt_step(self, optimizer: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The step, if no gradient is inf or NaN."""
        if any(found.item() for found in state["found_inf_per_device"].values()):
            return None
        return optimizer.step(*args, **kwargs)

    @no_grad()
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """A new scale: the one given, or by what the steps since the last update found."""
        if not self._enabled:
            return
        self._expect_begun("update")
        scale, good = self._begun()
        if new_scale is not None:
            if isinstance(new_scale, Tensor):
                fits = new_scale.numel() == 1 and not new_scale.requires_grad
                _expect(fits, "new_scale should be a float or a 1-element Tensor with requires_grad=False.")
            scale.copy_(new_scale) if isinstance(new_scale, Tensor) else scale.fill_(float(new_scale))
        else:
            found = [
                inf
                for state in self._per_optimizer_states.values()
                for inf in state["found_inf_per_device"].values()
            ]
            _expect(bool(found), "No inf checks were recorded prior to update.")
            self._adapt(scale, good, any(inf.item() for inf in found))
        self._per_optimizer_states.clear()

    def _adapt(self, scale: Any, good: Any, overflowed: bool) -> None:
        """A smaller scale after an overflow, a larger one after enough good steps."""
        if overflowed:
            scale.mul_(self._backoff_factor)
            good.zero_()
        elif good.item() + 1 == self._growth_interval:
            grown = scale * self._growth_factor
            if ops.isfinite(grown):
                scale.copy_(grown)
            good.zero_()
        else:
            good.add_(1)

    def _get_scale_async(self) -> Tensor | None:
        return self._scale

    def _check_inf_per_device(self, optimizer: Any) -> dict[Any, Tensor]:
        """Looks for inf and NaN without changing gradients; {device: 1.0 if there is one}."""
        infs = self._infinite(_grads(optimizer))
        self._of(optimizer)["found_inf_per_device"] = infs
        return infs

    def _found_inf_per_device(self, optimizer: Any) -> dict[Any, Tensor]:
        found: dict[Any, Tensor] = self._of(optimizer)["found_inf_per_device"]
        return found

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        tracker = self._growth_tracker
        return self._init_growth_tracker if tracker is None else int(tracker.item())

    def get_scale(self) -> float:
        """The scale as a number; 1.0 if scaling is off."""
        if not self._enabled:
            return 1.0
        return float(self._init_scale if self._scale is None else self._scale.item())

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by after `growth_interval` good steps."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Sets what get_growth_factor gives."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after a step with inf or NaN."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Sets what get_backoff_factor gives."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """After how many good steps in a row the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets what get_growth_interval gives."""
        self._growth_interval = new_interval

    def is_enabled(self) -> bool:
        """Whether losses are scaled."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The scale, the factors, the interval and the count of good steps; empty if scaling is off."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._get_growth_tracker(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what state_dict gave; nothing if scaling is off. RuntimeError for an empty one."""
        if not self._enabled:
            return
        if len(state_dict) == 0:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of "
                "GradScaler."
            )
        self._init_scale = state_dict["scale"]
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._init_growth_tracker = state_dict["_growth_tracker"]
        if self._scale is not None and self._growth_tracker is not None:
            self._scale.fill_(state_dict["scale"])
            self._growth_tracker.fill_(state_dict["_growth_tracker"])

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self._enabled:
            _expect(
                not self._per_optimizer_states,
                "A GradScaler instance may only be pickled at the beginning of an iteration, or at the end "
                "after scaler.update().",
            )
            state["_init_scale"] = self.get_scale()
            state["_init_growth_tracker"] = self._get_growth_tracker()
            state["_scale"] = state["_growth_tracker"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _grads(optimizer: Any) -> list[Any]:
    """The gradients of an optimizer's parameters that have one."""
    params = (param for group in optimizer.param_groups for param in group["params"])
    return [param.grad for param in params if param.grad is not None]


def _expect(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text)


name_constructor(GradScaler)
