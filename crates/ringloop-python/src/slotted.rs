//! The base of classes whose objects keep the attributes that all of them have in slots, for less memory.
//!
//! The attributes that a user gives to such an object are in its dictionary, as those of any other. That is made when it
//! is first needed: an object without one has no such attributes, and native code can tell without making it.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::native_type::{attribute, slot};
use crate::objects;

/// The beginning of the objects.
#[repr(C)]
struct Slotted {
    ob_base: ffi::PyObject,
    /// Somebody may have put an attribute into the dictionary.
    is_changed: AtomicBool,
}

/// How many classes are derived from `Slotted`. Each lookup of an attribute compares with all of them.
const CLASS_COUNT: usize = 3;

/// The classes that `register` was given.
static CLASSES: [AtomicPtr<ffi::PyTypeObject>; CLASS_COUNT] =
    [const { AtomicPtr::new(ptr::null_mut()) }; CLASS_COUNT];

/// The head of `PyMemberDescrObject` (Include/cpython/descrobject.h), which no version has changed from Python 3.11 to
/// 3.15.
#[repr(C)]
struct MemberDescriptor {
    ob_base: ffi::PyObject,
    class: *mut ffi::PyTypeObject,
    name: *mut ffi::PyObject,
    qualified_name: *mut ffi::PyObject,
    member: *mut ffi::PyMemberDef,
}

// Of CPython's C API (Include/cpython/object.h), in every version; PyO3 doesn't declare it.
unsafe extern "C" {
    /// The attribute of this name that a class or its bases have: borrowed, or null without an exception.
    #[cfg(not(Py_GIL_DISABLED))]
    fn _PyType_Lookup(
        class: *mut ffi::PyTypeObject,
        name: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;

    /// The same as a new reference, in every version that may have no GIL: another thread could change the class.
    #[cfg(Py_GIL_DISABLED)]
    fn _PyType_LookupRef(
        class: *mut ffi::PyTypeObject,
        name: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// Whether an object's class has a data descriptor of this name.
///
/// # Safety
/// The GIL is held, `object` is alive, and `name` is a live string.
unsafe fn has_descriptor(object: *mut ffi::PyObject, name: *mut ffi::PyObject) -> bool {
    // SAFETY: the GIL is held, and both are alive, which is the function's contract.
    unsafe {
        #[cfg(not(Py_GIL_DISABLED))]
        let found = _PyType_Lookup(ffi::Py_TYPE(object), name);
        #[cfg(Py_GIL_DISABLED)]
        let found = _PyType_LookupRef(ffi::Py_TYPE(object), name);
        let has_it = !found.is_null() && (*ffi::Py_TYPE(found)).tp_descr_set.is_some();
        #[cfg(Py_GIL_DISABLED)]
        ffi::Py_XDECREF(found);
        has_it
    }
}

/// Makes the classes known that are derived from `Slotted`: all of them, in one call.
pub(crate) fn register(classes: [&Bound<'_, PyType>; CLASS_COUNT]) {
    for (place, class) in CLASSES.iter().zip(classes) {
        place.store(class.as_type_ptr(), Relaxed);
    }
}

/// Whether an object of a class that is known may have attributes in its dictionary. None for any other object.
#[inline]
pub(crate) fn is_changed(object: &Bound<'_, PyAny>) -> Option<bool> {
    let class = object.get_type_ptr();
    if !CLASSES.iter().any(|known| known.load(Relaxed) == class) {
        return None;
    }
    // SAFETY: the GIL is held; the object's class is derived from `Slotted`.
    Some(unsafe {
        (*object.as_ptr().cast::<Slotted>())
            .is_changed
            .load(Relaxed)
    })
}

/// Where the objects of a class have the slot of this name.
pub(crate) fn offset_of(class: &Bound<'_, PyType>, name: &Bound<'_, PyString>) -> PyResult<usize> {
    let py = class.py();
    let descriptor = class.getattr("__dict__")?.get_item(name)?;
    // SAFETY: the GIL is held, and the descriptor is one of a member, which has a definition.
    unsafe {
        if ffi::Py_TYPE(descriptor.as_ptr()) == &raw mut ffi::PyMemberDescr_Type {
            let descriptor = descriptor.as_ptr().cast::<MemberDescriptor>();
            let (owner, member) = ((*descriptor).class, &*(*descriptor).member);
            let end = member.offset + size_of::<*mut ffi::PyObject>() as ffi::Py_ssize_t;
            if owner == class.as_type_ptr()
                && member.type_code == ffi::Py_T_OBJECT_EX
                && member.offset >= size_of::<Slotted>() as ffi::Py_ssize_t
                && end <= (*owner).tp_basicsize
            {
                return Ok(member.offset as usize);
            }
        }
    }
    Err(objects::error::<PyTypeError>(py, "this is not a slot"))
}

/// Sets an attribute; null deletes it.
unsafe extern "C" fn set_attribute(
    object: *mut ffi::PyObject,
    name: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
) -> c_int {
    // SAFETY: called by the interpreter, with the GIL, for a live object of a class that is derived from `Slotted`.
    unsafe {
        let is_slot = ffi::PyUnicode_Check(name) != 0 && has_descriptor(object, name);
        if !is_slot {
            (*object.cast::<Slotted>()).is_changed.store(true, Relaxed);
        }
        ffi::PyObject_GenericSetAttr(object, name, value)
    }
}

unsafe extern "C" fn get_dict(
    object: *mut ffi::PyObject,
    context: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, with the GIL, as the getter of `__dict__`, for a live object of a class that
    // is derived from `Slotted`.
    unsafe {
        (*object.cast::<Slotted>()).is_changed.store(true, Relaxed);
        ffi::PyObject_GenericGetDict(object, context)
    }
}

unsafe extern "C" fn set_dict(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    context: *mut c_void,
) -> c_int {
    // SAFETY: called by the interpreter, with the GIL, as the setter of `__dict__`, for a live object of a class that
    // is derived from `Slotted`.
    unsafe {
        (*object.cast::<Slotted>()).is_changed.store(true, Relaxed);
        ffi::PyObject_GenericSetDict(object, value, context)
    }
}

/// Makes the type.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let end = ffi::PyGetSetDef {
        name: ptr::null(),
        get: None,
        set: None,
        doc: ptr::null(),
        closure: ptr::null_mut(),
    };
    let attributes = vec![
        ffi::PyGetSetDef {
            set: Some(set_dict),
            ..attribute(c"__dict__", get_dict)
        },
        end,
    ];
    let doc =
        c"A base class that keeps its attributes in slots, and those of its user in a dictionary.";
    let slots = vec![
        slot(ffi::Py_tp_doc, doc.as_ptr() as *mut c_void),
        slot(ffi::Py_tp_setattro, set_attribute as *mut c_void),
        slot(ffi::Py_tp_getset, attributes.leak().as_mut_ptr().cast()),
        slot(0, ptr::null_mut()),
    ];
    let mut spec = ffi::PyType_Spec {
        name: c"ringloop._core.Slotted".as_ptr(),
        basicsize: size_of::<Slotted>() as c_int,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE | ffi::Py_TPFLAGS_IMMUTABLETYPE)
            as _,
        slots: slots.leak().as_mut_ptr(),
    };
    // SAFETY: the GIL is held (`py`), and the tables are complete and live for ever.
    unsafe {
        let class = ffi::PyType_FromSpec(&raw mut spec);
        module.add("Slotted", Bound::from_owned_ptr_or_err(py, class)?)
    }
}
