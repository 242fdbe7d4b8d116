// Planted bugs: sanitize.sh calls each one and fails unless the sanitizer reports it.
#include <climits>
#include <cstdint>

#include "base/memory.h"

extern "C" {
#pragma GCC visibility push(default)

// Reads a heap block after its death.
int planted_use_after_free(int index) {
    const volatile int* numbers = new int[4]();
    delete[] numbers;
    return numbers[index];
}

// Writes one byte past what a storage was asked for, inside its block.
void planted_storage_overflow(int index) {
    const kiln::StorageRef storage = kiln::allocate(100);
    static_cast<volatile uint8_t*>(storage->data)[index + 100] = 1;
}

// Writes to a storage's block after its death, while the cache keeps it.
void planted_use_after_release(int index) {
    kiln::StorageRef storage = kiln::allocate(4096);
    auto* data = static_cast<volatile uint8_t*>(storage->data);
    storage = nullptr;
    data[index + 100] = 1;
}

int planted_signed_overflow(int value) { return value + INT_MAX; }

#pragma GCC visibility pop
}
