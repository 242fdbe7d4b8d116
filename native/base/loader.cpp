#include "base/loader.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/invariants.h"

namespace kiln {
namespace {

constexpr size_t largest_image = 64 << 20;
constexpr uint64_t largest_alignment = 4096;
constexpr size_t not_loaded = ~size_t(0);
constexpr uint64_t bundle_mark = 0x736a624f6e6c694b;  // "KilnObjs"

// Names inside a damaged object may be anything; a message shows what prints.
std::string printable(std::string_view name) {
    std::string out;
    for (char letter : name.substr(0, 80)) out += letter >= ' ' && letter <= '~' ? letter : '?';
    return out;
}

// The bytes of an object; every read is checked.
class Bytes {
public:
    explicit Bytes(std::span<const uint8_t> bytes) : bytes_(bytes) {}

    // [offset, offset + nbytes), or Error.
    std::span<const uint8_t> range(uint64_t offset, uint64_t nbytes) const {
        KILN_CHECK(offset <= bytes_.size() && nbytes <= bytes_.size() - offset, value,
                   "kernel object: damaged: bytes ", offset, " to ", offset, " + ", nbytes,
                   " of an object of ", bytes_.size(), " bytes");
        return bytes_.subspan(offset, nbytes);
    }

    template <class T>
    T read(uint64_t offset) const {
        T value;
        std::memcpy(&value, range(offset, sizeof(T)).data(), sizeof(T));
        return value;
    }

private:
    std::span<const uint8_t> bytes_;
};

// ---- relocations ----

// How a relocation's value is made of S + A (the target) and P (the place), and where it goes.
enum class Form : uint8_t {
    none,
    word32,    // S + A - P, all of 4 bytes
    word64,    // S + A - P, all of 8 bytes
    branch,    // (S + A - P) / 4, `bits` bits at `position`
    adr,       // S + A - P, 21 bits: two at 29, the rest at 5
    adr_page,  // the same of the distance in pages of 4096 bytes
    low12,     // (S + A) mod 4096, over 2^position, 12 bits at 10
};

struct Relocation {
    Machine machine;
    uint32_t type;
    Form form;
    uint8_t bits = 0, position = 0;
};

// All that LLVM emits for position independent code in the small model that refers only to itself.
constexpr Relocation relocations[] = {
    {Machine::x86_64, R_X86_64_NONE, Form::none},
    {Machine::x86_64, R_X86_64_PC32, Form::word32},
    {Machine::x86_64, R_X86_64_PLT32, Form::word32},
    {Machine::x86_64, R_X86_64_PC64, Form::word64},
    {Machine::aarch64, R_AARCH64_NONE, Form::none},
    {Machine::aarch64, R_AARCH64_PREL32, Form::word32},
    {Machine::aarch64, R_AARCH64_PREL64, Form::word64},
    {Machine::aarch64, R_AARCH64_LD_PREL_LO19, Form::branch, 19, 5},
    {Machine::aarch64, R_AARCH64_CONDBR19, Form::branch, 19, 5},
    {Machine::aarch64, R_AARCH64_TSTBR14, Form::branch, 14, 5},
    {Machine::aarch64, R_AARCH64_JUMP26, Form::branch, 26, 0},
    {Machine::aarch64, R_AARCH64_CALL26, Form::branch, 26, 0},
    {Machine::aarch64, R_AARCH64_ADR_PREL_LO21, Form::adr},
    {Machine::aarch64, R_AARCH64_ADR_PREL_PG_HI21, Form::adr_page},
    {Machine::aarch64, R_AARCH64_ADD_ABS_LO12_NC, Form::low12, 12, 0},
    {Machine::aarch64, R_AARCH64_LDST8_ABS_LO12_NC, Form::low12, 12, 0},
    {Machine::aarch64, R_AARCH64_LDST16_ABS_LO12_NC, Form::low12, 12, 1},
    {Machine::aarch64, R_AARCH64_LDST32_ABS_LO12_NC, Form::low12, 12, 2},
    {Machine::aarch64, R_AARCH64_LDST64_ABS_LO12_NC, Form::low12, 12, 3},
    {Machine::aarch64, R_AARCH64_LDST128_ABS_LO12_NC, Form::low12, 12, 4},
};

const Relocation& find_relocation(Machine machine, uint32_t type) {
    for (const Relocation& entry : relocations)
        if (entry.machine == machine && entry.type == type) return entry;
    raise(ErrorKind::value, concat("kernel object: relocation type ", type, " of machine ", int(machine),
                                   " is not one a self-contained kernel has"));
}

void check_fits(int64_t value, int bits) {
    const int64_t half = int64_t(1) << (bits - 1);
    KILN_CHECK(value >= -half && value < half, value, "kernel object: a relocation's value ", value,
               " does not fit ", bits, " bits");
}

// Replaces `bits` bits of the 4 bytes at `at`.
void patch(uint8_t* at, uint64_t value, int bits, int position) {
    uint32_t word;
    std::memcpy(&word, at, 4);
    const uint32_t mask = uint32_t((uint64_t(1) << bits) - 1) << position;
    word = (word & ~mask) | ((uint32_t(value) << position) & mask);
    std::memcpy(at, &word, 4);
}

// `target` is S + A and `place` P, both relative to the image; target wraps.
void apply(const Relocation& relocation, std::vector<uint8_t>& image, uint64_t target, uint64_t place) {
    uint8_t* const at = image.data() + place;
    const int64_t distance = int64_t(target - place);
    const int64_t pages = int64_t(target >> 12) - int64_t(place >> 12);
    switch (relocation.form) {
    case Form::none: return;
    case Form::word32: check_fits(distance, 32); return patch(at, uint64_t(distance), 32, 0);
    case Form::word64: std::memcpy(at, &distance, 8); return;
    case Form::branch:
        KILN_CHECK(distance % 4 == 0, value, "kernel object: a branch to an odd address");
        check_fits(distance / 4, relocation.bits);
        return patch(at, uint64_t(distance / 4), relocation.bits, relocation.position);
    case Form::adr:
    case Form::adr_page: {
        const int64_t value = relocation.form == Form::adr ? distance : pages;
        check_fits(value, 21);
        patch(at, uint64_t(value), 2, 29);
        return patch(at, uint64_t(value) >> 2, 19, 5);
    }
    case Form::low12: {
        const uint64_t low = target & 0xfff, scale = relocation.position;
        KILN_CHECK(low % (uint64_t(1) << scale) == 0, value,
                   "kernel object: a load from a misaligned constant");
        return patch(at, low >> scale, 12, 10);
    }
    }
}

size_t width(Form form) { return form == Form::none ? 0 : form == Form::word64 ? 8 : 4; }

// ---- linking ----

// What the objects of a kernel become together: their bytes, and where their global symbols are.
struct Image {
    std::vector<uint8_t> bytes;
    std::map<std::string_view, size_t> symbols;  // names lie in the objects
};

// One object on its way into an image.
class Linker {
public:
    Linker(std::span<const uint8_t> object, Machine machine, Image& image)
        : bytes_(object), machine_(machine), image_(image) {
        read_header();
        for (const Elf64_Shdr& section : sections_) place(section);
        find_symbols();
    }

