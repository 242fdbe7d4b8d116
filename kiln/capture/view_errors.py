"""Why a view may not be written in place, or may not follow what it views."""

# Of one of several views: what gave them, by the op that made it (of very many each has its own).
_GIVERS = {"select": "Unbind", "slice": "Split", "split_with_sizes": "SplitWithSizes"}


def view_error(name: str | None, output: int, made: str, what: str) -> str:
    """The sentence for output `output` of function `name` (None: of none with a derivative).

    `made` is how the view came to be, `what` who is modified: "is being" or "its base ... has been".
    """
    mode = "inference" if made == "inference" else "no_grad"
    which = "A view "
    if name is not None:
        title = _GIVERS.get(name) if made == "one_of_several" else "View" if name == "reshape" else None
        which = f"Output {output} of {title or name[0].upper() + name[1:]} is a view "
    if name is None or made in ("inference", "unrecorded"):
        view = "" if name is None else "of a view which "
        which += f"{view}was created in {mode} mode and {what} modified inplace with grad mode enabled. "
    else:
        which += f"and {what} modified inplace. "
    if made == "of_user":
        return which + (
            "This view was created inside a custom Function (or because an input was returned as-is) and "
            "following the change would override the function's own backward; clone() the output of the "
            "custom Function."
        )
    if made == "one_of_several":
        return which + (
            "This view is the output of a function that returns multiple views. Such functions do not allow "
            "the output views to be modified inplace. You should replace the inplace operation by an "
            "out-of-place one, or take the views one by one (x[0], x[1:3])."
        )
    block = "inference_mode" if made == "inference" else "no_grad"
    return which + (
        "Given that this use case is ambiguous and error-prone, it is forbidden. Do both, the view and the "
        f"write, inside the {block} block (if the write is not to be tracked) or outside (if it is)."
    )
