#!/usr/bin/env bash
# sanitize.sh BIN TEST...: builds the core with AddressSanitizer and UndefinedBehaviorSanitizer into build/asan, proves
# that planted bugs are reported, then runs the tests with that core. BIN is the environment's bin directory.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$1
shift

"$bin/cmake" -S . -B build/asan -G Ninja -DCMAKE_MAKE_PROGRAM="$bin/ninja" -DPython_EXECUTABLE="$bin/python" \
    -DKILN_SANITIZE=ON -DKILN_NATIVE_TESTS=ON --log-level=WARNING
"$bin/cmake" --build build/asan

# The tree's Python files with the sanitized core.
site=build/asan/site
rm -rf "$site"
mkdir -p "$site/kiln"
cp -rs "$PWD/kiln/." "$site/kiln/"
rm -f "$site"/kiln/_core*.so
ln -s "$PWD"/build/asan/_core*.so "$site/kiln/"
# Greenlets copy stacks whole, which AddressSanitizer takes for reads beyond an array: items of a map run in threads.
echo 'import sys; sys.modules["greenlet"] = None' > "$site/sitecustomize.py"

compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' build/asan/CMakeCache.txt)
preload=
for library in libasan.so libubsan.so libstdc++.so; do
    preload+="$("$compiler" -print-file-name=$library):"
done
export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:abort_on_error=1:allocator_may_return_null=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# The working directory has a kiln of its own, whose core is not this one.
export PYTHONSAFEPATH=1
export PYTHONMALLOC=malloc PYTHONPATH="$PWD/$site" KILN_TEST_LEAF="$PWD/build/asan/test_leaf"

# A sanitizer that reports nothing proves nothing.
prove() {
    local report
    report=$(LD_PRELOAD=$preload "$bin/python" -c \
        "import ctypes; ctypes.CDLL('build/asan/libplanted.so').$1(1); print('not reported')" 2>&1) || true
    if ! grep -q "$2" <<<"$report"; then
        printf 'planted bug %s was not reported as "%s":\n%s\n' "$1" "$2" "$report"
        exit 1
    fi
}
prove planted_use_after_free "heap-use-after-free"
prove planted_storage_overflow "use-after-poison"
prove planted_use_after_release "use-after-poison"
prove planted_signed_overflow "signed integer overflow"
echo "planted bugs: all reported"
LD_PRELOAD=$preload "$bin/python" -c "import kiln; assert 'build/asan' in kiln._core.__file__, kiln._core.__file__"

# Ten times the memory and time: the longest chains of ops are left to the plain build.
export KILN_RANDOM_PROGRAMS=${KILN_RANDOM_PROGRAMS:-20}
# Only Python's streams are captured: a report goes to the process's own, just before its end.
LD_PRELOAD=$preload "$bin/python" -m pytest -q --capture=sys -p no:cacheprovider -k "not 1000000" "$@"