    // Once every object is placed.
    void relocate() {
        for (const Elf64_Shdr& section : sections_) relocate(section);
    }

private:
    void read_header();
    void place(const Elf64_Shdr& section);
    bool loads(const Elf64_Shdr& section) const;
    void find_symbols();
    void define_globals();
    void relocate(const Elf64_Shdr& section);
    std::string_view symbol_name(const Elf64_Sym& symbol) const;
    Elf64_Sym symbol(uint64_t index) const {
        return bytes_.read<Elf64_Sym>(symbols_ + index * sizeof(Elf64_Sym));
    }
    size_t address(const Elf64_Sym& symbol) const;

    Bytes bytes_;
    Machine machine_;
    std::vector<Elf64_Shdr> sections_;
    std::vector<size_t> offsets_;  // of each section in the image, or not_loaded
    Image& image_;
    uint64_t symbols_ = 0, symbol_count_ = 0;
    std::span<const uint8_t> names_;  // of symbols; ends in a NUL
};

void Linker::read_header() {
    const auto header = bytes_.read<Elf64_Ehdr>(0);
    const bool elf = std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
                     header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_ident[EI_DATA] == ELFDATA2LSB &&
                     header.e_ident[EI_VERSION] == EV_CURRENT;
    KILN_CHECK(elf && header.e_type == ET_REL, value,
               "kernel object: expected a relocatable little-endian ELF64 file");
    KILN_CHECK(header.e_machine == uint16_t(machine_), value, "kernel object: for machine ",
               int(header.e_machine), ", this is machine ", int(machine_));
    KILN_CHECK(header.e_shentsize == sizeof(Elf64_Shdr) && header.e_shnum > 0, value,
               "kernel object: damaged: ", header.e_shnum, " sections with headers of ", header.e_shentsize,
               " bytes");
    const auto table = bytes_.range(header.e_shoff, uint64_t(header.e_shnum) * sizeof(Elf64_Shdr));
    sections_.resize(header.e_shnum);
    std::memcpy(sections_.data(), table.data(), table.size());
}

// Whether a section's bytes are part of the image; Error for one that a kernel does not have.
bool Linker::loads(const Elf64_Shdr& section) const {
    if (!(section.sh_flags & SHF_ALLOC) || section.sh_size == 0) return false;
    constexpr uint32_t unwind_tables = 0x70000001;  // x86-64's own type; nothing here unwinds
    if (section.sh_type == SHT_NOTE || section.sh_type == unwind_tables) return false;
    constexpr uint64_t known = SHF_ALLOC | SHF_EXECINSTR | SHF_MERGE | SHF_STRINGS | SHF_GROUP;
    KILN_CHECK(section.sh_type == SHT_PROGBITS && !(section.sh_flags & ~known), value,
               "kernel object: a section of type ", section.sh_type, " with flags ", section.sh_flags,
               "; expected code and constants only");
    return true;
}

void Linker::place(const Elf64_Shdr& section) {
    if (!loads(section)) return offsets_.push_back(not_loaded);
    const uint64_t alignment = std::max<uint64_t>(section.sh_addralign, 1);
    KILN_CHECK(std::has_single_bit(alignment) && alignment <= largest_alignment, value,
               "kernel object: a section aligned to ", alignment);
    const auto content = bytes_.range(section.sh_offset, section.sh_size);
    std::vector<uint8_t>& image = image_.bytes;
    const size_t offset = (image.size() + alignment - 1) & ~(alignment - 1);
    KILN_CHECK(content.size() <= largest_image - std::min(offset, largest_image), value,
               "kernel object: larger than ", largest_image, " bytes");
    image.resize(offset);
    image.insert(image.end(), content.begin(), content.end());
    offsets_.push_back(offset);
}

void Linker::find_symbols() {
    for (const Elf64_Shdr& section : sections_) {
        if (section.sh_type != SHT_SYMTAB) continue;
        KILN_CHECK(symbols_ == 0, value, "kernel object: more than one symbol table");
        KILN_CHECK(section.sh_entsize == sizeof(Elf64_Sym) && section.sh_size % sizeof(Elf64_Sym) == 0 &&
                       section.sh_link < sections_.size() && sections_[section.sh_link].sh_type == SHT_STRTAB,
                   value, "kernel object: damaged symbol table");
        bytes_.range(section.sh_offset, section.sh_size);
        symbols_ = section.sh_offset;
        symbol_count_ = section.sh_size / sizeof(Elf64_Sym);
        const Elf64_Shdr& names = sections_[section.sh_link];
        names_ = bytes_.range(names.sh_offset, names.sh_size);
        KILN_CHECK(!names_.empty() && names_.back() == 0, value, "kernel object: damaged symbol names");
    }
    define_globals();
}

std::string_view Linker::symbol_name(const Elf64_Sym& symbol) const {
    KILN_CHECK(symbol.st_name < names_.size(), value, "kernel object: damaged symbol name");
    return reinterpret_cast<const char*>(names_.data() + symbol.st_name);  // names_ ends in a NUL
}

// Where a symbol is in the image; one that another object defines is found by its name.
size_t Linker::address(const Elf64_Sym& symbol) const {
    if (symbol.st_shndx == SHN_UNDEF && ELF64_ST_BIND(symbol.st_info) == STB_GLOBAL) {
        const auto found = image_.symbols.find(symbol_name(symbol));
        KILN_CHECK(found != image_.symbols.end(), value, "kernel object: undefined symbol '",
                   printable(symbol_name(symbol)), "'; a kernel calls nothing outside itself");
        return found->second;
    }
    const bool placed = symbol.st_shndx < sections_.size() && offsets_[symbol.st_shndx] != not_loaded;
    KILN_CHECK(placed, value, "kernel object: a reference to '", printable(symbol_name(symbol)),
               "', which is not in the object");
    KILN_CHECK(symbol.st_value <= sections_[symbol.st_shndx].sh_size, value, "kernel object: symbol '",
               printable(symbol_name(symbol)), "' lies outside its section");
    return offsets_[symbol.st_shndx] + symbol.st_value;
}

void Linker::define_globals() {
    for (uint64_t index = 1; index < symbol_count_; ++index) {
        const Elf64_Sym candidate = symbol(index);
        if (candidate.st_shndx == SHN_UNDEF || ELF64_ST_BIND(candidate.st_info) != STB_GLOBAL) continue;
        const std::string_view name = symbol_name(candidate);
        KILN_CHECK(image_.symbols.emplace(name, address(candidate)).second, value,
                   "kernel object: more than one symbol '", printable(name), "'");
        const Elf64_Shdr& section = sections_[candidate.st_shndx];
        KILN_CHECK((section.sh_flags & SHF_EXECINSTR) && candidate.st_value < section.sh_size, value,
                   "kernel object: '", printable(name), "' is not a function");
    }
}

void Linker::relocate(const Elf64_Shdr& section) {
    if (section.sh_type != SHT_RELA && section.sh_type != SHT_REL) return;
    KILN_CHECK(section.sh_info < sections_.size(), value,
               "kernel object: relocations of a section that is not there");
    const size_t base = offsets_[section.sh_info];
    if (base == not_loaded) return;
    KILN_CHECK(section.sh_type == SHT_RELA && section.sh_entsize == sizeof(Elf64_Rela) &&
                   section.sh_size % sizeof(Elf64_Rela) == 0,
               value, "kernel object: damaged relocations");
    KILN_CHECK(section.sh_link < sections_.size() && sections_[section.sh_link].sh_type == SHT_SYMTAB, value,
               "kernel object: relocations without symbols");
    bytes_.range(section.sh_offset, section.sh_size);
    const uint64_t room = sections_[section.sh_info].sh_size;
    for (uint64_t at = 0; at < section.sh_size; at += sizeof(Elf64_Rela)) {
        const auto entry = bytes_.read<Elf64_Rela>(section.sh_offset + at);
        const Relocation& relocation = find_relocation(machine_, uint32_t(ELF64_R_TYPE(entry.r_info)));
        const uint64_t needed = width(relocation.form), index = ELF64_R_SYM(entry.r_info);
        KILN_CHECK(entry.r_offset <= room && needed <= room - entry.r_offset, value,
                   "kernel object: a relocation outside its section");
        KILN_CHECK(index < symbol_count_, value, "kernel object: a relocation of symbol ", index, " of ",
                   symbol_count_);
        if (relocation.form == Form::none) continue;
        const uint64_t target = address(symbol(index)) + uint64_t(entry.r_addend);
        // A jump table's entries add their place in the table, so a target may lie past the end by a table.
        KILN_CHECK(target + image_.bytes.size() + 64 <= 3 * image_.bytes.size() + 128, value,
                   "kernel object: a reference outside the object");
        apply(relocation, image_.bytes, target, base + entry.r_offset);
    }
}

// ---- mapping ----

// Executable memory in whole pages. A page is written first and then made executable, never both at once. One
// private mapping serves many kernels, so that neighbours merge into one region of the address space; a
// shared one with two views would need no system call per kernel, but a forked child and its parent would
// then write kernels over each other's.
class CodeArena {
public:
    uint8_t* take(size_t nbytes);             // writable; a multiple of the page size
    void seal(uint8_t* base, size_t nbytes);  // executable from now on
    void give_back(uint8_t* base, size_t nbytes);

private:
    struct Run {
        uint8_t* base;
        size_t nbytes;
    };
    static constexpr size_t mapped_at_once = 1 << 20;
    std::vector<Run> free_;  // writable pages
};

uint8_t* CodeArena::take(size_t nbytes) {
    auto fits = [nbytes](const Run& run) { return run.nbytes >= nbytes; };
    auto found = std::find_if(free_.begin(), free_.end(), fits);
    if (found == free_.end()) {
        const size_t whole = std::max(nbytes, mapped_at_once);
        void* mapped = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        KILN_CHECK(mapped != MAP_FAILED, memory, "kernel object: no memory for ", nbytes, " bytes of code");
        free_.push_back({static_cast<uint8_t*>(mapped), whole});
        found = free_.end() - 1;
    }
    uint8_t* const base = found->base;
    found->base += nbytes;
    found->nbytes -= nbytes;
    if (found->nbytes == 0) free_.erase(found);
    return base;
}

void CodeArena::seal(uint8_t* base, size_t nbytes) {
    const bool sealed = mprotect(base, nbytes, PROT_READ | PROT_EXEC) == 0;
    if (!sealed) free_.push_back({base, nbytes});
    KILN_CHECK(sealed, memory, "kernel object: this system refuses to make memory executable (",
               std::strerror(errno), "); kiln generates its kernels and needs that");
    __builtin___clear_cache(reinterpret_cast<char*>(base), reinterpret_cast<char*>(base + nbytes));
}

void CodeArena::give_back(uint8_t* base, size_t nbytes) {
    if (mprotect(base, nbytes, PROT_READ | PROT_WRITE) != 0) return;  // unusable, and harmless
    free_.push_back({base, nbytes});
}

CodeArena& arena() {
    static CodeArena* const instance = new CodeArena;  // kernels may die after every static
    return *instance;
}

#if defined(__aarch64__)
constexpr Machine this_machine = Machine::aarch64;
#else
constexpr Machine this_machine = Machine::x86_64;
#endif

// A kernel made of several objects: the mark, their number, their sizes in bytes, then they themselves.
std::vector<std::span<const uint8_t>> objects_of(std::span<const uint8_t> kernel) {
    const Bytes bytes(kernel);
    if (kernel.size() < 8 || bytes.read<uint64_t>(0) != bundle_mark) return {kernel};
    const auto count = bytes.read<uint32_t>(8);
    KILN_CHECK(count <= 16, value, "kernel object: damaged: a bundle of ", count, " objects");
    std::vector<std::span<const uint8_t>> objects;
    uint64_t at = 12 + 4 * uint64_t(count);
    for (uint32_t k = 0; k < count; ++k) {
        objects.push_back(bytes.range(at, bytes.read<uint32_t>(12 + 4 * k)));
        at += objects.back().size();
    }
    KILN_CHECK(at == kernel.size(), value, "kernel object: damaged: ", kernel.size() - at,
               " bytes after its objects");
    return objects;
}

}  // namespace

KernelImage link_kernel(std::span<const uint8_t> kernel, Machine machine) {
    Image image;
    std::vector<Linker> objects;
    for (std::span<const uint8_t> object : objects_of(kernel)) objects.emplace_back(object, machine, image);
    for (Linker& object : objects) object.relocate();
    const auto entry = image.symbols.find("kernel");
    KILN_CHECK(entry != image.symbols.end(), value, "kernel object: no function named 'kernel'");
    return {std::move(image.bytes), entry->second};
}

KernelObject::KernelObject(std::span<const uint8_t> object) {
    assert_locked();
    const KernelImage image = link_kernel(object, this_machine);
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    const size_t nbytes = (image.bytes.size() + page - 1) / page * page;
    uint8_t* const base = arena().take(nbytes);
    std::memcpy(base, image.bytes.data(), image.bytes.size());
    arena().seal(base, nbytes);
    base_ = base;
    nbytes_ = nbytes;
    function_ = reinterpret_cast<KernelFunction>(base + image.entry);
}

KernelObject::~KernelObject() {
    assert_locked();
    if (base_) arena().give_back(base_, nbytes_);
}

}  // namespace kiln
