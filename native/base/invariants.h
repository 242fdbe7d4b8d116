// Invariants of concurrency, asserted where they hold. On in debug and sanitizer builds, and under
// KILN_CHECK; elsewhere each is a branch that is never taken. A broken one is a bug of kiln's which would be
// a wrong value or a crash later: the process ends at once, saying what and where.
#pragma once

#include <source_location>

namespace kiln {

struct Storage;

bool asked_to_check();  // KILN_CHECK

struct Invariants {
    static bool checked;
    static bool (*locked)();  // whether this thread holds the interpreter's lock, as the binding knows it
    [[noreturn, gnu::cold]] static void broken(const char* invariant, const std::source_location& place);
};

bool is_settled(const Storage& storage);               // record.cpp
bool is_free(const Storage& storage, bool for_write);  // busy.cpp

// This thread holds the interpreter's lock: reference counts, the allocator and recordings rely on it.
inline void assert_locked(std::source_location place = std::source_location::current()) {
    if (Invariants::checked && !Invariants::locked()) [[unlikely]]
        Invariants::broken("this thread holds the interpreter's lock", place);
}

// The memory holds its values: no recorded op is still to write them.
inline void assert_settled(const Storage& storage,
                           std::source_location place = std::source_location::current()) {
    if (Invariants::checked && !is_settled(storage)) [[unlikely]]
        Invariants::broken("the storage is settled", place);
}

// No kernel that runs without the lock writes the memory, or, `for_write`, reads it.
inline void assert_free(const Storage& storage, bool for_write,
                        std::source_location place = std::source_location::current()) {
    if (Invariants::checked && !is_free(storage, for_write)) [[unlikely]]
        Invariants::broken("the storage is free", place);
}

}  // namespace kiln
