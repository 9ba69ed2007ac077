//! `Handle` and `TimerHandle`: one scheduled callback each.
//!
//! Both are made once per callback, so they are types of the C API proper: a fixed struct with room for a few
//! arguments, recycled through a free list, and run by vectorcall without a tuple. In debug mode the loop schedules
//! asyncio's own handles instead (they carry source tracebacks), so these never need to.
//!
//! Every function here runs with the GIL held; that is what makes the free lists and the plain fields sound.
//!
//! A handle of `call_soon` is not tracked by the garbage collector while only the queue holds it: tens of thousands
//! of them would be visited again and again for nothing. The queue's owner shows the collector what they hold
//! (`HandleRef::traverse`), and one that somebody else kept is tracked when it leaves the queue.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use ringloop::timers::TimerKey;

use crate::event_loop::Loop;
use crate::names::intern;
use crate::native_type::{self, EndOfLife, Head, NativeType, attribute, method, slot, visit_all};
use crate::objects::{self, New};
use crate::run_lock;
use crate::support::{self, guard, guard_scheduling};

/// Arguments that fit into the handle itself; more go into a tuple.
const INLINE_ARGUMENTS: usize = 3;
/// Handles of each type kept for reuse: more than one turn of a busy server schedules, in about 100 KB.
const FREE_LIST_CAPACITY: usize = 1024;

/// The memory of a `Handle`, and the beginning of a `TimerHandle`.
#[repr(C)]
pub(crate) struct Handle {
    head: Head,
    /// Owned. Null once cancelled.
    callback: *mut ffi::PyObject,
    /// Owned. `arguments[0]` is a tuple where `spilled` is set.
    arguments: [*mut ffi::PyObject; INLINE_ARGUMENTS],
    /// Owned, a `contextvars.Context` (or what the user gave for one).
    context: *mut ffi::PyObject,
    /// Owned, an instance of `Loop`.
    event_loop: *mut ffi::PyObject,
    argument_count: u8,
    spilled: bool,
    cancelled: bool,
    origin: Origin,
    /// Runs in progress. While there are any, `cancel` leaves callback and arguments to the end of the run.
    running: u32,
}

/// What a handle shows of how it was made.
#[derive(Copy, Clone, PartialEq, Eq)]
#[repr(u8)]
enum Origin {
    Usual,
    /// `call_soon_threadsafe`; newer asyncios have a class for that.
    Threadsafe,
    /// `call_at` with an int, which `when` gives back as one.
    IntegerDeadline,
}

/// The memory of a `TimerHandle`.
#[repr(C)]
struct TimerHandle {
    handle: Handle,
    /// The deadline in seconds of the loop's clock.
    when_s: f64,
    /// Its place in the loop's timers while it is there.
    timer: Option<TimerKey>,
}

/// When a timer is due, in seconds of the loop's clock, as the user gave it.
#[derive(Copy, Clone)]
pub(crate) struct Deadline {
    pub(crate) seconds: f64,
    /// It was an int, which `seconds` equals.
    pub(crate) integer: bool,
}

impl<'py> IntoPyObject<'py> for New<Deadline> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.0.integer {
            Ok(New(self.0.seconds as i64).into_pyobject(py)?.into_any())
        } else {
            Ok(objects::float(py, self.0.seconds)?.into_any())
        }
    }
}

/// The callback, its arguments and its context, as they come from the caller (borrowed).
pub(crate) struct Call<'a> {
    pub(crate) callback: *mut ffi::PyObject,
    pub(crate) arguments: &'a [*mut ffi::PyObject],
    /// Null: a copy of the current context.
    pub(crate) context: *mut ffi::PyObject,
}

/// An owned reference to a handle. Dropping is explicit (`release`), because it may run arbitrary Python code and
/// must not happen while the loop's state is borrowed.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) struct HandleRef(NonNull<Handle>);

// SAFETY: a handle is only touched under the GIL.
unsafe impl Send for HandleRef {}

/// A type object, made once when the module is imported, and dead instances of it.
struct Kind {
    class: *mut ffi::PyTypeObject,
    free: [*mut Handle; FREE_LIST_CAPACITY],
    free_len: usize,
}

