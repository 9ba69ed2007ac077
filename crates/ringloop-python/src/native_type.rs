//! Types of the C API, for objects that are created once per callback or per packet: only a struct and its slots.
//!
//! Their objects can form chains of any length, for example if each callback has its predecessor's handle as an
//! argument. Releasing the last one must not release all others in one deep recursion. `EndOfLife` therefore postpones
//! the deeper ones, as CPython does with its own containers (the "trashcan"; from Python 3.14 on, with objects of all
//! types).

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The beginning of every object of such a type.
#[repr(C)]
pub(crate) struct Head {
    ob_base: ffi::PyObject,
    /// The interpreter's list of weak references; null at first.
    pub(crate) weak_references: *mut ffi::PyObject,
}

/// The description of a type.
pub(crate) struct NativeType {
    pub(crate) name: &'static CStr,
    pub(crate) doc: &'static CStr,
    /// The size of an object, which begins with a `Head`.
    pub(crate) size: usize,
    /// Slot functions besides documentation, methods and attributes; deallocation and traversal among them.
    pub(crate) slots: Vec<ffi::PyType_Slot>,
    pub(crate) methods: Vec<ffi::PyMethodDef>,
    pub(crate) attributes: Vec<ffi::PyGetSetDef>,
    /// Where an object has its function for vectorcalls (PEP 590), if it can be called.
    pub(crate) vectorcall_offset: Option<usize>,
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
        let offset = |name: &'static CStr, offset: usize| ffi::PyMemberDef {
            name: name.as_ptr(),
            type_code: ffi::Py_T_PYSSIZET,
            offset: offset as ffi::Py_ssize_t,
            flags: ffi::Py_READONLY,
            doc: ptr::null(),
        };
        let mut flags = ffi::Py_TPFLAGS_DEFAULT
            | ffi::Py_TPFLAGS_HAVE_GC
            | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION
            | ffi::Py_TPFLAGS_IMMUTABLETYPE;
        let weak_references = offset_of!(Head, weak_references);
        let mut members = vec![offset(c"__weaklistoffset__", weak_references)];
        if let Some(vectorcall) = self.vectorcall_offset {
            flags |= ffi::Py_TPFLAGS_HAVE_VECTORCALL;
            members.push(offset(c"__vectorcalloffset__", vectorcall));
            let call = ffi::PyVectorcall_Call as *mut c_void;
            self.slots.push(slot(ffi::Py_tp_call, call));
        }
        members.push(ffi::PyMemberDef {
            name: ptr::null(),
            type_code: 0,
            offset: 0,
            flags: 0,
            doc: ptr::null(),
        });
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
            flags: flags as _,
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
            // SAFETY: `visit` and `argument` are the collector's, and the objects live, which is the function's
            // contract; this one is not null.
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

/// A function that is called without a tuple of its arguments.
pub(crate) type Function = unsafe extern "C" fn(
    *mut ffi::PyObject,
    *const *mut ffi::PyObject,
    ffi::Py_ssize_t,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// A method with arguments.
pub(crate) const fn method_with_arguments(
    name: &'static CStr,
    function: Function,
    doc: &'static CStr,
) -> ffi::PyMethodDef {
    ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer {
            PyCFunctionFastWithKeywords: function,
        },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: doc.as_ptr(),
    }
}

/// Gives a method to a class that was made in Python.
pub(crate) fn add_method(class: &Bound<'_, PyType>, definition: ffi::PyMethodDef) -> PyResult<()> {
    let py = class.py();
    let name = definition.ml_name;
    let definition = Box::leak(Box::new(definition));
    // SAFETY: the GIL is held; the definition lives for ever, and so does its name.
    unsafe {
        let method = ffi::PyDescr_NewMethod(class.as_ptr().cast(), definition);
        let method = Bound::from_owned_ptr_or_err(py, method)?;
        match ffi::PyObject_SetAttrString(class.as_ptr(), name, method.as_ptr()) {
            0 => Ok(()),
            _ => Err(PyErr::fetch(py)),
        }
    }
}

/// The arguments of a vectorcall: the positional ones, and one for each of `names`. CPython passes null where there are
/// none, which no slice may begin with.
///
/// # Safety
/// The GIL is held. `names` is null or a tuple, and `arguments` holds as many objects, which live for `'a`.
#[inline]
pub(crate) unsafe fn arguments_of<'a>(
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> &'a [*mut ffi::PyObject] {
    // SAFETY: the GIL is held, `names` is null or a tuple, and the objects live, which is the function's contract.
    unsafe {
        let keywords = if names.is_null() {
            0
        } else {
            ffi::PyTuple_GET_SIZE(names)
        };
        match positional + keywords {
            0 => &[],
            count => std::slice::from_raw_parts(arguments, count as usize),
        }
    }
}

