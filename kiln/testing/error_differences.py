"""What errors and warnings differ in on purpose, and why; the scan reports what it no longer meets."""

from __future__ import annotations

# (path, finding, why): regular expressions; the path from its beginning, the finding anywhere.
UNNAMED: list[tuple[str, str, str]] = [
    ("nn.(MultiheadAttention|Transformer)", "internal AssertionError", "PyTorch's type here, raised on purpose"),
    ("(Tensor|get_|is_|can_cast|promote_types)", "(inside|unnamed) TypeError", "told by the core or by Python, of one argument"),
]
KNOWN: list[tuple[str, str, str]] = [
    ("", "refuses: RuntimeError: .*(output with shape|expanded size|single memory location)", "out= is not resized"),
    ("", "takes what .*argument 'out' must be Tensor, not (list|tuple)", "out= may stand in a list"),
    ("", "takes what .*unexpected keyword argument 'out'", "more functions take out="),
    ("", r"takes what .*(Expected out tensor|got \(.*out=|desired output type|same scalar type|output tensor's dtype)",
     "out= takes what it can hold"),
    ("", "takes what .*the written-to tensor (refer|refers)", "overlapping memory: all is read before it is written"),
    ("", "takes what .*must be Tensor, not (float|int|bool|NoneType)", "a number may stand for a tensor"),
    ("", "takes what .*argument '?(dtype|[^ ]*dtype).*must be torch.dtype, not (str|type)", "a dtype may be given by its name"),
    ("", "takes what .*must be (int|float|bool|Number|tuple of ints)[^,]*, not (bool|int|float|NoneType)", "numbers of Python stand for each other"),
    ("", "takes what .*NotImplementedError.*not implemented for", "of more dtypes"),
    ("", "refuses: NotImplementedError: .*not implemented for", "PyTorch looks at the dtype only where there are elements"),
    ("", "refuses: ImportError", "an optional package"),
    ("", "warns not; PyTorch: ..UserWarning", "PyTorch warns of its future, of its speed and of out= that it resizes"),
]
