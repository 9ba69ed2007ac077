//! The type `Connecting`: an awaitable of the C API that acts like a coroutine.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{
    _note_connecting_methods, CLASS, ConnectingObject, close, content, finish, give_up, on_called,
    step,
};
use crate::coroutine::{self, Coroutine, Phase, Step};
use crate::native_type::{EndOfLife, NativeType, PendingException, method, slot, visit_all};
use crate::support::{self, attached, guard};

impl Coroutine for ConnectingObject {
    fn phase(object: *mut ffi::PyObject) -> Phase {
        // SAFETY: the trait's functions are called with the GIL and a live object of the type; the phase is copied.
        unsafe { content(object).phase }
    }

    fn qualified_name(_: *mut ffi::PyObject) -> &'static str {
        "EventLoop.create_connection"
    }

    fn step(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Step<'_>> {
        step(py, object)
    }

    fn throw<'py>(
        py: Python<'py>,
        object: *mut ffi::PyObject,
        arguments: &Bound<'py, PyTuple>,
    ) -> PyResult<Step<'py>> {
        Self::phase(object).check_not_running(py)?;
        // SAFETY: the GIL is held, and it is a tuple.
        let error = unsafe { support::thrown(py, arguments.as_ptr()) };
        Err(give_up(py, object, error))
    }

    fn close(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<()> {
        Self::phase(object).check_not_running(py)?;
        close(py, object)
    }
}

unsafe extern "C" fn call(
    object: *mut ffi::PyObject,
    _arguments: *mut ffi::PyObject,
    _names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        on_called(py, object)?;
        Ok(py.None().into_bound(py))
    })
}

unsafe extern "C" fn end_wait(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        on_called(py, object)?;
        Ok(py.None().into_bound(py))
    })
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter, with the GIL, for an object whose count fell to zero. The pending exception,
    // if any, is set aside: dropping may run Python code.
    unsafe {
        let Some(end) = EndOfLife::begin(object) else {
            return;
        };
        let pending = PendingException::take();
        attached(|_| ManuallyDrop::drop(&mut (*object.cast::<ConnectingObject>()).connecting));
        pending.restore();
        end.free(object);
    }
}

unsafe extern "C" fn traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: called by the collector for a tracked, hence fully made, object.
    unsafe {
        let this = content(object);
        let pointer = |it: Option<&Py<PyAny>>| it.map_or(ptr::null_mut(), Py::as_ptr);
        let members = [
            this.event_loop.as_ptr(),
            this.protocol_factory.as_ptr(),
            this.host.as_ptr(),
            this.port.as_ptr(),
            pointer(this.sock.as_ref()),
            pointer(this.watch.as_ref().map(|(handle, _)| handle)),
            this.failure.as_ref().map_or(ptr::null_mut(), Py::as_ptr),
            pointer(this.made.as_ref().map(|made| &made.transport)),
            pointer(this.made.as_ref().map(|made| &made.protocol)),
            pointer(this.future.as_ref()),
            ffi::Py_TYPE(object).cast(),
        ];
        visit_all(members, visit, argument)
    }
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: called by the collector, with the GIL, for an unreachable object.
    unsafe {
        attached(|_| {
            let watch = content(object).watch.take();
            drop((watch, finish(object)));
        });
    }
    0
}

/// Makes the type.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let class = NativeType {
        name: c"ringloop._core.Connecting",
        doc: c"The awaitable of a transport and its protocol that create_connection waits for; it acts like a coroutine.",
        size: size_of::<ConnectingObject>(),
        slots: [
            slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
            slot(ffi::Py_tp_traverse, traverse as *mut c_void),
            slot(ffi::Py_tp_clear, clear as *mut c_void),
            slot(ffi::Py_tp_call, call as *mut c_void),
            slot(
                ffi::Py_am_await,
                coroutine::am_await::<ConnectingObject> as *mut c_void,
            ),
        ]
        .into_iter()
        .chain(coroutine::slots::<ConnectingObject>())
        .collect(),
        methods: coroutine::methods::<ConnectingObject>()
            .into_iter()
            .chain([method(
                c"_end_wait",
                end_wait,
                c"Does what calling the object does.",
            )])
            .collect(),
        attributes: Vec::new(),
        vectorcall_offset: None,
    }
    .make(module.py())?;
    // SAFETY: the module is initialised once, with the GIL, before any object is made; the type lives for ever.
    unsafe {
        CLASS = class;
        module.add(
            "Connecting",
            Bound::from_borrowed_ptr(module.py(), class.cast()),
        )?;
    }
    module.add_function(wrap_pyfunction!(_note_connecting_methods, module)?)
}
