// Objects that are made and dropped at every op, kept for the next one.
#pragma once

#include <new>
#include <vector>

namespace kiln {

// Called with the interpreter lock held. Never destroyed: objects may be dropped as the process ends.
template <class Object>
class FreeList {
public:
    static Object* make() {
        auto& spare = list();
        if (spare.empty()) return new Object;
        Object* object = spare.back();
        spare.pop_back();
        return new (object) Object;
    }
    static void drop(Object* object) {
        object->~Object();
        if (list().size() < most_)
            list().push_back(object);
        else
            ::operator delete(object);
    }

private:
    static constexpr size_t most_ = 4096;
    static std::vector<Object*>& list() {
        static auto* spare = new std::vector<Object*>();
        return *spare;
    }
};

}  // namespace kiln
