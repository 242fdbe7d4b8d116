# make test, make demo: from nothing but Python >= 3.11, pip and a C++20 compiler.
# make build:           for work on kiln itself; see CONTRIBUTING.md.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Never this directory's kiln, which may not be built, before the installed one; child processes included.
SAFE := PYTHONSAFEPATH=1
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := pyproject.toml CMakeLists.txt README.md $(shell find kiln native pack -name '*.py' -o -name '*.cpp' -o -name '*.h' -o -name '*.gz')
# Processes the suite runs in: each begins with a stretch of it, and who is done takes from the others' ends.
WORKERS ?= 2
TESTS = $(SAFE) $(BIN)/pytest -q -n $(WORKERS) --dist worksteal
FUZZ_COUNT ?= 2000
FUZZ_SEED ?= $(shell date +%s)
# Every file but those that run no core, or the same kernels once more; of the table's grid, one test of each kind.
ASAN_TESTS ?= tests/core/test_native_leaf.py $(filter-out tests/core/test_native_leaf.py tests/ops/test_ops.py tests/codegen/% \
    tests/passes/% tests/house/test_layers.py tests/ops/test_scalar_math.py tests/ops/test_table.py tests/users/test_docs.py, \
    $(wildcard tests/*/test_*.py)) tests/codegen/test_attention_amx.py \
    $(addprefix tests/ops/test_ops.py::,test_operands_are_not_written test_errors)

.PHONY: test answers demo examples bench ulp fuzz opinfo gradcheck moments soak scan counts errors mutants libraries docs lint build asan bench-native clean

test: $(VENV)/.kiln-installed
	$(TESTS) $(ARGS)

# With PyTorch in .venv: writes what tests keep of its answers, all of them or those of the files in ARGS: a file's
# tests in one process, which writes theirs.
answers: $(VENV)/.kiln-installed
	$(SAFE) $(BIN)/pytest -q -n $(WORKERS) --dist loadfile --peer --write-answers $(ARGS)

# From a data set to programs that run without Python; main_job/index.html shows it.
demo: $(VENV)/.kiln-installed
	$(BIN)/python examples/main_job

# Every example to its stated result, and as PyTorch's program where .venv has it: minutes.
examples: $(VENV)/.kiln-installed
	KILN_TEST_FULL=1 $(SAFE) $(BIN)/pytest -q tests/users/test_examples.py $(ARGS)

bench: $(VENV)/.kiln-installed
	cd bench && ../$(BIN)/python run.py $(ARGS)

ulp: $(VENV)/.kiln-installed
	cd bench && ../$(BIN)/python ulp.py $(ARGS)

fuzz: $(VENV)/.kiln-installed
	$(SAFE) $(BIN)/python -m kiln.testing.random_programs --count $(FUZZ_COUNT) --seed $(FUZZ_SEED)
	$(SAFE) $(BIN)/python -m kiln.testing.random_programs --count $(FUZZ_COUNT) --seed $(FUZZ_SEED) --gradients
	$(SAFE) $(BIN)/python -m kiln.testing.dynamic_programs --count $(FUZZ_COUNT) --seed $(FUZZ_SEED)
	$(SAFE) $(BIN)/python -m kiln.testing.script_programs --count $(FUZZ_COUNT) --seed $(FUZZ_SEED)
	$(SAFE) $(BIN)/python -m kiln.testing.file_fuzz --count $$(( 50 * $(FUZZ_COUNT) )) --seed $(FUZZ_SEED)

opinfo: $(VENV)/.kiln-installed
	$(SAFE) $(BIN)/python -m kiln.testing.opinfo $(ARGS)

gradcheck: $(VENV)/.kiln-installed
	KILN_TEST_FULL=1 $(TESTS) tests/ops/test_derivatives.py tests/ops/test_subgradients.py \
	    tests/ops/test_gradcheck.py tests/ops/test_linalg.py $(ARGS)

# Forks and interrupts at every moment, failures of every allocation: hours.
moments: $(VENV)/.kiln-installed
	KILN_TEST_FULL=1 $(TESTS) tests/core/test_reliability_fork_moments.py \
	    tests/core/test_reliability_interrupts.py tests/core/test_reliability_signals.py tests/core/test_reliability_allocations.py $(ARGS)

# Batching under exceptions, Ctrl-C and threads, for ten minutes: values stay right and memory flat.
soak: $(VENV)/.kiln-installed
	$(SAFE) $(BIN)/python -m kiln.testing.soak $(ARGS)

# The second run takes the programs of the first from disk.
scan: $(VENV)/.kiln-installed
	rm -rf build/scan-cache
	KILN_CACHE_DIR=build/scan-cache $(SAFE) $(BIN)/python -m kiln.testing.mode_scan $(ARGS)
	KILN_CACHE_DIR=build/scan-cache $(SAFE) $(BIN)/python -m kiln.testing.mode_scan --every 7 $(ARGS)

counts: $(VENV)/.kiln-installed
	$(SAFE) $(BIN)/python -m kiln.testing.count_scan $(ARGS)

# In a folder of its own: a wrong call that goes on may write a file. Against PyTorch too, where .venv has it.
errors: $(VENV)/.kiln-installed
	mkdir -p build/errors
	cd build/errors && $(SAFE) ../../$(BIN)/python -m kiln.testing.error_scan $(ARGS)
	! $(BIN)/python -c 'import torch' 2> /dev/null || $(SAFE) $(BIN)/python -m kiln.testing.declared_errors

# Mistakes put into the table, one at a time: its checks see each of them. Hours.
mutants: $(VENV)/.kiln-installed
	$(SAFE) $(BIN)/python -m kiln.testing.mutation_scan $(ARGS)

# Programs that use libraries built on PyTorch, as far as .venv has them: none of them needs PyTorch itself.
libraries: $(VENV)/.kiln-installed
	KILN_TEST_FULL=1 $(TESTS) tests/users/test_libraries.py $(ARGS)

# The page of every operation, then the site, build/site/index.html.
docs: $(VENV)/.tools
	$(PIP) install scipy 'mkdocs>=1.6,<2' 'mkdocs-material>=9.5'
	$(BIN)/python -m kiln.testing.op_page > docs/ops.md.new && mv docs/ops.md.new docs/ops.md
	$(BIN)/python docs/site/build.py

# ---- the environment ----

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kiln needs Python >= 3.11: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# An installed wheel, as users get it, with what the tests and the demo need.
$(VENV)/.kiln-installed: $(SOURCES) | $(VENV)/bin/python
	rm -f $(VENV)/lib/python3*/site-packages/kiln-tree.pth
	$(PIP) install '.[test,demo]'
	touch $@

# ---- work on kiln ----

# Compiles what changed into kiln/ and makes the environment look at this tree instead of an installed wheel.
build: $(VENV)/.tools
	$(BIN)/cmake -S . -B build/tree -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	    -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DKILN_MODULE_DIR=$(CURDIR)/kiln --log-level=WARNING
	$(BIN)/cmake --build build/tree
	if [ -e $(VENV)/.kiln-installed ]; then $(PIP) uninstall -y kiln; rm $(VENV)/.kiln-installed; fi
	echo $(CURDIR) > $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/kiln-tree.pth

$(VENV)/.tools: | $(VENV)/bin/python
	$(PIP) install cmake ninja numpy llvmlite pytest pytest-xdist hypothesis mpmath ruff mypy clang-format
	touch $@

# After a build: mypy sees the table by the types that it wrote.
lint: build
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror native/*/*.h native/*/*.cpp tests/native/*.cpp

asan: $(VENV)/.tools
	tests/native/sanitize.sh $(CURDIR)/$(BIN) $(ASAN_TESTS)

bench-native: $(VENV)/.tools
	$(BIN)/cmake -S . -B build/native -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	    -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DKILN_NATIVE_TESTS=ON --log-level=WARNING
	$(BIN)/cmake --build build/native --target bench_leaf
	build/native/bench_leaf $(ARGS)

clean:
	rm -rf build kiln/_core*.so kiln/_typed kiln/table/index.txt docs/ops.md
