# Types of words.py, for Cython.
cimport cython


@cython.locals(found="unsigned long long", bits=int, byte=Py_ssize_t, part="unsigned long long")
cpdef unsigned long long at(const unsigned char[::1] raw, Py_ssize_t place)

@cython.locals(total="unsigned long long", slot=Py_ssize_t)
cpdef unsigned long long held(const unsigned char[::1] row, object slots, unsigned long long mask)

@cython.locals(row=Py_ssize_t, place=Py_ssize_t)
cpdef list columns(const unsigned char[::1] raw, Py_ssize_t rows, Py_ssize_t size, tuple places)