impl Kind {
    const NEW: Self = Self {
        class: ptr::null_mut(),
        free: [ptr::null_mut(); FREE_LIST_CAPACITY],
        free_len: 0,
    };
}

static mut HANDLE: Kind = Kind::NEW;
static mut TIMER_HANDLE: Kind = Kind::NEW;

impl HandleRef {
    /// Makes a handle for `call` on `event_loop` (borrowed). Fails only when memory runs out.
    ///
    /// # Safety
    /// The GIL is held, and every pointer in `call` and `event_loop` is a live object.
    #[inline]
    pub(crate) unsafe fn new(
        call: &Call<'_>,
        event_loop: *mut ffi::PyObject,
        when: Option<Deadline>,
    ) -> Option<Self> {
        // SAFETY: the caller holds the GIL and vouches for the pointers; the block from `allocate` has room for a
        // `Handle`, and each field is written before the object is tracked and can be seen.
        unsafe {
            let context = if call.context.is_null() || call.context == ffi::Py_None() {
                ffi::PyContext_CopyCurrent()
            } else {
                ffi::Py_NewRef(call.context)
            };
            if context.is_null() {
                return None;
            }
            let spill = if call.arguments.len() > INLINE_ARGUMENTS {
                let tuple = objects::tuple_from_borrowed(call.arguments);
                if tuple.is_null() {
                    ffi::Py_DECREF(context);
                    return None;
                }
                tuple
            } else {
                ptr::null_mut()
            };
            let this = allocate(if when.is_some() {
                &raw mut TIMER_HANDLE
            } else {
                &raw mut HANDLE
            });
            if this.is_null() {
                ffi::Py_DECREF(context);
                ffi::Py_XDECREF(spill);
                return None;
            }
            (*this).callback = ffi::Py_NewRef(call.callback);
            (*this).context = context;
            (*this).event_loop = ffi::Py_NewRef(event_loop);
            (*this).head.weak_references = ptr::null_mut();
            (*this).cancelled = false;
            (*this).origin = match when {
                Some(Deadline { integer: true, .. }) => Origin::IntegerDeadline,
                _ => Origin::Usual,
            };
            (*this).running = 0;
            (*this).spilled = !spill.is_null();
            if spill.is_null() {
                (*this).argument_count = call.arguments.len() as u8;
                for (slot, &argument) in (*this).arguments.iter_mut().zip(call.arguments) {
                    *slot = ffi::Py_NewRef(argument);
                }
            } else {
                (*this).argument_count = 1;
                (*this).arguments[0] = spill;
            }
            if let Some(when) = when {
                let timer = this.cast::<TimerHandle>();
                (*timer).when_s = when.seconds;
                (*timer).timer = None;
                ffi::PyObject_GC_Track(this.cast());
            }
            Some(Self(NonNull::new_unchecked(this)))
        }
    }

    /// The handle behind `object`, borrowed, if it is one of ours.
    pub(crate) fn from_object(object: &Bound<'_, PyAny>) -> Option<Self> {
        // SAFETY: the GIL is held (a `Bound` proves it) and the type check proves the layout.
        unsafe {
            let class = ffi::Py_TYPE(object.as_ptr());
            (class == HANDLE.class || class == TIMER_HANDLE.class)
                .then(|| Self(NonNull::new_unchecked(object.as_ptr().cast())))
        }
    }

    #[inline]
    pub(crate) fn as_ptr(self) -> *mut ffi::PyObject {
        self.0.as_ptr().cast()
    }

    /// Takes one more reference.
    #[inline]
    pub(crate) fn retain(self, _py: Python<'_>) -> Self {
        // SAFETY: the GIL is held and a `HandleRef` always refers to a live handle.
        unsafe { ffi::Py_INCREF(self.as_ptr()) };
        self
    }

    /// Gives this reference back. May run Python code (destructors).
    #[inline]
    pub(crate) fn release(self, _py: Python<'_>) {
        // SAFETY: the GIL is held and this reference is owned by the caller, who doesn't use it again.
        unsafe { ffi::Py_DECREF(self.as_ptr()) };
    }

