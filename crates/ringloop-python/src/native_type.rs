//! Native objects: Python objects that are created once per callback or per packet, of types of the C API.
//!
//! A type of these is a struct of Rust, the content of its objects, that implements [`Native`] and [`References`].
//! Everything that the interpreter asks of a type follows from that, and is written once, here: how an object is made,
//! shown to the collector, cleared, ended and freed. A content owns other objects by [`Owned`].

#![allow(unsafe_code)]

mod end_of_life;
mod owned;

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::mem::offset_of;
use std::ops::ControlFlow;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use self::end_of_life::EndOfLife;

pub(crate) use self::owned::{Member, Optional, Owned, References, Visitor, references};

/// The methods and attributes of a type, and its slots besides those that follow from [`Native`].
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) slots: Vec<ffi::PyType_Slot>,
    pub(crate) methods: Vec<ffi::PyMethodDef>,
    pub(crate) attributes: Vec<ffi::PyGetSetDef>,
}

/// The content of the objects of a native type.
///
/// Only the holder of the GIL touches an object; without one, whoever is in a critical section of it, or has it alone, or
/// as the type's own fields say. Python code may come back to it, so that nobody holds a reference into a content while
/// some may run; what is dropped from a content may run some.
///
/// # Safety
/// `class` returns one static that is of no other type. The functions of `table` may be called by the interpreter, with
/// the GIL, for each object of the type. `VECTORCALL` is where a content has a function for that, if anywhere.
pub(crate) unsafe trait Native: References + Sized + 'static {
    /// The type's name, with its module.
    const NAME: &'static CStr;
    const DOC: &'static CStr;
    /// How many dead objects are kept for new ones.
    const KEPT_MAX: usize = 0;
    /// The offset in the content of the function for vectorcalls (PEP 590), if objects can be called by one.
    const VECTORCALL: Option<usize> = None;
    /// Whether an exception that is on its way is set aside while an object ends, because what it refers to may run code
    /// of ours that clears it.
    const SETS_EXCEPTION_ASIDE: bool = false;

    fn class() -> &'static Class;

    fn table() -> Table;

    /// Called first for an object that nobody refers to any longer, whose content is complete. No exception that it
    /// finds set may be lost, and none may be left.
    ///
    /// # Safety
    /// The GIL is held, and `object` is of this type.
    #[inline]
    unsafe fn end(_object: *mut ffi::PyObject) {}

    /// Called by the collector for an object that is a part of garbage.
    ///
    /// # Safety
    /// The GIL is held, and `object` is of this type, and alive.
    #[inline]
    unsafe fn clear(object: *mut ffi::PyObject) {
        // SAFETY: the GIL is held, and `object` is alive and of this type, which is the function's contract. The
        // reference into the content ends before what was taken out is dropped.
        let taken = unsafe { (*content::<Self>(object)).take() };
        drop(taken);
    }
}

/// The beginning of every native object.
#[repr(C)]
struct Head {
    ob_base: ffi::PyObject,
    /// The interpreter's list of weak references; null at first.
    weak_references: *mut ffi::PyObject,
}

#[repr(C)]
struct Object<T> {
    head: Head,
    content: T,
}

/// A type object, made once when the module is imported, and dead objects of it.
pub(crate) struct Class {
    object: AtomicPtr<ffi::PyTypeObject>,
    /// Where the dead objects are listed; the list has room for `KEPT_MAX`. (A chain of them would have to be loaded one after
    /// the other.)
    kept: Cell<*mut *mut ffi::PyObject>,
    kept_len: Cell<usize>,
}

// SAFETY: only the functions of this module touch it, all of which ask for the GIL. Without one, no dead objects are
// kept.
unsafe impl Sync for Class {}

impl Class {
    pub(crate) const fn new() -> Self {
        Self {
            object: AtomicPtr::new(ptr::null_mut()),
            kept: Cell::new(ptr::null_mut()),
            kept_len: Cell::new(0),
        }
    }

    #[inline]
    fn get(&self) -> *mut ffi::PyTypeObject {
        self.object.load(Relaxed)
    }

    /// Whether this is the type.
    #[inline]
    pub(crate) fn is(&self, class: *mut ffi::PyTypeObject) -> bool {
        self.get() == class
    }
}

/// Where the content of an object of this type is; its fields may be used as the object may.
#[inline]
pub(crate) const fn content<T: Native>(object: *mut ffi::PyObject) -> *mut T {
    object
        .wrapping_byte_add(offset_of!(Object<T>, content))
        .cast()
}

