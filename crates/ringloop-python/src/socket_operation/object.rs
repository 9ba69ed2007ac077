//! The type `SocketOperation`: an awaitable of the C API that acts like a coroutine.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;

use pyo3::exceptions::PyStopIteration;
use pyo3::ffi;
use pyo3::prelude::*;

use super::{CLASS, Kind, OperationObject, Phase, Step, finish, on_ready, operation, resume};
use crate::native_type::{
    EndOfLife, NativeType, PendingException, coroutine_methods, itself, slot, visit_all,
    warn_never_awaited,
};
use crate::objects;
use crate::support::{self, attached, guard};

unsafe extern "C" fn send(
    object: *mut ffi::PyObject,
    _value: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    let mut is_return = false;
    let value = guard(|py| match resume(py, object)? {
        Step::Yield(future) => Ok(future),
        Step::Return(value) => {
            is_return = true;
            Ok(value.into_bound(py))
        }
    });
    // SAFETY: the interpreter gives a place for the result.
    unsafe { *result = value };
    if value.is_null() {
        ffi::PySendResult::PYGEN_ERROR
    } else if is_return {
        ffi::PySendResult::PYGEN_RETURN
    } else {
        ffi::PySendResult::PYGEN_NEXT
    }
}

/// The result of a step for callers without `am_send`: a return is `StopIteration`.
fn step_or_stop(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Bound<'_, PyAny>> {
    match resume(py, object)? {
        Step::Yield(future) => Ok(future),
        Step::Return(value) => Err(objects::error_with::<PyStopIteration>(
            py,
            value.into_bound(py),
        )),
    }
}

unsafe extern "C" fn next(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|py| step_or_stop(py, object))
}

unsafe extern "C" fn method_send(
    object: *mut ffi::PyObject,
    _value: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| step_or_stop(py, object))
}

unsafe extern "C" fn method_throw(
    object: *mut ffi::PyObject,
    arguments: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        finish(py, object);
        // SAFETY: METH_VARARGS gives a tuple.
        Err(unsafe { support::thrown(py, arguments) })
    })
}

unsafe extern "C" fn method_close(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        finish(py, object);
        Ok(py.None().into_bound(py))
    })
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

unsafe extern "C" fn repr(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: as in `resume`.
        let name = unsafe { operation(object).kind.name() };
        let text = format!("<coroutine object EventLoop.{name} at {object:p}>");
        Ok(objects::string(py, &text)?.into_any())
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
        if operation(object).phase == Phase::Created {
            warn_never_awaited(never_awaited(operation(object).kind));
        }
        attached(|_| ManuallyDrop::drop(&mut (*object.cast::<OperationObject>()).operation));
        pending.restore();
        let class = ffi::Py_TYPE(object);
        ffi::PyObject_GC_Del(object.cast());
        ffi::Py_DECREF(class.cast());
        end.finish();
    }
}

/// What Python says of such a coroutine that was never awaited.
fn never_awaited(kind: Kind) -> &'static CStr {
    match kind {
        Kind::Receive { .. } => c"coroutine 'EventLoop.sock_recv' was never awaited",
        Kind::ReceiveInto => c"coroutine 'EventLoop.sock_recv_into' was never awaited",
        Kind::SendAll => c"coroutine 'EventLoop.sock_sendall' was never awaited",
        Kind::ReceiveFrom { .. } => c"coroutine 'EventLoop.sock_recvfrom' was never awaited",
        Kind::ReceiveFromInto { .. } => {
            c"coroutine 'EventLoop.sock_recvfrom_into' was never awaited"
        }
        Kind::SendTo => c"coroutine 'EventLoop.sock_sendto' was never awaited",
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
        doc: c"What sock_recv, sock_sendall and their like return: an awaitable that acts like a coroutine.",
        size: size_of::<OperationObject>(),
        slots: vec![
            slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
            slot(ffi::Py_tp_traverse, traverse as *mut c_void),
            slot(ffi::Py_tp_clear, clear as *mut c_void),
            slot(ffi::Py_tp_repr, repr as *mut c_void),
            slot(ffi::Py_tp_call, call as *mut c_void),
            slot(ffi::Py_tp_iter, itself as *mut c_void),
            slot(ffi::Py_tp_iternext, next as *mut c_void),
            slot(ffi::Py_am_await, itself as *mut c_void),
            slot(ffi::Py_am_send, send as *mut c_void),
        ],
        methods: coroutine_methods(method_send, method_throw, method_close),
        attributes: vec![],
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