    pub(crate) fn to_object(self, py: Python<'_>) -> Bound<'_, PyAny> {
        // SAFETY: a `HandleRef` refers to a live handle, and the GIL is held.
        unsafe { Bound::from_borrowed_ptr(py, self.as_ptr()) }
    }

    /// Shows the collector this reference, which the queue owns. What a handle holds that the collector doesn't track,
    /// and that only the queue refers to, counts as the queue's own. (One that is shared but not tracked yet is kept:
    /// the collector sees a reference it can't explain.)
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // SAFETY: a `HandleRef` refers to a live handle.
        let tracked = unsafe { ffi::PyObject_GC_IsTracked(self.as_ptr()) != 0 };
        if tracked {
            return visit.call(support::borrow_pointer(&self.0));
        }
        if !self.is_shared() {
            // SAFETY: as above.
            for member in unsafe { members(self.0.as_ptr()) } {
                if let Some(member) = NonNull::new(member) {
                    visit.call(support::borrow_pointer(&member))?;
                }
            }
        }
        Ok(())
    }

    /// Remembers the handle's place in the timers, or that it has left them. For timer handles only.
    #[inline]
    pub(crate) fn set_timer(self, key: Option<TimerKey>) {
        // SAFETY: a `HandleRef` refers to a live handle, the type says which; the GIL serialises writers.
        unsafe {
            if ffi::Py_TYPE(self.as_ptr()) == TIMER_HANDLE.class {
                (*self.0.as_ptr().cast::<TimerHandle>()).timer = key;
            }
        }
    }

    /// Marks a handle of `call_soon_threadsafe`.
    #[inline]
    pub(crate) fn set_threadsafe(self) {
        // SAFETY: a `HandleRef` refers to a live handle.
        unsafe { (*self.0.as_ptr()).origin = Origin::Threadsafe };
    }

    /// Tells the collector of a handle that somebody besides the queue holds.
    #[inline]
    pub(crate) fn track(self) {
        // SAFETY: a `HandleRef` refers to a live handle, whose fields are set.
        unsafe {
            if ffi::PyObject_GC_IsTracked(self.as_ptr()) == 0 {
                ffi::PyObject_GC_Track(self.as_ptr().cast());
            }
        }
    }

    /// True if somebody besides the caller holds the handle.
    #[inline]
    pub(crate) fn is_shared(self) -> bool {
        // SAFETY: a `HandleRef` refers to a live handle.
        unsafe { ffi::Py_REFCNT(self.as_ptr()) > 1 }
    }

    #[inline]
    pub(crate) fn is_cancelled(self) -> bool {
        // SAFETY: a `HandleRef` refers to a live handle.
        unsafe { (*self.0.as_ptr()).cancelled }
    }

    /// Cancels the callback and drops what it holds.
    pub(crate) fn cancel(self, py: Python<'_>) {
        // SAFETY: the GIL is held and the handle is alive.
        unsafe { cancel(py, self.0.as_ptr()) };
    }

    /// Runs the callback in its context. `Err` is only what must end the loop (`SystemExit`, `KeyboardInterrupt`);
    /// every other exception goes to the loop's exception handler, as asyncio's `Handle._run` does.
    #[inline]
    pub(crate) fn run(self, py: Python<'_>) -> PyResult<()> {
        let this = self.0.as_ptr();
        // SAFETY: the GIL is held, the handle is alive (the caller owns a reference for the whole call), and `running`
        // keeps `cancel` from dropping callback and arguments until the call is over.
        unsafe {
            if (*this).cancelled {
                return Ok(());
            }
            if self.is_shared() {
                self.track();
            }
            (*this).running += 1;
            if (*this).origin == Origin::Threadsafe {
                run_lock::begin(this as usize);
            }
            let context = (*this).context;
            let mut result = ptr::null_mut();
            if ffi::PyContext_Enter(context) == 0 {
                result = call(this);
                if ffi::PyContext_Exit(context) != 0 {
                    ffi::Py_XDECREF(result);
                    result = ptr::null_mut();
                }
            } else if ffi::PyContext_CheckExact(context) == 0 {
                ffi::PyErr_Clear();
                result = run_by(self);
            }
            let outcome = if result.is_null() {
                report(py, self)
            } else {
                ffi::Py_DECREF(result);
                Ok(())
            };
            (*this).running -= 1;
            if (*this).origin == Origin::Threadsafe {
                run_lock::end();
            }
            outcome
        }
    }