/// Whether an object is of this type.
#[inline]
pub(crate) fn is<T: Native>(object: &Bound<'_, PyAny>) -> bool {
    T::class().is(object.get_type_ptr())
}

/// Whether every object is tracked from the beginning. The collector of a free-threaded interpreter has no young objects
/// that it would visit again and again, and tracking late would race with it.
pub(crate) const IS_TRACKED_AT_ONCE: bool = cfg!(Py_GIL_DISABLED);

/// Whether dead objects are kept for new ones. Without the GIL, the list would need a lock, which costs as much as it
/// saves.
const KEEPS_DEAD: bool = cfg!(not(Py_GIL_DISABLED));

/// Makes an object, and tells the collector.
#[inline]
pub(crate) fn new<T: Native>(
    py: Python<'_>,
    make: impl FnOnce() -> T,
) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the GIL is held (`py`). The object is complete, and not tracked yet.
    unsafe {
        let Some(object) = new_untracked(|content: *mut T| content.write(make())) else {
            return Err(PyErr::fetch(py));
        };
        if !IS_TRACKED_AT_ONCE {
            ffi::PyObject_GC_Track(object.as_ptr().cast());
        }
        Ok(Bound::from_owned_ptr(py, object.as_ptr()))
    }
}

/// Makes an object that the collector doesn't know of; the reference is the caller's. None with `MemoryError` set, and
/// `write` not called. That writes the content in its place: one that is returned may be copied on its way there.
///
/// The collector doesn't count it. It starts a collection when a certain number of objects more were made than
/// freed, and objects that are tracked late or never would have it look again and again at nothing.
///
/// Without the GIL the collector knows of it at once ([`IS_TRACKED_AT_ONCE`]).
///
/// # Safety
/// The GIL is held, and the module is imported, which makes the type. `write` leaves a complete content in the place that
/// it is given, which has nothing in it.
#[inline]
pub(crate) unsafe fn new_untracked<T: Native>(
    write: impl FnOnce(*mut T),
) -> Option<NonNull<ffi::PyObject>> {
    // SAFETY: the GIL is held, and the type is made, which is the function's contract. A block has room for an
    // `Object<T>`, nobody else knows of it, and all of the object is written before somebody does.
    unsafe {
        let object = allocate::<T>()?;
        (*object.cast::<Head>().as_ptr()).weak_references = ptr::null_mut();
        write(content(object.as_ptr()));
        if IS_TRACKED_AT_ONCE {
            ffi::PyObject_GC_Track(object.as_ptr().cast());
        }
        Some(object)
    }
}

/// An untracked object with type and reference count set, and nothing else; None with `MemoryError` set.
///
/// # Safety
/// As for `new_untracked`.
#[inline]
unsafe fn allocate<T: Native>() -> Option<NonNull<ffi::PyObject>> {
    const { assert!(align_of::<Object<T>>() <= HEADER_SIZE) };
    let class = T::class();
    // SAFETY: the GIL is held, and the type is complete, which is the function's contract. The GIL guards the list of
    // dead objects, whose first `kept_len` are of this type, and in nobody else's hands. A new block has room for the
    // header and the object. `PyObject_Init` sets type and count in either.
    unsafe {
        if KEEPS_DEAD
            && T::KEPT_MAX > 0
            && let Some(last) = class.kept_len.get().checked_sub(1)
        {
            class.kept_len.set(last);
            let object = *class.kept.get().add(last);
            return NonNull::new(ffi::PyObject_Init(object, class.get()));
        }
        if cfg!(Py_GIL_DISABLED) || !IS_HEADER_KNOWN.load(Relaxed) {
            return allocate_by_interpreter(class.get());
        }
        let block = ffi::PyObject_Malloc(HEADER_SIZE + size_of::<Object<T>>()).cast::<u8>();
        if block.is_null() {
            ffi::PyErr_NoMemory();
            return None;
        }
        block.write_bytes(0, HEADER_SIZE);
        NonNull::new(ffi::PyObject_Init(
            block.add(HEADER_SIZE).cast(),
            class.get(),
        ))
    }
}

/// An untracked object of a type whose header is not known.
///
/// # Safety
/// The GIL is held, and the type is a complete one that `make` has made.
#[cold]
unsafe fn allocate_by_interpreter(class: *mut ffi::PyTypeObject) -> Option<NonNull<ffi::PyObject>> {
    // SAFETY: the GIL is held, and `class` is a complete type, which is the function's contract. `PyObject_GC_New` gives
    // an untracked object or null.
    unsafe { NonNull::new(ffi::PyObject_GC_New(class)) }
}

