"""The functions of a library that are not kernels, as one LLVM module.

    NAME_run(inputs, sizes, outputs, workspace, threads)    0, or a code that says what was wrong
    NAME_workspace(sizes, threads)                          bytes that a run needs; minus a code
    NAME_shape(output, sizes, shape)                        the lengths of an output
    NAME_message(code)                                      a code in words

Nothing is kept between calls: every array lies with the caller, in `workspace`, or on the stack. A run first
compares the stated sizes with their bounds, and writes nothing if one is outside. It runs the graph, and then
looks at the values that ops refuse (positions out of range): kernels read no memory outside their arrays,
whatever they are given, so that what is wrong is known before anyone uses the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from kiln.capture.programs import Slots
from kiln.codegen.ir.index import Condition, Integer, Pointer
from kiln.codegen.target import Target
from kiln.graph.graph import Graph
from kiln.graph.size import Dim, product, symbol
from kiln.passes.launch import Kernel
from kiln.passes.plan import ITEMSIZE
from kiln.standalone.body import Body
from kiln.standalone.function import Data, Function, Source
from kiln.standalone.memory import aligned
from kiln.standalone.sizes import Interval, Sizes, breaks, intervals, largest_sizes, stated_sizes
from kiln.standalone.values import Asked, asked
from kiln.standalone.variants import where_one
from kiln.tracing.captured import Captured

OF_ONE = 2  # of how many sizes there is code of its own for calls at which they are 1
WORTH = 5  # threads' worths of work from which on several threads run a kernel, as in the core


class Driver:
    """The module of a program. `graph`: its primitives; `constants`: which of its inputs are tensors of the
    library, and where they lie in its data, in bytes; `beside`: the data is no part of it, callers give it.
    """

    def __init__(
        self,
        found: Captured,
        graph: Graph,
        constants: dict[int, int],
        name: str,
        target: Target,
        beside: bool = False,
    ) -> None:
        self.found, self.graph, self.constants = found, graph, constants
        self.name, self.target, self.beside = name, target, beside
        self.functions: list[Function] = []
        self.kernels: dict[str, tuple[str, Kernel]] = {}
        self._launches: dict[str, list[Sequence[Dim]]] = {}  # arguments, by the kernel's text
        self.messages = ["no error"]
        self.threads = not target.triple.startswith("wasm")  # whether callers may have some
        self.blobs: dict[str, bytes] = {}  # further read-only data, by symbol
        self.most_pointers = 1
        self._symbols = 0
        self.launcher, self.mover, self.counter = (f"{name}.{what}" for what in ("launch", "move", "threads"))
        self.data = f"{name}.data"
        self.stated = stated_sizes(found)
        self.numbers = ["seed", "position"] if found.random else []  # what callers state beside sizes
        count = len(found.inputs)
        written = [count + which for kind, which in found.mutated if kind == "state"]
        self.given = [*range(count), *sorted(written)]  # of the graph's inputs, those that callers give
        weak = [v.slot for v in graph.inputs if v.weak]
        slots = [*(s.slot for s in self.stated), *weak]
        self.random = list(zip(weak, found.random))
        sources = [
            self.given.index(k) if k in self.given else Data(constants.get(k, 0))
            for k in range(len(graph.inputs))
        ]
        self.body = self.new_body(graph, slots, sources, called=False)
        self.of_one = {  # bodies for calls where a size is 1
            s.slot: self.new_body(where_one(graph, s.slot), slots, sources, called=False)
            for s in self.stated[:OF_ONE]
            if s.least <= 1
        }
        self.slots = Slots(graph.slots)  # of what is asked around it
        self._for_launches()
        self.asked: list[Asked] = asked(found, graph, self)
        for dim in self._dims():
            self.slots.of(dim)
        self.bounds = largest_sizes(self.stated, self._intervals)

    def _dims(self) -> list[Dim]:
        """The sizes that the functions around the graph need."""
        dims: list[Dim] = [dim.symbol for dim in self.found.dims.values()]
        dims += [symbol(s.slot) for s in self.stated]
        for guard in self.found.guards:
            dims += [guard.left, guard.right]
        for a, b in self.graph.checks:
            dims += [a, b]
        for value in self.graph.outputs:
            dims += [*value.shape, product(value.shape)]
        for question in self.asked:
            dims += question.dims
        dims += [n for _, (_, n) in self.random if not isinstance(n, str)]
        return dims

    def _intervals(self, bounds: dict[int, Interval]) -> list[Interval]:
        found = [*intervals(self.slots, bounds), *self.body.intervals(bounds)]
        for slot, body in self.of_one.items():
            found += body.intervals({**bounds, slot: (1, 1)})
        return found

    @property
    def results(self) -> int:
        """How many outputs a caller gets: those of the program, and its tensors that it writes."""
        return len(self.found.outputs) + len(self.found.mutated)

    # -- what bodies ask for --------------------------------------------------------------------------------

    def function(self, result: str, name: str, params: str, linkage: str = "internal") -> Function:
        """A function of the module, to be written."""
        made = Function(self.target, result, name, params, linkage)
        self.functions.append(made)
        return made

    def new_body(self, graph: Graph, stated: Sequence[int], sources: Sequence[Source], called: bool) -> Body:
        """A graph that the library runs."""
        return Body(self, graph, stated, sources, called)

    def new_symbol(self, kind: str) -> str:
        """The name of one more function."""
        self._symbols += 1
        return f"{self.name}.{kind}{self._symbols}"

    def kernel(self, kernel: Kernel, launches: Sequence[Sequence[Dim]]) -> str:
        """The symbol of a kernel, which has launches with such arguments."""
        text = kernel.text()
        if text not in self.kernels:
            self.kernels[text] = f"{self.name}.k{len(self.kernels)}", kernel
        self._launches.setdefault(text, []).extend(launches)
        return self.kernels[text][0]

    def _for_launches(self) -> None:
        """Replaces kernels by those that are written for the launches there are."""
        for text, (name, kernel) in self.kernels.items():
            self.kernels[text] = name, kernel.among(self._launches[text])

    def data_at(self, f: Function) -> Pointer:
        """Where the data begins: in the library, or in what the caller gives behind the inputs."""
        if self.beside:
            return f.pointer("%inputs").pointer(len(self.given))
        return f.pointer(f"@{self.data}")

    def code_of(self, message: str) -> int:
        """The code of an error."""
        self.messages.append(message)
        return len(self.messages) - 1

    # -- the module -----------------------------------------------------------------------------------------

    def text(self) -> str:
        """The module's text."""
        for body in (self.body, *self.of_one.values()):
            body.write()
        self._write_refused()
        self._write_run()
        self._write_workspace()
        self._write_shape()
        helpers = (_HELPERS + (_THREADS if self.threads else "")).format(
            launch=self.launcher, move=self.mover, threads=self.counter, range=f"{self.name}.range",
            most=self.most_pointers, worth=WORTH, **_ENVIRONMENT[self.target.triple.split("-")[0]],
        )  # fmt: skip
        kernels = [
            f"declare hidden void @{symbol}(ptr, ptr, i64, i64)" for symbol, _ in self.kernels.values()
        ]
        return "\n".join(
            [
                self.target.head(),
                f"@{self.data} = external hidden constant i8, align 64",
                *map(_constant, self.blobs.items()), *kernels, helpers, self._message(),
                *(f.text() for f in self.functions),
                f"attributes #0 = {{ {self.target.attributes()} }}", "",
            ]
        )  # fmt: skip

    def _message(self) -> str:
        """Codes in words: where each begins among all."""
        texts = [m.encode() + b"\0" for m in self.messages]
        starts = [sum(map(len, texts[:k])) for k in range(len(texts))]
        return _MESSAGE.format(
            name=self.name, count=len(texts), starts=", ".join(f"i32 {n}" for n in starts),
            texts=_constant((f"{self.name}.texts", b"".join(texts))),
        )  # fmt: skip

    def _sizes(self, f: Function) -> Sizes:
        """Sizes, of those in the argument `sizes`."""
        given = f.pointer("%sizes")
        known: dict[int, Integer] = {s.slot: given.word(j) for j, s in enumerate(self.stated)}
        return Sizes(f, self.slots, known)

    def _write_refused(self) -> None:
        """A function: the code of what is wrong with sizes, or 0."""
        f = self.function("i64", f"{self.name}.refused", "ptr %sizes")
        given = f.pointer("%sizes")

        def refuse(wrong: Condition, message: str) -> None:
            f.return_where(wrong, lambda: f"i64 {self.code_of(message)}")

        for j, own in enumerate(self.stated):
            least, most = self.bounds[own.slot]
            size = given.word(j)
            refuse((size < least) | (size > most), f"{own.name} must be from {least} to {most}")
        sizes, found = self._sizes(f), self.found
        for dim in found.dims.values():
            if any(own.name == dim.name for own in self.stated):
                continue
            value = f.index(sizes.of(dim.symbol))
            wrong = value < dim.min
            wrong = wrong if dim.max is None else wrong | (value > dim.max)
            refuse(wrong, f"{dim.name} must be from {dim.min} to {'any' if dim.max is None else dim.max}")
        for guard in found.guards:
            asked = f"{found.size_text(guard.left)} {guard.sign} {found.size_text(guard.right)}"
            refuse(
                breaks(f, sizes, guard),
                f"the program was made where {asked} is {guard.answer} ({guard.line})",
            )
        for a, b in self.graph.checks:
            refuse(
                f.index(sizes.of(a)).differs(sizes.of(b)),
                f"{found.size_text(a)} must be {found.size_text(b)}",
            )
        f.line("ret i64 0")

    def _unless_refused(self, f: Function, minus: bool = False) -> None:
        """Returns the code, if sizes are refused: of 32 bits, or as a negative size of memory."""
        code = f.index(f.call_for("i64", f"{self.name}.refused", f.pointer("%sizes")))
        f.return_where(code.differs(0), lambda: f"i64 {0 - code}" if minus else f"i32 {code.bits(32)}")

    def _hidden(self, sizes: Sizes) -> tuple[dict[int, Integer], Integer]:
        """Where in the workspace results lie that only checks look at, and where the rest begins."""
        starts: dict[int, Integer] = {}
        top: Integer = 0
        for k, value in enumerate(self.graph.outputs[self.results :], self.results):
            starts[k] = top
            top = top + aligned(sizes.of(product(value.shape)) * ITEMSIZE[value.dtype] + 1)
        return starts, top

    def _write_workspace(self) -> None:
        f = self.function("i64", f"{self.name}_workspace", "ptr %sizes, i32 %threads", "dso_local")
        self._unless_refused(f, minus=True)
        sizes = self._sizes(f)
        _, top = self._hidden(sizes)
        count = f.index(f.op("sext i32 %threads to i64")).max(1)
        stated = self._environment(f, sizes)
        needed = f.slot("i64")

        def ask(body: Body) -> None:
            needed.put(f.index(f.call_for("i64", f"{body.symbol}.bytes", stated, count)))

        self._by_size(f, sizes, ask)
        f.line(f"ret i64 {needed.word() + top + 64}")

    def _by_size(self, f: Function, sizes: Sizes, write: Callable[[Body], None]) -> None:
        """Code for the body that is for the sizes of the call."""
        with ExitStack() as others:
            for slot, body in self.of_one.items():
                one = f.index(sizes.of(symbol(slot))).equals(1)
                other = others.enter_context(f.either(one))
                write(body)
                next(other)
            write(self.body)

    def _environment(self, f: Function, sizes: Sizes) -> Pointer:
        """The integers that the body is given: sizes, then random numbers."""
        given = f.pointer("%sizes")
        made = f.slot("i64", max(len(self.body.stated), 1))
        for j in range(len(self.stated)):
            made.put(given.word(j), j)
        for j, (_, (kind, n)) in enumerate(self.random, len(self.stated)):
            seed, position = given.word(len(self.stated)), given.word(len(self.stated) + 1)
            made.put(seed if kind == "seed" else position + sizes.of(n), j)
        return made

    def _write_run(self) -> None:
        params = "ptr %inputs, ptr %sizes, ptr %outputs, ptr %workspace, ptr %threads"
        f = self.function("i32", f"{self.name}_run", params, "dso_local")
        self._unless_refused(f)
        saved = f.call_for("i64", f"{self.name}.range.enter")
        sizes = self._sizes(f)
        starts, top = self._hidden(sizes)
        address = f.pointer("%workspace").address()
        memory = f.pointer("%workspace")[0 - address & 63]
        outputs = f.slot("ptr", max(len(self.graph.outputs), 1))
        for k in range(len(self.graph.outputs)):
            outputs.put(memory[starts[k]] if k in starts else f.pointer("%outputs").pointer(k), k)
        stated = self._environment(f, sizes)
        inputs, threads, rest = f.pointer("%inputs"), f.pointer("%threads"), memory[top]

        def run(body: Body) -> None:
            f.call_for("void", body.symbol, inputs, stated, outputs, rest, threads)

        self._by_size(f, sizes, run)
        f.line(f"call void @{self.name}.range.leave(i64 {saved})")

        def array(kind: str, which: int) -> Pointer:
            if kind == "result":
                return outputs.pointer(which)
            if which in self.constants:
                return self.data_at(f)[self.constants[which]]
            return f.pointer("%inputs").pointer(self.given.index(which))

        for question in self.asked:
            question.write(f, sizes, array)
        f.line("ret i32 0")

    def _write_shape(self) -> None:
        f = self.function("i32", f"{self.name}_shape", "i32 %output, ptr %sizes, ptr %shape", "dso_local")
        self._unless_refused(f)
        sizes, shape = self._sizes(f), f.pointer("%shape")
        for k, value in enumerate(self.graph.outputs[: self.results]):
            own, other = f.label(), f.label()
            f.branch(f.condition(f.op(f"icmp eq i32 %output, {k}")), own, other)
            f.begin(own)
            for d, n in enumerate(value.shape):
                shape.put(sizes.of(n), d)
            f.line("ret i32 0")
            f.begin(other)
        f.line(f"ret i32 {self.code_of(f'there are {self.results} outputs, counted from 0')}")


