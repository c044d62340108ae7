# Types of nodenames.py, for Cython.
cimport cython

cdef int _QUOTE, _COMMA, _SPACE, _BACKSLASH, _LAST
cdef Py_ssize_t _MOST_BYTES
cdef unsigned int _LOW
cdef unsigned long long _FACTOR, _WORD


@cython.locals(size=Py_ssize_t, at=Py_ssize_t, names=Py_ssize_t, after=Py_ssize_t)
cpdef Py_ssize_t count(const unsigned char[::1] text) except -2

@cython.locals(odd=int, at=Py_ssize_t, letter=int)
cdef int _is_plain(const unsigned char[::1] text, Py_ssize_t size) except -1

cdef Py_ssize_t _skip(
    const unsigned char[::1] text, Py_ssize_t at, Py_ssize_t size, int letter) except -2

cdef Py_ssize_t _end(const unsigned char[::1] text, Py_ssize_t at, Py_ssize_t size) except -1

@cython.locals(size=Py_ssize_t, at=Py_ssize_t, number=Py_ssize_t, total=Py_ssize_t, first=Py_ssize_t, code=int)
cdef Py_ssize_t _written(
    const unsigned char[::1] text, const unsigned char[::1] found, int[::1] starts,
    int[::1] ends) except -1

@cython.locals(size=Py_ssize_t, at=Py_ssize_t, number=Py_ssize_t, to=Py_ssize_t, first=Py_ssize_t, code=int)
cdef void _write(
    const unsigned char[::1] text, const unsigned char[::1] found, const unsigned char[::1] pieces,
    int[::1] starts, int[::1] middles, int[::1] ends, unsigned char[::1] out) except *

@cython.locals(at=Py_ssize_t)
cdef Py_ssize_t _copy(
    const unsigned char[::1] source, Py_ssize_t first, Py_ssize_t end, unsigned char[::1] out,
    Py_ssize_t to) except -1

@cython.locals(
    mixed="unsigned long long", word="unsigned long long", at=Py_ssize_t, next_=Py_ssize_t)
cdef unsigned int _hash(const unsigned char[::1] text, Py_ssize_t first, Py_ssize_t end) except? 1


cdef class NameTable:
    cdef unsigned char[::1] _letters
    cdef Py_ssize_t _used, _count
    cdef unsigned int[::1] _starts, _sizes, _numbers
    cdef unsigned long long[::1] _places
    cdef unsigned int _mask

    @cython.locals(first=Py_ssize_t)
    cpdef add(self, const unsigned char[::1] name, unsigned int number)

    @cython.locals(
        size=Py_ssize_t, known=Py_ssize_t, at=Py_ssize_t, number=Py_ssize_t, first=Py_ssize_t,
        name=Py_ssize_t, code=int)
    cpdef look(
        self, const unsigned char[::1] text, const unsigned char[::1] codes, int unknown,
        unsigned char[::1] found)

    @cython.locals(
        mixed="unsigned int", at="unsigned int", place="unsigned long long")
    cdef Py_ssize_t _find(
        self, const unsigned char[::1] text, Py_ssize_t first, Py_ssize_t end) except? -2

    @cython.locals(
        name=Py_ssize_t, start=Py_ssize_t, differing=int, at=Py_ssize_t)
    cdef int _is(
        self, unsigned long long place, const unsigned char[::1] text, Py_ssize_t first,
        Py_ssize_t end) except? -2

    @cython.locals(
        start=Py_ssize_t, mixed="unsigned int", at="unsigned int", place="unsigned long long")
    cdef void _take_place(self, Py_ssize_t name) except *

    @cython.locals(name=Py_ssize_t)
    cdef _make_room(self, Py_ssize_t size)