/// Calls the method that one of ours has replaced, with the arguments that ours was given.
///
/// # Safety
/// The GIL is held; `arguments` has `positional` objects and one for each of `names`, a tuple or null, all alive.
pub(crate) unsafe fn call_replaced<'py>(
    method: &Bound<'py, PyAny>,
    object: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the GIL is held, and `arguments` has `positional` live objects and one for each of `names`, which is the
    // function's contract. The vector lives until the call is over.
    unsafe {
        let given = arguments_of(arguments, positional, names);
        let all: Vec<_> = std::iter::once(object)
            .chain(given.iter().copied())
            .collect();
        let result = ffi::PyObject_Vectorcall(
            method.as_ptr(),
            all.as_ptr(),
            positional as usize + 1,
            names,
        );
        Bound::from_owned_ptr_or_err(method.py(), result)
    }
}

/// The one positional argument of a call that has no other.
///
/// # Safety
/// As `call_replaced`.
pub(crate) unsafe fn only_argument(
    py: Python<'_>,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> Option<Bound<'_, PyAny>> {
    // SAFETY: the GIL is held, `names` is a tuple or null, and `arguments` has `positional` live objects, which is the
    // function's contract. The first is read only if there is one.
    unsafe {
        let has_names = !names.is_null() && ffi::PyTuple_GET_SIZE(names) > 0;
        (positional == 1 && !has_names).then(|| Bound::from_borrowed_ptr(py, *arguments))
    }
}

/// An exception that is on its way while an object is destroyed.
pub(crate) struct PendingException([*mut ffi::PyObject; 3]);

impl PendingException {
    /// # Safety
    /// The GIL is held.
    pub(crate) unsafe fn take() -> Self {
        let mut parts = [ptr::null_mut(); 3];
        let [kind, value, traceback] = &mut parts;
        // SAFETY: the GIL is held, which is the function's contract, and the three places can be written to. The newer
        // call that takes one object is not in Python 3.11.
        #[allow(deprecated)]
        unsafe {
            ffi::PyErr_Fetch(kind, value, traceback);
        }
        Self(parts)
    }

    /// # Safety
    /// The GIL is held.
    pub(crate) unsafe fn restore(self) {
        let [kind, value, traceback] = self.0;
        // SAFETY: the GIL is held, which is the function's contract. The references are those that `PyErr_Fetch` gave
        // away, and go back.
        #[allow(deprecated)]
        unsafe {
            ffi::PyErr_Restore(kind, value, traceback);
        }
    }
}

/// The size of the collector's header in front of each object (`PyGC_Head`, Include/internal/pycore_gc.h): two words,
/// which are zero for an object that it doesn't track, in every version from Python 3.11 to 3.15.
const HEADER_SIZE: usize = 2 * size_of::<usize>();

/// Whether the objects of the running interpreter were seen to have such a header.
static IS_HEADER_KNOWN: AtomicBool = AtomicBool::new(false);

/// Finds out what the running interpreter puts in front of an object of this type.
///
/// # Safety
/// The GIL is held, and the type was made by `NativeType::make` with a size of its own.
pub(crate) unsafe fn learn_header(py: Python<'_>, class: *mut ffi::PyTypeObject) -> PyResult<()> {
    // SAFETY: the GIL is held, and the type is a complete one of ours, which is the function's contract. The new object
    // is not used as one, and its memory begins with the header that is looked at only if the interpreter says that it
    // has this size.
    unsafe {
        let object = ffi::PyType_GenericAlloc(class, 0);
        if object.is_null() {
            return Err(PyErr::fetch(py));
        }
        ffi::PyObject_GC_UnTrack(object.cast());
        let header = {
            let object = Bound::from_borrowed_ptr(py, object);
            let size = py.import("sys")?.call_method1("getsizeof", (&object,))?;
            size.extract::<usize>()? - (*class).tp_basicsize as usize
        };
        let words = object.cast::<usize>();
        let is_known = header == HEADER_SIZE && *words.sub(1) == 0 && *words.sub(2) == 0;
        IS_HEADER_KNOWN.store(is_known, Relaxed);
        ffi::PyObject_GC_Del(object.cast());
        ffi::Py_DECREF(class.cast());
    }
    Ok(())
}

/// A new, untracked object of zeros; null with `MemoryError` set.
///
/// The collector doesn't count it. It starts a collection when a certain number of objects more were made than
/// freed, and objects that are tracked late or never would have it look again and again at nothing.
///
/// # Safety
/// The GIL is held, and the type was made by `NativeType::make`.
#[inline]
pub(crate) unsafe fn allocate(class: *mut ffi::PyTypeObject) -> *mut ffi::PyObject {
    // SAFETY: the GIL is held, and `class` is a complete type of ours, which is the function's contract. The block has
    // room for the header and the object.
    unsafe {
        if !IS_HEADER_KNOWN.load(Relaxed) {
            let object = ffi::PyType_GenericAlloc(class, 0);
            if !object.is_null() {
                ffi::PyObject_GC_UnTrack(object.cast());
            }
            return object;
        }
        let size = HEADER_SIZE + (*class).tp_basicsize as usize;
        let block = ffi::PyObject_Malloc(size).cast::<u8>();
        if block.is_null() {
            return ffi::PyErr_NoMemory();
        }
        block.write_bytes(0, size);
        ffi::PyObject_Init(block.add(HEADER_SIZE).cast(), class)
    }
}

/// Frees what `allocate` gave.
///
/// # Safety
/// The GIL is held; the object is untracked and nobody refers to it.
#[inline]
pub(crate) unsafe fn free(object: *mut ffi::PyObject) {
    // SAFETY: the GIL is held, and nobody uses the object, which `allocate` gave; that is the function's contract.
    // `IS_HEADER_KNOWN` doesn't change once objects are made, so the memory goes back to where it came from.
    unsafe {
        if IS_HEADER_KNOWN.load(Relaxed) {
            ffi::PyObject_Free(object.cast::<u8>().sub(HEADER_SIZE).cast());
        } else {
            ffi::PyObject_GC_Del(object.cast());
        }
    }
}

/// Objects that end inside of one another's end, in one thread; CPython's figure.
const NESTED_MAX: u32 = 50;

/// Whether an object is ending in some thread. As long as that is a single one, nobody needs to count.
static mut ENDING: bool = false;

thread_local! {
    /// How many more are ending in this thread, each inside of the one before.
    static NESTED: Cell<u32> = const { Cell::new(0) };
    /// Objects that would have been too many, linked through their field for weak references.
    static WAITING: Cell<*mut ffi::PyObject> = const { Cell::new(ptr::null_mut()) };
}

/// A guard around the body of a type's `tp_dealloc`, which drops what the object refers to and frees its memory.
pub(crate) struct EndOfLife {
    is_nested: bool,
}

impl EndOfLife {
    /// None where the object has to wait: `tp_dealloc` is called again, before the outermost of the objects that are
    /// ending has ended.
    ///
    /// # Safety
    /// Called by the interpreter, with the GIL, for an object of one of our types whose count fell to zero.
    #[inline]
    pub(crate) unsafe fn begin(object: *mut ffi::PyObject) -> Option<Self> {
        // SAFETY: the GIL is held, and `object` is of one of our types, which begin with a `Head`, and its count fell
        // to zero; that is the function's contract. The GIL guards `ENDING`: whoever set it clears it, whichever
        // threads run meanwhile.
        unsafe {
            ffi::PyObject_GC_UnTrack(object.cast());
            if !(*object.cast::<Head>()).weak_references.is_null() {
                ffi::PyObject_ClearWeakRefs(object);
            }
            let is_nested = ENDING;
            if is_nested && !begin_nested(object) {
                return None;
            }
            ENDING = true;
            Some(Self { is_nested })
        }
    }

    /// Frees the memory that `allocate` gave, which is the last that there is to do.
    ///
    /// # Safety
    /// The GIL is held; nothing that the object referred to is left, besides its type.
    #[inline]
    pub(crate) unsafe fn free(self, object: *mut ffi::PyObject) {
        // SAFETY: the GIL is held, and nothing is left of the object besides its memory and type, which is the
        // function's contract; `begin` has untracked it. The reference to the type was the object's.
        unsafe {
            let class = ffi::Py_TYPE(object);
            free(object);
            ffi::Py_DECREF(class.cast());
            self.finish();
        }
    }

    /// # Safety
    /// The GIL is held, and the object's memory is free.
    #[inline]
    pub(crate) unsafe fn finish(self) {
        // SAFETY: the GIL is held, which is the function's contract. It guards `ENDING`. What `begin` has noted is
        // taken back once, as `self` is used up.
        unsafe {
            if self.is_nested {
                end_nested();
            } else {
                ENDING = false;
            }
        }
    }
}

/// Whether the object may end now; otherwise it waits.
///
/// # Safety
/// As for `EndOfLife::begin`; the object is untracked, and has no weak references.
#[inline(never)]
unsafe fn begin_nested(object: *mut ffi::PyObject) -> bool {
    let nested = NESTED.get();
    if nested < NESTED_MAX {
        NESTED.set(nested + 1);
        return true;
    }
    // SAFETY: the GIL is held, and the field of an object without weak references is free to be a link.
    unsafe { (*object.cast::<Head>()).weak_references = WAITING.replace(object) };
    false
}

/// # Safety
/// After `begin_nested` was true.
#[inline(never)]
unsafe fn end_nested() {
    let nested = NESTED.get();
    if nested == 1 {
        while let Some(next) = ptr::NonNull::new(WAITING.get()) {
            // SAFETY: what waits is one of our objects. Its field is null again, as without weak references, before its
            // type's `tp_dealloc` sees it.
            unsafe {
                let head = next.cast::<Head>().as_ptr();
                let link = &mut (*head).weak_references;
                WAITING.set(std::mem::replace(link, ptr::null_mut()));
                if let Some(dealloc) = (*ffi::Py_TYPE(next.as_ptr())).tp_dealloc {
                    dealloc(next.as_ptr());
                }
            }
        }
    }
    NESTED.set(nested - 1);
}
