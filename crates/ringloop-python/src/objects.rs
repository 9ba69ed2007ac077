//! Creates Python objects from Rust's values, and raises `MemoryError` when memory runs out.
//!
//! PyO3's own conversions panic in that case, and an error that it creates only when it is raised aborts the process.
//! So nothing here is lazy, and other modules do not use what clippy.toml lists.

#![allow(unsafe_code)]

use pyo3::exceptions::PyOSError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use pyo3::{BoundObject, PyTypeInfo};

/// From this length on, `text` fills in ASCII itself.
const ASCII_MIN: usize = 32;

/// A value that becomes a new Python object where it is returned or passed to Python.
pub(crate) struct New<T>(pub(crate) T);

/// Takes the reference that a function of the C API gives, or the error that it set.
///
/// # Safety
/// `pointer` is null with an exception set, or an owned reference to an object of `T`.
unsafe fn owned<T>(py: Python<'_>, pointer: *mut ffi::PyObject) -> PyResult<Bound<'_, T>> {
    // SAFETY: the pointer is null with an exception set, or an owned reference to an object of `T`, which is the
    // function's contract.
    unsafe { Bound::from_owned_ptr_or_err(py, pointer).map(|object| object.cast_into_unchecked()) }
}

pub(crate) fn string<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyString>> {
    let (start, len) = (text.as_ptr().cast(), text.len() as ffi::Py_ssize_t);
    // SAFETY: the GIL is held (`py`), and the text is UTF-8 of this length.
    unsafe { owned(py, ffi::PyUnicode_FromStringAndSize(start, len)) }
}

/// A string of bytes that should be UTF-8: if they are not, `UnicodeDecodeError`.
pub(crate) fn text<'py>(py: Python<'py>, utf8: &[u8]) -> PyResult<Bound<'py, PyString>> {
    let len = utf8.len() as ffi::Py_ssize_t;
    // The interpreter has the shortest strings already, and its decoder looks for what isn't ASCII less quickly.
    if utf8.len() < ASCII_MIN || !utf8.is_ascii() {
        // SAFETY: the GIL is held (`py`), and there are that many bytes.
        return unsafe {
            owned(
                py,
                ffi::PyUnicode_FromStringAndSize(utf8.as_ptr().cast(), len),
            )
        };
    }
    // SAFETY: the GIL is held (`py`). A new string of ASCII has room for `len` bytes, and a zero behind them that is
    // there already. It is not empty, so nobody else has it.
    unsafe {
        let string = owned::<PyString>(py, ffi::PyUnicode_New(len, 0x7F))?;
        let data = ffi::PyUnicode_DATA(string.as_ptr()).cast::<u8>();
        std::ptr::copy_nonoverlapping(utf8.as_ptr(), data, utf8.len());
        Ok(string)
    }
}

/// A string that is made once for all who ask for the same text.
pub(crate) fn interned<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyString>> {
    let mut pointer = string(py, text)?.into_ptr();
    // SAFETY: an owned reference goes in, and one comes out: to the same string where there is no memory for more.
    unsafe {
        ffi::PyUnicode_InternInPlace(&raw mut pointer);
        owned(py, pointer)
    }
}

pub(crate) fn bytes<'py>(py: Python<'py>, content: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let (start, len) = (content.as_ptr().cast(), content.len() as ffi::Py_ssize_t);
    // SAFETY: the GIL is held (`py`), and the content has this length.
    unsafe { owned(py, ffi::PyBytes_FromStringAndSize(start, len)) }
}

pub(crate) fn bytearray<'py>(py: Python<'py>, content: &[u8]) -> PyResult<Bound<'py, PyByteArray>> {
    let (start, len) = (content.as_ptr().cast(), content.len() as ffi::Py_ssize_t);
    // SAFETY: the GIL is held (`py`), and the content has this length.
    unsafe { owned(py, ffi::PyByteArray_FromStringAndSize(start, len)) }
}