def _constant(named: tuple[str, bytes]) -> str:
    """Read-only bytes with a symbol."""
    name, data = named
    blob = "".join(f"\\{byte:02x}" for byte in data)
    return f'@{name} = internal constant [{len(data)} x i8] c"{blob}"'


# The float environment of kernels: rounding to nearest, denormals kept; what it was is given back.
_ENVIRONMENT = {
    "x86_64": {
        "declared": "declare void @llvm.x86.sse.stmxcsr(ptr)\ndeclare void @llvm.x86.sse.ldmxcsr(ptr)",
        "enter": """  %at = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %was = load i32, ptr %at
  store i32 8064, ptr %at
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  %saved = zext i32 %was to i64
  ret i64 %saved""",
        "leave": """  %at = alloca i32
  %was = trunc i64 %saved to i32
  store i32 %was, ptr %at
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret void""",
    },
    "aarch64": {
        "declared": "declare i64 @llvm.aarch64.get.fpcr()\ndeclare void @llvm.aarch64.set.fpcr(i64)",
        "enter": "  %saved = call i64 @llvm.aarch64.get.fpcr()\n"
        "  call void @llvm.aarch64.set.fpcr(i64 0)\n  ret i64 %saved",
        "leave": "  call void @llvm.aarch64.set.fpcr(i64 %saved)\n  ret void",
    },
    "wasm32": {"declared": "", "enter": "  ret i64 0", "leave": "  ret void"},
}