    /// What `run` has called, also if it was cancelled meanwhile; before `finish_run`.
    pub(crate) fn callback(self, py: Python<'_>) -> Option<Bound<'_, PyAny>> {
        // SAFETY: the GIL is held, the handle is alive, and its callback is an object or null.
        unsafe { Bound::from_borrowed_ptr_or_opt(py, (*self.0.as_ptr()).callback) }
    }

    /// Drops callback and arguments if they were cancelled during `run`.
    #[inline]
    pub(crate) fn finish_run(self, _py: Python<'_>) {
        let this = self.0.as_ptr();
        // SAFETY: the GIL is held, and the handle is alive (the caller owns a reference).
        unsafe {
            if (*this).cancelled && (*this).running == 0 {
                drop_call(this);
            }
        }
    }
}

/// Calls the callback with its arguments; the result is owned, null with an exception set.
///
/// # Safety
/// The GIL is held, `this` is alive and not cancelled, and `running` is above zero.
#[inline]
unsafe fn call(this: *mut Handle) -> *mut ffi::PyObject {
    // SAFETY: as the function asks. The copy on the stack leaves the slot before the first argument free for the
    // callee, which is what PY_VECTORCALL_ARGUMENTS_OFFSET allows it to use.
    unsafe {
        if (*this).spilled {
            return ffi::PyObject_Call((*this).callback, (*this).arguments[0], ptr::null_mut());
        }
        let arguments = &(*this).arguments;
        let stack = [ptr::null_mut(), arguments[0], arguments[1], arguments[2]];
        ffi::PyObject_Vectorcall(
            (*this).callback,
            stack.as_ptr().add(1),
            (*this).argument_count as usize | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET,
            ptr::null_mut(),
        )
    }
}

/// What the user gave for a context and is none is asked to run the callback, as asyncio does; the result is owned, null
/// with an exception set.
#[cold]
fn run_by(handle: HandleRef) -> *mut ffi::PyObject {
    guard(|py| {
        let handle = handle.to_object(py);
        let arguments = handle.getattr(intern!(py, "_args"))?;
        let callback = handle.getattr(intern!(py, "_callback"))?;
        let arguments = arguments.cast::<PyTuple>()?.iter_borrowed();
        let all = std::iter::once(callback.as_ptr()).chain(arguments.map(pyo3::Borrowed::as_ptr));
        // SAFETY: the GIL is held; the callback and the tuple of arguments are alive.
        let all = unsafe {
            let all = objects::tuple_from_borrowed(&all.collect::<Vec<_>>());
            Bound::from_owned_ptr_or_err(py, all)?.cast_into_unchecked::<PyTuple>()
        };
        let context = handle.getattr(intern!(py, "_context"))?;
        context.getattr(intern!(py, "run"))?.call1(all)
    })
}

/// Hands the exception that is set to the loop's exception handler.
#[cold]
fn report(py: Python<'_>, handle: HandleRef) -> PyResult<()> {
    let error = PyErr::fetch(py);
    if error.is_instance_of::<PySystemExit>(py) || error.is_instance_of::<PyKeyboardInterrupt>(py) {
        return Err(error);
    }
    // The exception handler may keep it.
    handle.track();
    // SAFETY: the handle is alive; the caller of `run` owns a reference.
    let object = unsafe { Bound::from_borrowed_ptr(py, handle.as_ptr()) };
    support::python(py)?
        .getattr(intern!(py, "report_callback_error"))?
        .call1((object, error.into_value(py)))?;
    Ok(())
}

/// Takes a block from the free list or from the allocator, with type and reference count set. It is tracked when it is due.
///
/// # Safety
/// The GIL is held and `kind` is one of the two kinds.
#[inline]
unsafe fn allocate(kind: *mut Kind) -> *mut Handle {
    // SAFETY: the GIL serialises access to the free list; its blocks came from the same allocator for the same type,
    // and `PyObject_Init` sets type and count as for a new block.
    unsafe {
        if (*kind).free_len > 0 {
            (*kind).free_len -= 1;
            let this = (&(*kind).free)[(*kind).free_len];
            return ffi::PyObject_Init(this.cast(), (*kind).class).cast();
        }
        native_type::allocate((*kind).class).cast()
    }
}

/// What a handle refers to, besides its type; null where it doesn't.
///
/// # Safety
/// The GIL is held and `this` is alive.
unsafe fn members(this: *mut Handle) -> impl Iterator<Item = *mut ffi::PyObject> {
    // SAFETY: as the function asks.
    unsafe {
        let [first, second, third] = (*this).arguments;
        let count = (*this).argument_count as usize;
        [
            (*this).callback,
            (*this).context,
            (*this).event_loop,
            first,
            second,
            third,
        ]
        .into_iter()
        .take(3 + count)
    }
}

/// Drops callback and arguments.
///
/// # Safety
/// The GIL is held, `this` is alive or being destroyed, and no run of it is in progress.
unsafe fn drop_call(this: *mut Handle) {
    // SAFETY: as the function asks. Each field is emptied before its reference is dropped, because dropping may run
    // Python code that comes back to this handle.
    unsafe {
        let callback = std::mem::replace(&mut (*this).callback, ptr::null_mut());
        let count = std::mem::replace(&mut (*this).argument_count, 0) as usize;
        let arguments =
            std::mem::replace(&mut (*this).arguments, [ptr::null_mut(); INLINE_ARGUMENTS]);
        (*this).spilled = false;
        ffi::Py_XDECREF(callback);
        for argument in &arguments[..count] {
            ffi::Py_XDECREF(*argument);
        }
    }
}

/// # Safety
/// The GIL is held and `this` is alive.
unsafe fn cancel(py: Python<'_>, this: *mut Handle) {
    // SAFETY: as the function asks; `event_loop` is an instance of `Loop` by construction.
    unsafe {
        if (*this).cancelled {
            return;
        }
        let event_loop = Bound::from_borrowed_ptr(py, (*this).event_loop);
        let owner = event_loop.cast_unchecked::<Loop>();
        (*this).cancelled = true;
        if (*this).running == 0 {
            drop_call(this);
        }
        if ffi::Py_TYPE(this.cast()) == TIMER_HANDLE.class
            && let Some(key) = (*this.cast::<TimerHandle>()).timer.take()
        {
            // The queue's own reference; the caller's keeps the handle alive.
            if let Some(queued) = owner.get().cancel_timer(py, key) {
                queued.release(py);
            }
        }
    }
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter, with the GIL, for an object of one of our two types whose count fell to zero.
    unsafe {
        let Some(end) = EndOfLife::begin(object) else {
            return;
        };
        let this = object.cast::<Handle>();
        drop_call(this);
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).context, ptr::null_mut()));
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).event_loop, ptr::null_mut()));
        let class = ffi::Py_TYPE(object);
        let kind = if class == TIMER_HANDLE.class {
            &raw mut TIMER_HANDLE
        } else {
            &raw mut HANDLE
        };
        if (*kind).free_len < FREE_LIST_CAPACITY {
            (&mut (*kind).free)[(*kind).free_len] = this;
            (*kind).free_len += 1;
        } else {
            native_type::free(object);
        }
        ffi::Py_DECREF(class.cast());
        end.finish();
    }
}

