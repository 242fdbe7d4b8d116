// The processor this process runs on.
#pragma once

#include <string>

namespace kiln {

// Everything about this processor that decides which code may run on it, as text for a cache key: raw CPUID
// leaves and XCR0 on x86, the kernel's capability words and MIDR on aarch64. The same on every core.
std::string cpu_identity();

}  // namespace kiln
