// Objects that are made and dropped at every op, kept for the next one.
#pragma once

#include <cstddef>
#include <new>

namespace kiln {

// Called with the interpreter lock held. Never destroyed: objects may be dropped as the process ends.
template <class Object>
class FreeList {
public:
    static Object* make() {
        if (!first_) return new Object;
        Link* link = first_;
        first_ = link->next;
        --count_;
        return new (static_cast<void*>(link)) Object;
    }
    static void drop(Object* object) {
        object->~Object();
        if (count_ == most_) return ::operator delete(object);
        first_ = new (static_cast<void*>(object)) Link{first_};
        ++count_;
    }

private:
    struct Link {
        Link* next;
    };
    static constexpr size_t most_ = 4096;
    static inline Link* first_ = nullptr;
    static inline size_t count_ = 0;
};

}  // namespace kiln