pub(crate) fn float(py: Python<'_>, value: f64) -> PyResult<Bound<'_, PyFloat>> {
    // SAFETY: the GIL is held (`py`).
    unsafe { owned(py, ffi::PyFloat_FromDouble(value)) }
}

fn signed(py: Python<'_>, value: i64) -> PyResult<Bound<'_, PyInt>> {
    // SAFETY: the GIL is held (`py`).
    unsafe { owned(py, ffi::PyLong_FromLongLong(value)) }
}

fn unsigned(py: Python<'_>, value: u64) -> PyResult<Bound<'_, PyInt>> {
    // SAFETY: the GIL is held (`py`).
    unsafe { owned(py, ffi::PyLong_FromUnsignedLongLong(value)) }
}

pub(crate) fn dict(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    // SAFETY: the GIL is held (`py`).
    unsafe { owned(py, ffi::PyDict_New()) }
}

/// The item of a dictionary; None if there is none.
///
/// # Safety
/// The GIL is held, and both are alive; `dict` is a dictionary.
#[inline]
pub(crate) unsafe fn dict_item(
    py: Python<'_>,
    dict: *mut ffi::PyObject,
    key: *mut ffi::PyObject,
) -> PyResult<Option<Bound<'_, PyAny>>> {
    // SAFETY: the GIL is held, and both are alive, which is the function's contract. With the GIL the item is borrowed from
    // the dictionary; without it, another thread could take that away, so the reference is a new one.
    unsafe {
        #[cfg(not(Py_GIL_DISABLED))]
        let found = Bound::from_borrowed_ptr_or_opt(py, ffi::PyDict_GetItemWithError(dict, key));
        #[cfg(Py_GIL_DISABLED)]
        let found = {
            let mut item = std::ptr::null_mut();
            ffi::PyDict_GetItemRef(dict, key, &raw mut item);
            Bound::from_owned_ptr_or_opt(py, item)
        };
        match found {
            None if !ffi::PyErr_Occurred().is_null() => Err(PyErr::fetch(py)),
            found => Ok(found),
        }
    }
}

/// A tuple with what a list has now.
pub(crate) fn tuple_of_list<'py>(list: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyTuple>> {
    // SAFETY: the GIL is held, and the list is alive.
    unsafe { owned(list.py(), ffi::PyList_AsTuple(list.as_ptr())) }
}

pub(crate) fn tuple<'py, const N: usize>(
    py: Python<'py>,
    items: [Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyTuple>> {
    // SAFETY: the GIL is held (`py`). Each place of the new tuple gets one owned reference before anybody else can see
    // it.
    unsafe {
        let tuple = owned::<PyTuple>(py, ffi::PyTuple_New(N as ffi::Py_ssize_t))?;
        for (index, item) in items.into_iter().enumerate() {
            ffi::PyTuple_SET_ITEM(tuple.as_ptr(), index as ffi::Py_ssize_t, item.into_ptr());
        }
        Ok(tuple)
    }
}

/// A new tuple of borrowed objects; null with `MemoryError` set.
///
/// # Safety
/// The GIL is held and every pointer is a live object.
pub(crate) unsafe fn tuple_from_borrowed(items: &[*mut ffi::PyObject]) -> *mut ffi::PyObject {
    // SAFETY: the GIL is held, and the items are live objects, which is the function's contract. Each place of the new
    // tuple gets one reference of its own before anybody else can see it.
    unsafe {
        let tuple = ffi::PyTuple_New(items.len() as ffi::Py_ssize_t);
        if !tuple.is_null() {
            for (index, &item) in items.iter().enumerate() {
                ffi::PyTuple_SET_ITEM(tuple, index as ffi::Py_ssize_t, ffi::Py_NewRef(item));
            }
        }
        tuple
    }
}

/// `callable(*arguments)` with one keyword argument for each of `names`, which come last in `arguments`.
pub(crate) fn call<'py, const N: usize>(
    callable: &Bound<'py, PyAny>,
    arguments: [&Bound<'py, PyAny>; N],
    names: Option<&Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the GIL is held (`'py`), and the caller keeps the arguments for the length of the call.
    unsafe { vectorcall(callable, &arguments.map(Bound::as_ptr), names) }
}

/// As `call`, for borrowed objects.
///
/// # Safety
/// The GIL is held, and every argument is alive for the length of the call.
pub(crate) unsafe fn vectorcall<'py>(
    callable: &Bound<'py, PyAny>,
    arguments: &[*mut ffi::PyObject],
    names: Option<&Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    let positional = arguments.len() - names.map_or(0, PyTupleMethods::len);
    let names = names.map_or(std::ptr::null_mut(), Bound::as_ptr);
    // SAFETY: the GIL is held, and the arguments are alive, which is the function's contract.
    unsafe {
        let result =
            ffi::PyObject_Vectorcall(callable.as_ptr(), arguments.as_ptr(), positional, names);
        Bound::from_owned_ptr_or_err(callable.py(), result)
    }
}

pub(crate) fn list<'py>(
    py: Python<'py>,
    items: impl IntoIterator<Item = impl IntoPyObject<'py>>,
) -> PyResult<Bound<'py, PyList>> {
    // SAFETY: the GIL is held (`py`).
    let list: Bound<'_, PyList> = unsafe { owned(py, ffi::PyList_New(0)) }?;
    for item in items {
        list.append(item)?;
    }
    Ok(list)
}