unsafe extern "C" fn traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: called by the collector for a tracked, hence fully made, handle.
    unsafe {
        let class = ffi::Py_TYPE(object).cast();
        visit_all(members(object.cast()).chain([class]), visit, argument)
    }
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: called by the collector for unreachable handles; none is running, as a run owns a reference.
    unsafe {
        let this = object.cast::<Handle>();
        (*this).cancelled = true;
        drop_call(this);
        // The loop reference stays: `cancel` and `repr` rely on it, and the loop breaks the cycle by clearing its queue.
        ffi::Py_XDECREF(std::mem::replace(&mut (*this).context, ptr::null_mut()));
        0
    }
}

unsafe extern "C" fn repr(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter with a live handle.
        let handle = unsafe { Bound::from_borrowed_ptr(py, object) };
        support::python(py)?
            .getattr(intern!(py, "handle_repr"))?
            .call1((handle,))
    })
}

unsafe extern "C" fn method_cancel(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_scheduling(|py| {
        // SAFETY: called by the interpreter with the GIL, and with a live handle, that the caller keeps alive.
        unsafe {
            wait_for_end_of_run(py, object.cast())?;
            cancel(py, object.cast());
        }
        Ok(py.None().into_bound(py))
    })
}

unsafe extern "C" fn method_cancelled(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_scheduling(|py| {
        let this = object.cast::<Handle>();
        // SAFETY: called by the interpreter with a live handle, that the caller keeps alive.
        let cancelled = unsafe {
            wait_for_end_of_run(py, this)?;
            (*this).cancelled
        };
        Ok(PyBool::new(py, cancelled).to_owned().into_any())
    })
}

