#include "base/invariants.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kiln {

bool asked_to_check() {
    const char* text = std::getenv("KILN_CHECK");
    return text && *text && std::strcmp(text, "0") != 0;
}

#if defined(NDEBUG) && !defined(KILN_INVARIANTS)
bool Invariants::checked = asked_to_check();
#else
bool Invariants::checked = true;
#endif

bool (*Invariants::locked)() = [] { return true; };

void Invariants::broken(const char* invariant, const std::source_location& place) {
    std::fprintf(stderr, "kiln: broken invariant in %s, %s:%u: %s\n", place.function_name(),
                 place.file_name(), unsigned(place.line()), invariant);
    std::abort();
}

}  // namespace kiln
