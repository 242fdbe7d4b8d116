// A vector whose first N elements need no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace kiln {

template <class T, size_t N>
class SmallVector {
public:
    static_assert(std::is_nothrow_move_constructible_v<T>);

    SmallVector() = default;
    SmallVector(SmallVector&& other) noexcept { take(other); }
    SmallVector(const SmallVector&) = delete;
    SmallVector& operator=(const SmallVector&) = delete;
    SmallVector& operator=(SmallVector&& other) noexcept {
        if (this == &other) return *this;
        clear();
        give_back();
        take(other);
        return *this;
    }
    ~SmallVector() {
        clear();
        give_back();
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

    template <class... Args>
    T& emplace_back(Args&&... args) {
        if (count_ == capacity_) grow(2 * size_t(capacity_));
        return *new (data_ + count_++) T(std::forward<Args>(args)...);
    }
    void push_back(T value) { emplace_back(std::move(value)); }
    void pop_back() { data_[--count_].~T(); }
    void resize(size_t count) {
        if (count > capacity_) grow(count);
        while (count_ < count) new (data_ + count_++) T();
        while (count_ > count) data_[--count_].~T();
    }
    void clear() {
        while (count_ > 0) data_[--count_].~T();
    }

private:
    T* inline_data() { return reinterpret_cast<T*>(inline_); }
    void give_back() {
        if (data_ != inline_data()) ::operator delete(data_);
        data_ = inline_data();
        capacity_ = N;
    }
    // Into an empty vector without memory of its own; allocates nothing.
    void take(SmallVector& other) noexcept {
        if (other.data_ == other.inline_data()) {
            for (T& value : other) new (data_ + count_++) T(std::move(value));
            return other.clear();
        }
        data_ = std::exchange(other.data_, other.inline_data());
        count_ = std::exchange(other.count_, 0);
        capacity_ = std::exchange(other.capacity_, uint32_t(N));
    }
    [[gnu::noinline]] void grow(size_t capacity) {
        if (capacity > UINT32_MAX) throw std::bad_alloc();
        T* grown = static_cast<T*>(::operator new(capacity * sizeof(T)));
        for (size_t i = 0; i < count_; ++i) {
            new (grown + i) T(std::move(data_[i]));
            data_[i].~T();
        }
        if (data_ != inline_data()) ::operator delete(data_);
        data_ = grown;
        capacity_ = uint32_t(capacity);
    }

    T* data_ = inline_data();
    uint32_t count_ = 0;
    uint32_t capacity_ = N;
    alignas(T) std::byte inline_[N * sizeof(T)];
};

}  // namespace kiln