/// Frees the memory that `allocate` gave.
///
/// # Safety
/// The GIL is held; the object is untracked, nothing is left of its content, and nobody refers to it. The reference to
/// its type stays.
#[inline]
unsafe fn free(object: *mut ffi::PyObject) {
    // SAFETY: the GIL is held, and nobody uses the object, which `allocate` gave; that is the function's contract.
    // `IS_HEADER_KNOWN` doesn't change once objects are made, so the memory goes back to where it came from.
    unsafe {
        if cfg!(not(Py_GIL_DISABLED)) && IS_HEADER_KNOWN.load(Relaxed) {
            ffi::PyObject_Free(object.cast::<u8>().sub(HEADER_SIZE).cast());
        } else {
            ffi::PyObject_GC_Del(object.cast());
        }
    }
}

unsafe extern "C" fn dealloc<T: Native>(object: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter, with the GIL, for an object of this type whose count fell to zero. `begin` has
    // untracked it, and cleared its weak references, so that nobody can reach it while its content is dropped. What is
    // left then is its memory, and its reference to the type. The GIL guards the list of dead objects, which has room for
    // `KEPT_MAX`.
    unsafe {
        let Some(end) = EndOfLife::begin(object) else {
            return;
        };
        let pending = T::SETS_EXCEPTION_ASIDE.then(|| PendingException::take());
        T::end(object);
        content::<T>(object).drop_in_place();
        if let Some(pending) = pending {
            pending.restore();
        }
        let class = T::class();
        let kept_len = class.kept_len.get();
        if KEEPS_DEAD && kept_len < T::KEPT_MAX {
            class.kept.get().add(kept_len).write(object);
            class.kept_len.set(kept_len + 1);
        } else {
            free(object);
        }
        release_class(class.get());
        end.finish();
    }
}

/// Gives an object's reference to its type back.
///
/// Without the GIL, each thread counts its objects of a type by itself when they are made, and only the interpreter can
/// take that back: we could only count down what all threads share, and they would wait for one another each time. So
/// the count just grows there, for a type that lives for ever.
///
/// # Safety
/// The GIL is held, and the reference is the caller's.
#[inline]
unsafe fn release_class(class: *mut ffi::PyTypeObject) {
    if cfg!(not(Py_GIL_DISABLED)) {
        // SAFETY: the GIL is held, and the reference is the caller's, which is the function's contract.
        unsafe { ffi::Py_DECREF(class.cast()) };
    }
}

unsafe extern "C" fn traverse<T: Native>(
    object: *mut ffi::PyObject,
    function: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: called by the collector, with the GIL, for a tracked, hence fully made, object of this type. Its type is
    // alive as long as it is.
    let shown = unsafe {
        let visitor = Visitor::new(function, argument);
        match visitor.show(ffi::Py_TYPE(object).cast()) {
            ControlFlow::Continue(()) => (*content::<T>(object)).show(visitor),
            stopped @ ControlFlow::Break(_) => stopped,
        }
    };
    match shown {
        ControlFlow::Continue(()) => 0,
        ControlFlow::Break(status) => status,
    }
}

unsafe extern "C" fn clear<T: Native>(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: called by the collector, with the GIL, for an object of this type, to which it holds a reference.
    unsafe { T::clear(object) };
    0
}

/// Makes the type, and adds it to the module by the last part of its name.
///
/// It is made once. The module is executed again if it is imported after it was removed from `sys.modules`: the new
/// module gets the same type, because objects of it may be alive or kept.
pub(crate) fn add_to<T: Native>(module: &Bound<'_, PyModule>) -> PyResult<()> {
    static HEADER: PyOnceLock<()> = PyOnceLock::new();
    let py = module.py();
    let class = T::class();
    if class.get().is_null() {
        let object = make::<T>(py)?;
        // SAFETY: the GIL is held, and the type is complete. There are no objects of it yet.
        unsafe { HEADER.get_or_try_init(py, || learn_header(py, object))? };
        let room = vec![ptr::null_mut(); T::KEPT_MAX].leak();
        class.kept.set(room.as_mut_ptr());
        class.object.store(object, Relaxed);
    }
    // SAFETY: the GIL is held. The type is complete, and lives for ever.
    let object = unsafe { Bound::from_borrowed_ptr(py, class.get().cast()) };
    let name = T::NAME.to_string_lossy();
    let name = name.rsplit_once('.').map_or(&*name, |(_, name)| name);
    module.add(name, object)
}