/// Where asyncio would take the lock of a handle of `call_soon_threadsafe`.
///
/// # Safety
/// The GIL is held and `this` is alive until the function returns.
unsafe fn wait_for_end_of_run(py: Python<'_>, this: *mut Handle) -> PyResult<()> {
    // SAFETY: as the function asks; whenever `is_running` is called, the GIL is held.
    unsafe {
        if (*this).origin == Origin::Threadsafe && (*this).running > 0 {
            return run_lock::wait_for_end(py, this as usize, || (*this).running > 0);
        }
    }
    Ok(())
}

unsafe extern "C" fn method_run(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter with a live handle.
        let handle = HandleRef(unsafe { NonNull::new_unchecked(object.cast()) });
        let outcome = handle.run(py);
        handle.finish_run(py);
        outcome?;
        Ok(py.None().into_bound(py))
    })
}

unsafe extern "C" fn method_when(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter with a live timer handle.
        let timer = unsafe { &*object.cast::<TimerHandle>() };
        New(Deadline {
            seconds: timer.when_s,
            integer: timer.handle.origin == Origin::IntegerDeadline,
        })
        .into_pyobject(py)
    })
}

unsafe extern "C" fn method_get_context(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe { none_if_null((*object.cast::<Handle>()).context) }
}

/// A new reference to `object`, or to None.
///
/// # Safety
/// The GIL is held; `object` is null or alive.
unsafe fn none_if_null(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: as the function asks.
    unsafe {
        if object.is_null() {
            ffi::Py_NewRef(ffi::Py_None())
        } else {
            ffi::Py_NewRef(object)
        }
    }
}

unsafe extern "C" fn get_callback(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe {
        let this = object.cast::<Handle>();
        if (*this).cancelled {
            return ffi::Py_NewRef(ffi::Py_None());
        }
        none_if_null((*this).callback)
    }
}

unsafe extern "C" fn get_args(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe {
        let this = object.cast::<Handle>();
        if (*this).cancelled {
            ffi::Py_NewRef(ffi::Py_None())
        } else if (*this).spilled {
            ffi::Py_NewRef((*this).arguments[0])
        } else {
            let count = (*this).argument_count as usize;
            objects::tuple_from_borrowed(&(&(*this).arguments)[..count])
        }
    }
}

unsafe extern "C" fn get_cancelled(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe { method_cancelled(object, ptr::null_mut()) }
}

unsafe extern "C" fn get_context(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe { method_get_context(object, ptr::null_mut()) }
}

unsafe extern "C" fn get_loop(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe { none_if_null((*object.cast::<Handle>()).event_loop) }
}

unsafe extern "C" fn get_when(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe { method_when(object, ptr::null_mut()) }
}

unsafe extern "C" fn get_scheduled(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with a live handle.
    unsafe { ffi::PyBool_FromLong((*object.cast::<TimerHandle>()).timer.is_some().into()) }
}

/// Native handles are made outside debug mode only, so they never have a traceback.
unsafe extern "C" fn get_source_traceback(
    _: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with the GIL.
    unsafe { ffi::Py_NewRef(ffi::Py_None()) }
}

/// `isinstance(handle, asyncio.Handle)` holds through the class that the handle says it has, as proxies do.
unsafe extern "C" fn get_class(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter with a live handle.
        let is_timer = unsafe { ffi::Py_TYPE(object) == TIMER_HANDLE.class };
        // SAFETY: as above.
        let threadsafe = unsafe { (*object.cast::<Handle>()).origin == Origin::Threadsafe };
        let events = py.import(intern!(py, "asyncio.events"))?;
        if threadsafe && let Some(class) = events.getattr_opt(intern!(py, "_ThreadSafeHandle"))? {
            return Ok(class);
        }
        events.getattr(if is_timer {
            intern!(py, "TimerHandle")
        } else {
            intern!(py, "Handle")
        })
    })
}

