# Types of nodenames.py, for Cython.
cimport cython

cdef int _QUOTE, _COMMA, _SPACE, _BACKSLASH, _LAST, _BETWEEN
cdef Py_ssize_t _MOST_BYTES
cdef unsigned long long _FACTOR, _WORD, _LOW


cdef class NameList:
    cdef readonly bytes text
    cdef readonly Py_ssize_t count
    cdef const unsigned char[::1] _letters
    cdef unsigned int[::1] _spans

    @cython.locals(quotes=Py_ssize_t)
    cpdef bytes only(self, const unsigned char[::1] found, int code)
    cdef int _check(self, const unsigned char[::1] found) except -1


cdef class NameTable:
    cdef unsigned long long[::1] _records, _places
    cdef Py_ssize_t _used, _count
    cdef unsigned int _mask

    @cython.locals(
        size=Py_ssize_t, at=Py_ssize_t, used=Py_ssize_t, word="unsigned long long")
    cpdef add(self, const unsigned char[::1] name, unsigned int number)

    cpdef lookup(
        self, NameList names, const unsigned char[::1] codes, int unknown,
        unsigned char[::1] found)

    @cython.locals(before="unsigned long long[::1]", at=Py_ssize_t)
    cdef _make_room(self, Py_ssize_t words)


@cython.locals(size=Py_ssize_t, at=Py_ssize_t, odd=int, quotes=int, letter=int)
cdef Py_ssize_t _count_quotes(const unsigned char[::1] text) except -2

@cython.locals(size=Py_ssize_t, at=Py_ssize_t, name=Py_ssize_t)
cdef bint _find_spans(
    const unsigned char[::1] text, unsigned int[::1] spans, Py_ssize_t count) except -1

cdef Py_ssize_t _skip(
    const unsigned char[::1] text, Py_ssize_t at, Py_ssize_t size, int letter) noexcept

@cython.locals(name=Py_ssize_t, total=Py_ssize_t)
cdef Py_ssize_t _size_of_only(
    unsigned int[::1] spans, Py_ssize_t count, const unsigned char[::1] found,
    int code) noexcept

@cython.locals(
    name=Py_ssize_t, first=Py_ssize_t, end=Py_ssize_t, to=Py_ssize_t, start=Py_ssize_t)
cdef void _write_only(
    const unsigned char[::1] text, unsigned int[::1] spans, Py_ssize_t count,
    const unsigned char[::1] found, int code, unsigned char[::1] out) noexcept

@cython.locals(name=Py_ssize_t, total=Py_ssize_t, code=int)
cdef Py_ssize_t _size_of_forms(
    unsigned int[::1] spans, Py_ssize_t count, const unsigned char[::1] found, int[::1] starts,
    int[::1] ends) noexcept

@cython.locals(name=Py_ssize_t, to=Py_ssize_t, code=int)
cdef void _write_forms(
    const unsigned char[::1] text, unsigned int[::1] spans, Py_ssize_t count,
    const unsigned char[::1] found, const unsigned char[::1] pieces, int[::1] starts,
    int[::1] middles, int[::1] ends, unsigned char[::1] out) noexcept

@cython.locals(at=Py_ssize_t)
cdef Py_ssize_t _copy(
    const unsigned char[::1] source, Py_ssize_t first, Py_ssize_t end, unsigned char[::1] out,
    Py_ssize_t to) noexcept

@cython.locals(word="unsigned long long", behind=Py_ssize_t)
cdef unsigned long long _load(
    const unsigned char[::1] text, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(mixed="unsigned long long", at=Py_ssize_t)
cdef unsigned int _hash(
    const unsigned char[::1] text, Py_ssize_t start, Py_ssize_t end) noexcept

@cython.locals(name=Py_ssize_t)
cdef void _hash_all(
    const unsigned char[::1] text, unsigned int[::1] spans, Py_ssize_t count,
    unsigned int[::1] hashes) noexcept

@cython.locals(at="unsigned int")
cdef void _place(
    unsigned long long[::1] places, unsigned int mask, unsigned long long place) noexcept

@cython.locals(
    known=Py_ssize_t, name=Py_ssize_t, mixed="unsigned int", at="unsigned int", code=int,
    place="unsigned long long", record=Py_ssize_t, number=Py_ssize_t)
cdef void _lookup_all(
    const unsigned char[::1] text, unsigned int[::1] spans, unsigned int[::1] hashes,
    unsigned long long[::1] places, unsigned int mask, unsigned long long[::1] records,
    const unsigned char[::1] codes, int unknown, unsigned char[::1] found) noexcept

@cython.locals(differing="unsigned long long", at=Py_ssize_t)
cdef bint _is(
    unsigned long long[::1] records, Py_ssize_t record, const unsigned char[::1] text,
    Py_ssize_t start, Py_ssize_t end) noexcept