/// Makes the type object. Its tables are leaked: the type refers to them for the life of the process.
fn make<T: Native>(py: Python<'_>) -> PyResult<*mut ffi::PyTypeObject> {
    let Table {
        mut slots,
        mut methods,
        mut attributes,
    } = T::table();
    methods.push(ffi::PyMethodDef::zeroed());
    attributes.push(ffi::PyGetSetDef {
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
    if let Some(vectorcall) = T::VECTORCALL {
        flags |= ffi::Py_TPFLAGS_HAVE_VECTORCALL;
        let vectorcall = offset_of!(Object<T>, content) + vectorcall;
        members.push(offset(c"__vectorcalloffset__", vectorcall));
        let call = ffi::PyVectorcall_Call as *mut c_void;
        slots.push(slot(ffi::Py_tp_call, call));
    }
    members.push(ffi::PyMemberDef {
        name: ptr::null(),
        type_code: 0,
        offset: 0,
        flags: 0,
        doc: ptr::null(),
    });
    slots.extend([
        slot(ffi::Py_tp_dealloc, dealloc::<T> as *mut c_void),
        slot(ffi::Py_tp_traverse, traverse::<T> as *mut c_void),
        slot(ffi::Py_tp_clear, clear::<T> as *mut c_void),
        slot(ffi::Py_tp_doc, T::DOC.as_ptr() as *mut c_void),
        slot(ffi::Py_tp_methods, methods.leak().as_mut_ptr().cast()),
        slot(ffi::Py_tp_getset, attributes.leak().as_mut_ptr().cast()),
        slot(ffi::Py_tp_members, members.leak().as_mut_ptr().cast()),
        slot(0, ptr::null_mut()),
    ]);
    let mut spec = ffi::PyType_Spec {
        name: T::NAME.as_ptr(),
        basicsize: size_of::<Object<T>>() as c_int,
        itemsize: 0,
        flags: flags as _,
        slots: slots.leak().as_mut_ptr(),
    };
    // SAFETY: the GIL is held (`py`), and spec and tables are complete and live for ever.
    let class = unsafe { ffi::PyType_FromSpec(&raw mut spec) };
    if class.is_null() {
        return Err(PyErr::fetch(py));
    }
    Ok(class.cast())
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
///
/// # Safety
/// The interpreter may call the definition's function, as its flags say, for each object of the class. Its name and
/// documentation live for ever.
pub(crate) unsafe fn add_method(
    class: &Bound<'_, PyType>,
    definition: ffi::PyMethodDef,
) -> PyResult<()> {
    let py = class.py();
    let name = definition.ml_name;
    let definition = Box::leak(Box::new(definition));
    // SAFETY: the GIL is held (`py`). The definition lives for ever, and so does its name, which is the function's
    // contract, as is what its function takes.
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
/// The GIL is held, and the type is a complete one that `make` has made; there are no native objects yet.
unsafe fn learn_header(py: Python<'_>, class: *mut ffi::PyTypeObject) -> PyResult<()> {
    // SAFETY: the GIL is held, and the type is complete, which is the function's contract. The new object is not used as
    // one, and goes back as it came, whatever the interpreter says of it. Its memory begins with the header, which is
    // looked at only if it has this size.
    unsafe {
        let Some(object) = allocate_by_interpreter(class) else {
            return Err(PyErr::fetch(py));
        };
        let object = object.as_ptr();
        let size = size_of_object(&Bound::from_borrowed_ptr(py, object));
        let words = object.cast::<usize>();
        let is_known = size.as_ref().is_ok_and(|size| {
            cfg!(not(Py_GIL_DISABLED))
                && size.checked_sub((*class).tp_basicsize as usize) == Some(HEADER_SIZE)
        }) && *words.sub(1) == 0
            && *words.sub(2) == 0;
        ffi::PyObject_GC_Del(object.cast());
        ffi::Py_DECREF(class.cast());
        IS_HEADER_KNOWN.store(is_known, Relaxed);
        size.map(drop)
    }
}

/// `sys.getsizeof(object)`, which counts the header.
fn size_of_object(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    object
        .py()
        .import("sys")?
        .call_method1("getsizeof", (object,))?
        .extract()
}
