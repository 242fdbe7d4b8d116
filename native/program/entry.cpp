#include "program/entry.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"

namespace kiln {
namespace {

constexpr std::string_view magic("kiln-cached-v4\n\0", 16);
constexpr size_t largest = 16 << 20;  // bytes; no entry comes near
constexpr time_t day = 86400;         // seconds

void mix(Hash128& hash, std::string_view bytes) {
    hash.mix(bytes.size());
    for (size_t at = 0; at < bytes.size(); at += 8) {
        uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
        hash.mix(word);
    }
}

std::string hex(std::string_view bytes) {
    constexpr char digits[] = "0123456789abcdef";
    std::string text;
    for (unsigned char byte : bytes) (text += digits[byte >> 4]) += digits[byte & 15];
    return text;
}

struct File {
    int number;
    ~File() {
        if (number >= 0) close(number);
    }
};

// As many bytes as there are, at most those of `room`.
size_t read_all(const File& file, std::string& room) {
    size_t done = 0;
    while (done < room.size()) {
        const ssize_t count = read(file.number, room.data() + done, room.size() - done);
        if (count == 0 || (count < 0 && errno != EINTR)) break;
        if (count > 0) done += size_t(count);
    }
    return done;
}

}  // namespace

std::string header_of_entry(std::string_view key, std::string_view content) {
    Hash128 hash;
    for (std::string_view part : {key, content}) mix(hash, part);
    const uint64_t words[] = {hash.low, hash.high, content.size()};
    std::string header(magic);
    header += key;
    return header.append(reinterpret_cast<const char*>(words), sizeof words);
}

std::optional<std::string> read_entry(int directory, std::string_view key) {
    constexpr int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    const File file{openat(directory, hex(key).c_str(), flags)};
    struct stat state;
    if (key.size() != entry_key || file.number < 0 || fstat(file.number, &state) != 0) return std::nullopt;
    const bool ours = S_ISREG(state.st_mode) && state.st_uid == geteuid() && !(state.st_mode & 022);
    if (!ours || state.st_size <= off_t(entry_header) || state.st_size > off_t(largest)) return std::nullopt;
    std::string entry(size_t(state.st_size), '\0');
    if (read_all(file, entry) != entry.size()) return std::nullopt;
    const std::string_view content = std::string_view(entry).substr(entry_header);
    if (!entry.starts_with(header_of_entry(key, content))) return std::nullopt;
    if (std::time(nullptr) - state.st_mtime > day) futimens(file.number, nullptr);  // when it was last used
    return entry;
}

}  // namespace kiln