/// An exception of the class `E` with one argument.
pub(crate) fn error_with<'py, E: PyTypeInfo>(
    py: Python<'py>,
    argument: impl IntoPyObject<'py, Error: Into<PyErr>>,
) -> PyErr {
    of_value(any(py, argument).and_then(|argument| E::type_object(py).call1((argument,))))
}

/// An exception of the class `E` with a message.
pub(crate) fn error<E: PyTypeInfo>(py: Python<'_>, message: &str) -> PyErr {
    error_with::<E>(py, New(message))
}

/// `OSError` with an errno and a text of ours.
pub(crate) fn os_error(py: Python<'_>, errno: i32, text: &str) -> PyErr {
    of_value(PyOSError::type_object(py).call1((New(errno), New(text))))
}

/// The exception that was made, or why it could not be.
fn of_value(made: PyResult<Bound<'_, PyAny>>) -> PyErr {
    made.map_or_else(|error| error, PyErr::from_value)
}

macro_rules! new_from {
    ($($of:ty => $target:ty: |$py:ident, $value:ident| $make:expr;)*) => { $(
        impl<'py> IntoPyObject<'py> for New<$of> {
            type Target = $target;
            type Output = Bound<'py, $target>;
            type Error = PyErr;

            #[inline]
            fn into_pyobject(self, $py: Python<'py>) -> PyResult<Self::Output> {
                let $value = self.0;
                $make
            }
        }
    )* };
}

new_from! {
    &str => PyString: |py, value| string(py, value);
    String => PyString: |py, value| string(py, &value);
    &[u8] => PyBytes: |py, value| bytes(py, value);
    f64 => PyFloat: |py, value| float(py, value);
    i32 => PyInt: |py, value| New(i64::from(value)).into_pyobject(py);
    u16 => PyInt: |py, value| New(i64::from(value)).into_pyobject(py);
    u32 => PyInt: |py, value| New(i64::from(value)).into_pyobject(py);
    usize => PyInt: |py, value| New(value as u64).into_pyobject(py);
    i64 => PyInt: |py, value| signed(py, value);
    u64 => PyInt: |py, value| unsigned(py, value);
}

impl<'py, T> IntoPyObject<'py> for New<Option<T>>
where
    New<T>: IntoPyObject<'py, Error = PyErr>,
{
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        match self.0 {
            Some(value) => any(py, New(value)),
            None => Ok(py.None().into_bound(py)),
        }
    }
}

/// Converts a value to an object of any type.
fn any<'py, T>(py: Python<'py>, value: T) -> PyResult<Bound<'py, PyAny>>
where
    T: IntoPyObject<'py>,
    T::Error: Into<PyErr>,
{
    let object = value.into_pyobject(py).map_err(Into::into)?;
    Ok(object.into_bound().into_any())
}

macro_rules! new_from_tuples {
    ($($($of:ident)*;)*) => { $(
        impl<'py, $($of),*> IntoPyObject<'py> for New<($($of,)*)>
        where
            $($of: IntoPyObject<'py>, $of::Error: Into<PyErr>,)*
        {
            type Target = PyTuple;
            type Output = Bound<'py, PyTuple>;
            type Error = PyErr;

            #[allow(non_snake_case, reason = "a value is called as its type")]
            fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
                let ($($of,)*) = self.0;
                tuple(py, [$(any(py, $of)?),*])
            }
        }
    )* };
}

new_from_tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}