_HELPERS = """
{declared}
define internal i64 @{range}.enter() #0 {{
{enter}
}}
define internal void @{range}.leave(i64 %saved) #0 {{
{leave}
}}
define internal i64 @{threads}(ptr %threads) #0 {{
  %none = icmp eq ptr %threads, null
  br i1 %none, label %one, label %several
one:
  ret i64 1
several:
  %count = load i32, ptr %threads
  %few = icmp slt i32 %count, 1
  %least = select i1 %few, i32 1, i32 %count
  %found = sext i32 %least to i64
  ret i64 %found
}}
define internal void @{move}(ptr %to, ptr %from, i64 %bytes) #0 {{
entry:
  %same = icmp eq ptr %to, %from
  br i1 %same, label %done, label %words
words:
  %w = phi i64 [ 0, %entry ], [ %w8, %word ]
  %w8 = add i64 %w, 8
  %fits = icmp sle i64 %w8, %bytes
  br i1 %fits, label %word, label %rest
word:
  %wf = getelementptr i8, ptr %from, i64 %w
  %wt = getelementptr i8, ptr %to, i64 %w
  %wx = load i64, ptr %wf, align 1
  store i64 %wx, ptr %wt, align 1
  br label %words
rest:
  %r = phi i64 [ %w, %words ], [ %r1, %byte ]
  %more = icmp slt i64 %r, %bytes
  br i1 %more, label %byte, label %done
byte:
  %rf = getelementptr i8, ptr %from, i64 %r
  %rt = getelementptr i8, ptr %to, i64 %r
  %rx = load i8, ptr %rf
  store i8 %rx, ptr %rt
  %r1 = add i64 %r, 1
  br label %rest
done:
  ret void
}}
"""

