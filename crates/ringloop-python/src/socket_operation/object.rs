//! The type `SocketOperation`: an awaitable of the C API that acts like a coroutine.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{CLASS, OperationObject, finish, on_ready, operation, resume};
use crate::buffers::FileSending;
use crate::coroutine::{self, Coroutine, Phase, Step};
use crate::native_type::{EndOfLife, NativeType, PendingException, attribute, slot, visit_all};
use crate::objects::New;
use crate::support::{self, attached, guard};

impl Coroutine for OperationObject {
    fn phase(object: *mut ffi::PyObject) -> Phase {
        // SAFETY: the trait's functions are called with the GIL and a live object of the type; the phase is copied.
        unsafe { operation(object).phase }
    }

    fn qualified_name(object: *mut ffi::PyObject) -> &'static str {
        // SAFETY: the trait's functions are called with the GIL and a live object of the type; the name is static.
        unsafe { operation(object).kind.qualified_name() }
    }

    fn step(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
        resume(py, object)
    }

    fn throw<'py>(
        py: Python<'py>,
        object: *mut ffi::PyObject,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Step<'py>> {
        finish(py, object);
        // SAFETY: the GIL is held, and it is a tuple.
        Err(unsafe { support::thrown(py, arguments.as_ptr()) })
    }

    fn close(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
        finish(py, object);
        Ok(())
    }
}

unsafe extern "C" fn call(
    object: *mut ffi::PyObject,
    _arguments: *mut ffi::PyObject,
    _names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        on_ready(py, object)?;
        Ok(py.None().into_bound(py))
    })
}

/// The bytes of a file that were sent so far.
unsafe extern "C" fn sent(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: the GIL is held (`py`), and the interpreter calls this for a live object of our type. No Python code
        // runs while `file` is used.
        let file = unsafe { operation(object).file.as_ref() };
        let sent = file.map_or(0, FileSending::sent);
        Ok(New(sent).into_pyobject(py)?.into_any())
    })
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter, with the GIL, for an object whose count fell to zero. The pending exception,
    // if any, is set aside: warning and dropping may run Python code.
    unsafe {
        let Some(end) = EndOfLife::begin(object) else {
            return;
        };
        let pending = PendingException::take();
        coroutine::warn_if_never_awaited::<OperationObject>(object);
        attached(|_| ManuallyDrop::drop(&mut (*object.cast::<OperationObject>()).operation));
        pending.restore();
        let class = ffi::Py_TYPE(object);
        ffi::PyObject_GC_Del(object.cast());
        ffi::Py_DECREF(class.cast());
        end.finish();
    }
}

unsafe extern "C" fn traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: called by the collector for a tracked, hence fully made, object.
    unsafe {
        let operation = operation(object);
        let outcome = match &operation.outcome {
            Some(Ok(value)) => value.as_ptr(),
            Some(Err(exception)) => exception.as_ptr(),
            None => ptr::null_mut(),
        };
        let optional = |it: &Option<Py<PyAny>>| it.as_ref().map_or(ptr::null_mut(), Py::as_ptr);
        let members = [
            operation.event_loop.as_ptr(),
            operation.sock.as_ptr(),
            operation.argument.as_ptr(),
            optional(&operation.future),
            optional(&operation.handle),
            outcome,
            ffi::Py_TYPE(object).cast(),
        ];
        visit_all(members, visit, argument)
    }
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: called by the collector, with the GIL, for an unreachable object.
    unsafe {
        attached(|_| {
            let operation = operation(object);
            operation.phase = Phase::Finished;
            let dropped = (
                operation.future.take(),
                operation.handle.take(),
                operation.outcome.take(),
            );
            drop(dropped);
        });
    }
    0
}

/// Makes the type.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let class = NativeType {
        name: c"ringloop._core.SocketOperation",
        doc: c"The awaitable that sock_recv, sock_sendall and their like return; it acts like a coroutine.",
        size: size_of::<OperationObject>(),
        slots: [
            slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
            slot(ffi::Py_tp_traverse, traverse as *mut c_void),
            slot(ffi::Py_tp_clear, clear as *mut c_void),
            slot(ffi::Py_tp_call, call as *mut c_void),
            slot(ffi::Py_am_await, coroutine::itself as *mut c_void),
        ]
        .into_iter()
        .chain(coroutine::slots::<OperationObject>())
        .collect(),
        methods: coroutine::methods::<OperationObject>(),
        attributes: vec![attribute(c"sent", sent)],
        vectorcall_offset: None,
    }
    .make(module.py())?;
    // SAFETY: the module is initialised once, with the GIL, before any operation is made; the type lives for ever.
    unsafe {
        CLASS = class;
        module.add(
            "SocketOperation",
            Bound::from_borrowed_ptr(module.py(), class.cast()),
        )
    }
}
