# Types of capacity.py, for Cython.
cimport cython

cdef int FITS, CLOSED, SMALL, FEWER, TAKEN, FEW, UNKNOWN, NONSENSE
cdef long long FULL, BEST, WHOLE, _CROWDED, _ROOMY
cdef Py_ssize_t CELLS


cpdef bint serves(
    long long memory, long long least, long long left_vcore, long long left_bytes,
    bint untouched, long long vcore, long long vmemory)


cdef class Ask:
    cdef long long[::1] _needs
    cdef Py_ssize_t _count
    cdef long long _vcore, _vmemory
    cdef object _allow
    cdef dict _allowed
    cdef frozenset _uuids, _not_uuids
    cdef bint _names, _special

    cpdef bytes allowed(self, tuple kinds)
    cpdef bint wants(self, str uuid) except -1


cdef class Capacity:
    cdef readonly long long unit
    cdef tuple _kinds, _uuids
    cdef long long[::1] _cells
    cdef Py_ssize_t _count

    @cython.locals(at=Py_ssize_t)
    cdef bint _has_room(self, Py_ssize_t device, long long vcore, long long vmemory) except -1

    @cython.locals(at=Py_ssize_t)
    cdef bint _has_spare(self, Py_ssize_t device, long long vcore, long long vmemory) except -1

    @cython.locals(kind="long long")
    cdef bint _may(self, Ask ask, bytes allowed, Py_ssize_t device) except -1

    @cython.locals(
        allowed=bytes, found=int, container=Py_ssize_t, device=Py_ssize_t, vcore="long long",
        vmemory="long long", count="long long", opened="long long", large="long long",
        serving="long long", memory="long long", least="long long")
    cpdef int evaluate(self, Ask ask) except -1

    @cython.locals(
        allowed=bytes, device=Py_ssize_t, best="long long", total="long long", used="long long",
        full="long long", whole="long long", points="long long", crowded=bint, exceeds=bint,
        spare=bint)
    cpdef int score(self, Ask ask, bint spread) except -1


@cython.locals(unit="long long", ask=Ask, node=Capacity, number=Py_ssize_t)
cpdef evaluate_all(list nodes, object numbers, object asked, unsigned char[::1] codes)


@cython.locals(unit="long long", ask=Ask, node=Capacity, number=Py_ssize_t)
cpdef score_all(
    list nodes, object numbers, object asked, bint spread, unsigned char[::1] fitting,
    unsigned char[::1] scores)
