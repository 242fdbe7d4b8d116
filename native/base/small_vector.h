// The one short list of the core: its first N elements need no allocation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace kiln {

// A list of plain values can be copied; one of references, which costs counting them, is only moved.
template <class T, size_t N>
class SmallVector {
public:
    static_assert(std::is_nothrow_move_constructible_v<T>);
    static constexpr bool plain = std::is_trivially_copyable_v<T>;

    SmallVector() = default;
    explicit SmallVector(size_t count, T value = T())
        requires plain
    {
        reserve(count);
        std::fill_n(data_, count, value);
        count_ = uint32_t(count);
    }
    explicit SmallVector(std::span<const T> values)
        requires plain
    {
        reserve(values.size());
        if (!values.empty()) std::memcpy(data_, values.data(), values.size_bytes());
        count_ = uint32_t(values.size());
    }
    SmallVector(std::initializer_list<T> values)
        requires plain
        : SmallVector(std::span(values.begin(), values.size())) {}
    SmallVector(const SmallVector& other)
        requires plain
    {
        copy(other);
    }
    SmallVector(SmallVector&& other) noexcept { take(other); }
    SmallVector& operator=(const SmallVector& other)
        requires plain
    {
        if (this != &other) copy(other);
        return *this;
    }
    SmallVector& operator=(SmallVector&& other) noexcept {
        if (this == &other) return *this;
        clear();
        give_back();
        take(other);
        return *this;
    }
    ~SmallVector() {
        clear();
        if (!is_inline()) [[unlikely]]
            ::operator delete(data_);
    }

    T* begin() { return data_; }
    T* end() { return data_ + count_; }
    const T* begin() const { return data_; }
    const T* end() const { return data_ + count_; }
    T* data() { return data_; }
    const T* data() const { return data_; }
    size_t size() const { return count_; }
    bool empty() const { return count_ == 0; }
    T& operator[](size_t i) { return data_[i]; }
    const T& operator[](size_t i) const { return data_[i]; }
    T& back() { return data_[count_ - 1]; }
    bool operator==(const SmallVector& other) const {  // short lists: no call of memcmp
        if (count_ != other.count_) return false;
        for (size_t i = 0; i < count_; ++i)
            if (!(data_[i] == other.data_[i])) return false;
        return true;
    }

    template <class... Args>
    T& emplace_back(Args&&... args) {
        if (count_ == capacity_) [[unlikely]]
            grow(size_t(count_) + 1);
        return *new (data_ + count_++) T(std::forward<Args>(args)...);
    }
    void push_back(T value) { emplace_back(std::move(value)); }
    void pop_back() { data_[--count_].~T(); }
    void resize(size_t count) {
        reserve(count);
        while (count_ < count) new (data_ + count_++) T();
        while (count_ > count) data_[--count_].~T();
    }
    void reserve(size_t count) {
        if (count > capacity_) [[unlikely]]
            grow(count);
    }
    [[gnu::always_inline]] void clear() {  // most are empty: that is asked without a call
        if constexpr (plain)
            count_ = 0;
        else if (count_)
            drop_all();
    }

private:
    T* inline_data() { return reinterpret_cast<T*>(inline_); }
    bool is_inline() const { return data_ == reinterpret_cast<const T*>(inline_); }
    void give_back() {
        if (!is_inline()) ::operator delete(data_);
        data_ = inline_data();
        capacity_ = N;
    }
    [[gnu::noinline]] void drop_all() {
        uint32_t left = count_;
        while (left > 0) {
            count_ = --left;  // what a destructor calls may look at the others
            data_[left].~T();
        }
    }
    void copy(const SmallVector& other) {
        if (is_inline() && other.is_inline()) {  // of a fixed size: a few moves
            std::memcpy(inline_, other.inline_, sizeof inline_);
        } else {
            reserve(other.count_);
            std::memcpy(data_, other.data_, other.count_ * sizeof(T));
        }
        count_ = other.count_;
    }
    // Into an empty vector without memory of its own; allocates nothing.
    void take(SmallVector& other) noexcept {
        if (!other.is_inline()) {
            data_ = std::exchange(other.data_, other.inline_data());
            capacity_ = std::exchange(other.capacity_, uint32_t(N));
        } else if constexpr (plain) {
            std::memcpy(inline_, other.inline_, sizeof inline_);
        } else {
            for (T& value : other) new (data_ + count_++) T(std::move(value));
            return other.clear();
        }
        count_ = std::exchange(other.count_, 0);
    }
    [[gnu::noinline]] void grow(size_t count) {
        const size_t capacity = std::max(count, 2 * size_t(capacity_));
        if (capacity > UINT32_MAX) throw std::bad_alloc();
        T* grown = static_cast<T*>(::operator new(capacity * sizeof(T)));
        for (size_t i = 0; i < count_; ++i) {
            new (grown + i) T(std::move(data_[i]));
            data_[i].~T();
        }
        if (!is_inline()) ::operator delete(data_);
        data_ = grown;
        capacity_ = uint32_t(capacity);
    }

    T* data_ = inline_data();
    uint32_t count_ = 0;
    uint32_t capacity_ = N;
    alignas(T) std::byte inline_[N * sizeof(T)];
};

}  // namespace kiln
