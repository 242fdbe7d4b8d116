"""What errors and warnings differ in on purpose, and why; the scan reports what it no longer meets."""

from __future__ import annotations

# (path, finding, why): regular expressions; the path from its beginning, the finding anywhere.
UNNAMED: list[tuple[str, str, str]] = [
    (
        "nn.(MultiheadAttention|Transformer|Hardtanh|Embedding)",
        "internal AssertionError",
        "PyTorch's type here, raised on purpose",
    ),
    ("optim.lr_scheduler", "internal KeyError: .*initial_lr", "PyTorch's type here, raised on purpose"),
    (
        "(Tensor|get_|is_|can_cast|promote_types|autograd)",
        "(inside|unnamed|internal) (TypeError|AttributeError|RuntimeError)",
        "told by the core or by Python, of one argument",
    ),
    ("(adam|amsgrad|sgd)", "", "steps of optimizers, which these call"),
    ("nn.Transformer", "unnamed", "told of the layer inside"),
]

_WRONG = "raises (RuntimeError|ValueError|IndexError|NotImplementedError)"
_TAKES = "takes what PyTorch does not: "
# One line stands for all calls that differ in one way; what is of one function stands at the end.
KNOWN: list[tuple[str, str, str]] = [
    # out=
    (
        "",
        "refuses: .*(output with shape|expanded size|sizes provided|single memory location|match the size)",
        "out= is not resized",
    ),
    (
        "",
        "; PyTorch: TypeError: .*(unexpected keyword argument 'out'|[(,] ?out=)",
        "more functions take out=",
    ),
    (
        "",
        _TAKES + ".*(unexpected keyword argument 'out'|[(,] ?out=|argument 'out' must be)",
        "more functions take out=",
    ),
    (
        "",
        "refuses: .*(unexpected keyword argument 'out'|out: expected a tensor)",
        "fewer functions take out=",
    ),
    (
        "",
        _TAKES
        + "RuntimeError: .*([Ee]xpected out|dtype Double|dtype Half|got Half|got Double|only supports bool|desired output"
        "|scalar type|scalar_type|same type|same dtype|does not match input dtype|must be the same|non-boolean outputs|Found dtype"
        "|output tensor's dtype|different dtypes|dtype of out|hist tensor|output tensor to have|expected out tensor|dtypeFloat)",
        "out= takes what it can hold, and operands of two dtypes are promoted",
    ),
    (
        "",
        "refuses: .*(functions with out=|can't be cast)",
        "out= asks for no gradient and does not choose the dtype",
    ),
    (
        "",
        "PyTorch: TypeError: .*argument 'out' must be",
        "out= of another kind is told by what it cannot hold",
    ),
    # types that are taken
    ("", _TAKES + ".*must be Tensor, not", "a number, a list or an array may stand for a tensor"),
    (
        "",
        _TAKES + ".*must be (torch.)?dtype, not|argument 'dtype' must be",
        "a dtype may be given by its name",
    ),
    (
        "",
        _TAKES + "TypeError: .*must be .*, (not|but found element of type) (bool|int|float|NoneType|Tensor)",
        "numbers, flags and tensors of one element stand for each other; None is the default",
    ),
    (
        "",
        _TAKES
        + "TypeError: .*invalid combination of arguments - got \\(.*(int|float|bool|NoneType|ndarray|Tensor)",
        "numbers for tensors, and arguments that PyTorch takes in fewer combinations",
    ),
    ("", _TAKES + "TypeError: .*missing \\d+ required", "fewer arguments are needed"),
    ("", _TAKES + "NotImplementedError", "of more dtypes"),
    (
        "",
        _TAKES
        + "RuntimeError: .*(could not infer output dtype|[Ee]xpected a floating point|not implemented for)",
        "of more dtypes",
    ),
    (
        "",
        _TAKES
        + "(RuntimeError|TypeError|AssertionError): .*(INTERNAL ASSERT|isIntegral|0-d tensor|no attribute)",
        "PyTorch fails inside",
    ),
    ("", _TAKES + "RuntimeError: .*memory location", "overlapping memory: all is read before it is written"),
    # which of several mistakes is told, and as what
    (
        "",
        "raises TypeError: .*; PyTorch: (AttributeError|AssertionError|KeyError|UnboundLocalError)",
        "PyTorch fails inside",
    ),
    (
        "",
        "raises TypeError: .*; PyTorch: .*(Boolean value of|truth value of|tuple index out of)",
        "PyTorch fails inside",
    ),
    (
        "",
        _WRONG
        + ".*; PyTorch: TypeError: .*(must be|invalid combination|missing \\d|doesn't apply|unsupported operand|has no len"
        "|not supported between|not callable|unhashable|not iterable|only integer tensors|real number|positional arguments? but)",
        "a value of a wrong type is told by what it is not",
    ),
    # dtypes
    (
        "",
        "refuses: NotImplementedError: .*not implemented for",
        "the dtype is looked at where there are no elements, too",
    ),
    ("", "refuses: ImportError", "an optional package"),
    ("", "raises NotImplementedError: .*not implemented for", "of several mistakes the dtype is told"),
    # warnings
    (
        "",
        "warns not; PyTorch: ..UserWarning",
        "PyTorch warns of its future, of its speed and of out= that it resizes",
    ),
]