unsafe extern "C" fn timer_hash(object: *mut ffi::PyObject) -> ffi::Py_hash_t {
    // SAFETY: called by the interpreter with a live timer handle.
    unsafe {
        let when = method_when(object, ptr::null_mut());
        if when.is_null() {
            return -1;
        }
        let hash = ffi::PyObject_Hash(when);
        ffi::Py_DECREF(when);
        hash
    }
}

unsafe extern "C" fn timer_compare(
    left: *mut ffi::PyObject,
    right: *mut ffi::PyObject,
    operation: c_int,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter with live objects.
        let (left, right) = unsafe {
            (
                Bound::from_borrowed_ptr(py, left),
                Bound::from_borrowed_ptr(py, right),
            )
        };
        support::python(py)?
            .getattr(intern!(py, "timer_handle_compare"))?
            .call1((left, right, operation))
    })
}

/// Makes one of the two types.
fn make_type(
    py: Python<'_>,
    name: &'static CStr,
    doc: &'static CStr,
    size: usize,
    own_methods: &[ffi::PyMethodDef],
    own_attributes: &[ffi::PyGetSetDef],
    own_slots: &[ffi::PyType_Slot],
) -> PyResult<*mut ffi::PyTypeObject> {
    let mut methods = vec![
        method(
            c"cancel",
            method_cancel,
            c"Cancel the callback. Cancelling twice has no further effect.",
        ),
        method(
            c"cancelled",
            method_cancelled,
            c"True if the callback was cancelled.",
        ),
        method(
            c"get_context",
            method_get_context,
            c"The contextvars.Context that the callback runs in.",
        ),
        method(
            c"_run",
            method_run,
            c"Run the callback now, as the loop does.",
        ),
    ];
    methods.extend_from_slice(own_methods);
    let mut attributes = vec![
        attribute(c"_callback", get_callback),
        attribute(c"_args", get_args),
        attribute(c"_cancelled", get_cancelled),
        attribute(c"_context", get_context),
        attribute(c"_loop", get_loop),
        attribute(c"_source_traceback", get_source_traceback),
        attribute(c"__class__", get_class),
    ];
    attributes.extend_from_slice(own_attributes);
    let mut slots = vec![
        slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
        slot(ffi::Py_tp_traverse, traverse as *mut c_void),
        slot(ffi::Py_tp_clear, clear as *mut c_void),
        slot(ffi::Py_tp_repr, repr as *mut c_void),
    ];
    slots.extend_from_slice(own_slots);
    NativeType {
        name,
        doc,
        size,
        slots,
        methods,
        attributes,
    }
    .make(py)
}

/// Makes the two types and adds them to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let handle = make_type(
        py,
        c"ringloop._core.Handle",
        c"A callback scheduled with call_soon; see asyncio.Handle.",
        size_of::<Handle>(),
        &[],
        &[],
        &[],
    )?;
    let timer_handle = make_type(
        py,
        c"ringloop._core.TimerHandle",
        c"A callback scheduled with call_later or call_at; see asyncio.TimerHandle.",
        size_of::<TimerHandle>(),
        &[method(
            c"when",
            method_when,
            c"The deadline in seconds of the loop's clock, loop.time().",
        )],
        &[
            attribute(c"_when", get_when),
            attribute(c"_scheduled", get_scheduled),
        ],
        &[
            slot(ffi::Py_tp_hash, timer_hash as *mut c_void),
            slot(ffi::Py_tp_richcompare, timer_compare as *mut c_void),
        ],
    )?;
    run_lock::init(py)?;
    // SAFETY: the module is initialised once, with the GIL, before any handle is made; the types live for ever.
    unsafe {
        native_type::learn_header(py, handle)?;
        HANDLE.class = handle;
        TIMER_HANDLE.class = timer_handle;
        module.add("Handle", Bound::from_borrowed_ptr(py, handle.cast()))?;
        module.add(
            "TimerHandle",
            Bound::from_borrowed_ptr(py, timer_handle.cast()),
        )
    }
}
