// The processor this process runs on.
#pragma once

#include <string>

namespace kiln {

// Everything about this processor that decides which code may run on it, as text for a cache key: raw CPUID
// leaves and XCR0 on x86, the kernel's capability words and MIDR on aarch64. The same on every core.
std::string cpu_identity();

// Whether kernels of this process may use AMX tiles. The first call asks the system, which may refuse.
bool ask_for_tiles();

}  // namespace kiln
