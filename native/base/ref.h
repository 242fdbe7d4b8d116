// References that count.
#pragma once

#include <cstddef>
#include <utility>

namespace kiln {

// An intrusive owning reference; Object has `uint32_t refcount` and a free function `release(Object*)`.
template <class Object>
class Ref {
public:
    Ref() = default;
    Ref(std::nullptr_t) {}
    Ref(Object* object) : object_(object) {
        if (object_) ++object_->refcount;
    }
    Ref(const Ref& other) : Ref(other.object_) {}
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref& operator=(Ref other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~Ref() {
        if (object_ && --object_->refcount == 0) release(object_);
    }
    Object* get() const { return object_; }
    Object* operator->() const { return object_; }
    Object& operator*() const { return *object_; }
    explicit operator bool() const { return object_ != nullptr; }
    bool operator==(const Ref& other) const = default;

private:
    Object* object_ = nullptr;
};

}  // namespace kiln