_THREADS = """
; a task: kernel, pointers, integers, scratch memory, bytes of it for a thread, its place among them or -1
define internal void @{range}(ptr %task, i64 %begin, i64 %end, i32 %thread) #0 {{
entry:
  %own = alloca ptr, i64 {most}, align 64
  %saved = call i64 @{range}.enter()
  %kernel = load ptr, ptr %task
  %t1 = getelementptr i64, ptr %task, i64 1
  %pointers = load ptr, ptr %t1
  %t2 = getelementptr i64, ptr %task, i64 2
  %args = load ptr, ptr %t2
  %t3 = getelementptr i64, ptr %task, i64 3
  %scratch = load ptr, ptr %t3
  %t4 = getelementptr i64, ptr %task, i64 4
  %bytes = load i64, ptr %t4
  %t5 = getelementptr i64, ptr %task, i64 5
  %place = load i64, ptr %t5
  %none = icmp slt i64 %place, 0
  br i1 %none, label %shared, label %copy
copy:
  %n = phi i64 [ 0, %entry ], [ %n1, %next ]
  %more = icmp slt i64 %n, %place
  br i1 %more, label %next, label %ready
next:
  %pf = getelementptr ptr, ptr %pointers, i64 %n
  %pt = getelementptr ptr, ptr %own, i64 %n
  %px = load ptr, ptr %pf
  store ptr %px, ptr %pt
  %n1 = add i64 %n, 1
  br label %copy
ready:
  %number = sext i32 %thread to i64
  %skipped = mul i64 %number, %bytes
  %mine = getelementptr i8, ptr %scratch, i64 %skipped
  %at = getelementptr ptr, ptr %own, i64 %place
  store ptr %mine, ptr %at
  call void %kernel(ptr %own, ptr %args, i64 %begin, i64 %end)
  br label %done
shared:
  call void %kernel(ptr %pointers, ptr %args, i64 %begin, i64 %end)
  br label %done
done:
  call void @{range}.leave(i64 %saved)
  ret void
}}
define internal void @{launch}(ptr %kernel, ptr %pointers, ptr %args, i64 %units, i64 %grain, ptr %scratch,
                               i64 %bytes, i64 %place, ptr %threads) #0 {{
entry:
  %task = alloca i64, i64 6, align 64
  %any = icmp sgt i64 %units, 0
  br i1 %any, label %some, label %done
some:
  %alone = icmp eq ptr %threads, null
  br i1 %alone, label %one, label %worth
worth:
  %least = mul i64 %grain, {worth}
  %few = icmp sle i64 %units, %least
  %count = load i32, ptr %threads
  %single = icmp sle i32 %count, 1
  %here = or i1 %few, %single
  br i1 %here, label %one, label %several
one:
  %none = icmp slt i64 %place, 0
  br i1 %none, label %run, label %own
own:
  %at = getelementptr ptr, ptr %pointers, i64 %place
  store ptr %scratch, ptr %at
  br label %run
run:
  call void %kernel(ptr %pointers, ptr %args, i64 0, i64 %units)
  ret void
several:
  store ptr %kernel, ptr %task
  %t1 = getelementptr i64, ptr %task, i64 1
  store ptr %pointers, ptr %t1
  %t2 = getelementptr i64, ptr %task, i64 2
  store ptr %args, ptr %t2
  %t3 = getelementptr i64, ptr %task, i64 3
  store ptr %scratch, ptr %t3
  %t4 = getelementptr i64, ptr %task, i64 4
  store i64 %bytes, ptr %t4
  %t5 = getelementptr i64, ptr %task, i64 5
  store i64 %place, ptr %t5
  %c = getelementptr i8, ptr %threads, i64 8
  %context = load ptr, ptr %c
  %r = getelementptr i8, ptr %threads, i64 16
  %function = load ptr, ptr %r
  %positive = icmp sgt i64 %grain, 1
  %step = select i1 %positive, i64 %grain, i64 1
  call void %function(ptr %context, ptr @{range}, ptr %task, i64 %units, i64 %step)
  ret void
done:
  ret void
}}
"""

_MESSAGE = """
@{name}.starts = internal constant [{count} x i32] [{starts}]
{texts}
define dso_local ptr @{name}_message(i32 %code) #0 {{
  %known = icmp ult i32 %code, {count}
  %which = select i1 %known, i32 %code, i32 0
  %wide = zext i32 %which to i64
  %at = getelementptr i32, ptr @{name}.starts, i64 %wide
  %start = load i32, ptr %at
  %skipped = zext i32 %start to i64
  %text = getelementptr i8, ptr @{name}.texts, i64 %skipped
  ret ptr %text
}}
"""
