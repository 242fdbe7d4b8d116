// Entries of the cache on disk (kiln/codegen/store/cache.py): bytes under a key, read only if nothing touched
// them.
//
//   magic 16 | key 32 | hash of key and content, with their lengths 16 | length 8 | content
//
// An entry's time is when it was last used, to within a day (kiln/codegen/store/room.py).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kiln {

constexpr size_t entry_key = 32;  // bytes
constexpr size_t entry_header = 16 + entry_key + 16 + 8;

// What stands before the content of an entry.
std::string header_of_entry(std::string_view key, std::string_view content);

// The entry of a key in an opened directory, header included, where its file is ours alone and the header is
// right; nothing for any other state of the file system. Its name is the key in hex.
std::optional<std::string> read_entry(int directory, std::string_view key);

}  // namespace kiln
