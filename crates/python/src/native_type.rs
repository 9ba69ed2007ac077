//! Types of the C API, for objects that are made once per callback or per packet: no more than a struct and its slots.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

/// What a type is made of.
pub(crate) struct NativeType {
    pub(crate) name: &'static CStr,
    pub(crate) doc: &'static CStr,
    pub(crate) size: usize,
    /// Offset of the field for weak references, which begins as null.
    pub(crate) weak_references_offset: usize,
    /// Slot functions besides documentation, methods and attributes; deallocation and traversal among them.
    pub(crate) slots: Vec<ffi::PyType_Slot>,
    pub(crate) methods: Vec<ffi::PyMethodDef>,
    pub(crate) attributes: Vec<ffi::PyGetSetDef>,
}

impl NativeType {
    /// Makes the type object. Its tables are leaked: the type refers to them for the life of the process.
    pub(crate) fn make(mut self, py: Python<'_>) -> PyResult<*mut ffi::PyTypeObject> {
        self.methods.push(ffi::PyMethodDef::zeroed());
        self.attributes.push(ffi::PyGetSetDef {
            name: ptr::null(),
            get: None,
            set: None,
            doc: ptr::null(),
            closure: ptr::null_mut(),
        });
        let members = vec![
            ffi::PyMemberDef {
                name: c"__weaklistoffset__".as_ptr(),
                type_code: ffi::Py_T_PYSSIZET,
                offset: self.weak_references_offset as ffi::Py_ssize_t,
                flags: ffi::Py_READONLY,
                doc: ptr::null(),
            },
            ffi::PyMemberDef {
                name: ptr::null(),
                type_code: 0,
                offset: 0,
                flags: 0,
                doc: ptr::null(),
            },
        ];
        self.slots.extend([
            slot(ffi::Py_tp_doc, self.doc.as_ptr() as *mut c_void),
            slot(ffi::Py_tp_methods, self.methods.leak().as_mut_ptr().cast()),
            slot(
                ffi::Py_tp_getset,
                self.attributes.leak().as_mut_ptr().cast(),
            ),
            slot(ffi::Py_tp_members, members.leak().as_mut_ptr().cast()),
            slot(0, ptr::null_mut()),
        ]);
        let mut spec = ffi::PyType_Spec {
            name: self.name.as_ptr(),
            basicsize: self.size as c_int,
            itemsize: 0,
            flags: (ffi::Py_TPFLAGS_DEFAULT
                | ffi::Py_TPFLAGS_HAVE_GC
                | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION
                | ffi::Py_TPFLAGS_IMMUTABLETYPE) as _,
            slots: self.slots.leak().as_mut_ptr(),
        };
        // SAFETY: the GIL is held (`py`), and spec and tables are complete and live for ever.
        let class = unsafe { ffi::PyType_FromSpec(&raw mut spec) };
        if class.is_null() {
            return Err(PyErr::fetch(py));
        }
        Ok(class.cast())
    }
}

/// Shows what an object refers to to the collector, for its `tp_traverse`. What is null is passed over.
///
/// # Safety
/// `visit` and `argument` are the collector's, and the objects live.
pub(crate) unsafe fn visit_all(
    members: impl IntoIterator<Item = *mut ffi::PyObject>,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    for member in members {
        if !member.is_null() {
            // SAFETY: as the function asks.
            let status = unsafe { visit(member, argument) };
            if status != 0 {
                return status;
            }
        }
    }
    0
}

pub(crate) const fn slot(slot: c_int, function: *mut c_void) -> ffi::PyType_Slot {
    ffi::PyType_Slot {
        slot,
        pfunc: function,
    }
}

/// A method without arguments.
pub(crate) const fn method(
    name: &'static CStr,
    function: ffi::PyCFunction,
    doc: &'static CStr,
) -> ffi::PyMethodDef {
    ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer {
            PyCFunction: function,
        },
        ml_flags: ffi::METH_NOARGS,
        ml_doc: doc.as_ptr(),
    }
}

/// A read-only attribute.
pub(crate) const fn attribute(name: &'static CStr, getter: ffi::getter) -> ffi::PyGetSetDef {
    ffi::PyGetSetDef {
        name: name.as_ptr(),
        get: Some(getter),
        set: None,
        doc: ptr::null(),
        closure: ptr::null_mut(),
    }
}
