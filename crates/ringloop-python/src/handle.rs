//! `Handle` and `TimerHandle`: one scheduled callback each.
//!
//! Both are made once per callback, so they are types of the C API proper: a fixed struct with room for a few
//! arguments, recycled through a free list, and run by vectorcall without a tuple. In debug mode the loop schedules
//! asyncio's own handles instead (they carry source tracebacks), so these never need to.
//!
//! Every function here runs with the GIL held; that is what makes the free lists and the plain fields sound. Without a
//! GIL there are no free lists, and a handle may be cancelled, run and looked at by several threads at once:
//!
//! - `state` decides whether a run or a cancellation came first. While a run is under way, nobody takes callback and
//!   arguments out, so it reads them as they are.
//! - Everybody else reads them, or takes them out, in a critical section of the handle.
//! - The other fields don't change once the handle is made, but for `timer`, which is one atomic word.
//!
//! A handle is not tracked by the garbage collector while only the queue holds it: the collector would visit tens of
//! thousands of them again and again, in vain. The queue's owner shows the collector what they refer to
//! (`HandleRef::traverse`). A handle that somebody else keeps is tracked when it leaves the queue, or is cancelled; and
//! a timer's handle at the latest when the loop waits, because timers may stay in the queue for hours. The same goes
//! for the copy of the current context that a handle makes: the collector sees it once it is run in, or given to
//! somebody.

#![allow(unsafe_code)]

mod memory;
mod object;
mod state;

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::Borrowed;
use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::PyTuple;
use pyo3::{PyTraverseError, PyVisit};
use ringloop_reactor::timers::TimerKey;

use crate::names::intern;
use crate::native_type::{
    IS_TRACKED_AT_ONCE, Native, Optional, Owned, References, Visitor, content, is, new_untracked,
};
use crate::objects::{self, New};
use crate::run_lock;
use crate::support::{self, guard};

pub(crate) use self::object::add_to;

use self::memory::{hide, reveal};
use self::state::State;

/// Arguments that fit into the handle itself; more go into a tuple.
const INLINE_ARGUMENTS: usize = 3;

/// The content of a `Handle`, and the beginning of that of a `TimerHandle`.
#[repr(C)]
pub(crate) struct Handle {
    /// None once cancelled.
    callback: Option<Owned>,
    /// The first ones are there. `arguments[0]` is a tuple where `spilled` is set.
    arguments: [Option<Owned>; INLINE_ARGUMENTS],
    /// A `contextvars.Context` (or what the user gave for one); None once the collector has cleared the handle.
    context: Option<Owned>,
    /// An instance of `Loop`.
    event_loop: Owned,
    argument_count: u8,
    spilled: bool,
    origin: Origin,
    /// While it runs, `cancel` leaves callback and arguments to the end of the run.
    state: State,
}

/// How a handle was made, as far as it shows.
#[derive(Copy, Clone, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Origin {
    Usual,
    /// By `call_soon_threadsafe`, for which newer asyncios have a class.
    Threadsafe,
    /// By `call_at` with an int, which `when` gives back as one.
    IntegerDeadline,
}

/// The content of a `TimerHandle`.
#[repr(C)]
struct TimerHandle {
    handle: Handle,
    /// The deadline in seconds of the loop's clock.
    when_s: f64,
    /// Its place in the loop's timers while it is there: a [`TimerKey`], or 0. Only the queue's owner makes it another's
    /// place; the timers know if it is out of date.
    timer: AtomicU64,
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

impl Call<'_> {
    /// Whether the callback runs in a copy of the current context.
    #[inline]
    fn copies_context(&self) -> bool {
        // SAFETY: that only takes the address of a static.
        self.context.is_null() || self.context == unsafe { ffi::Py_None() }
    }
}

/// An owned reference to a handle. Dropping is explicit (`release`), because it may run arbitrary Python code and
/// must not happen while the loop's state is borrowed.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) struct HandleRef(NonNull<ffi::PyObject>);

// SAFETY: a handle is only touched under the GIL.
unsafe impl Send for HandleRef {}

/// Writes the content of a new handle field by field. As a whole it would be written to the stack, and copied from there in
/// larger pieces than it was written in, which stalls the processor.
///
/// # Safety
/// The GIL is held, every pointer in `call` is a live object, and `event_loop` is a live instance of `Loop`. `handle` has
/// room for a `Handle`. `spill` has the arguments if there are more than `INLINE_ARGUMENTS`. Nobody else has the context if
/// it is a copy.
#[expect(
    clippy::inline_always,
    reason = "it is called in two places, and passes its arguments through memory if it is not inlined"
)]
#[inline(always)]
unsafe fn write(
    handle: *mut Handle,
    call: &Call<'_>,
    event_loop: *mut ffi::PyObject,
    context: Owned,
    spill: Option<Owned>,
    origin: Origin,
) {
    // SAFETY: the GIL is held, the pointers are live objects, and `handle` has room for all fields, which is the function's
    // contract. The context is hidden only if nobody else has it.
    unsafe {
        if call.copies_context() {
            hide(context.as_ptr());
        }
        (&raw mut (*handle).callback).write(Some(Owned::new(call.callback)));
        (&raw mut (*handle).context).write(Some(context));
        (&raw mut (*handle).event_loop).write(Owned::new(event_loop));
        (&raw mut (*handle).state).write(State::new());
        (&raw mut (*handle).origin).write(origin);
        (&raw mut (*handle).spilled).write(spill.is_some());
        let arguments = (&raw mut (*handle).arguments).cast::<Option<Owned>>();
        let count = if spill.is_some() {
            arguments.write(spill);
            1
        } else {
            debug_assert!(call.arguments.len() <= INLINE_ARGUMENTS);
            for (at, &argument) in call.arguments.iter().enumerate() {
                arguments.add(at).write(Some(Owned::new(argument)));
            }
            call.arguments.len()
        };
        for at in count..INLINE_ARGUMENTS {
            arguments.add(at).write(None);
        }
        (&raw mut (*handle).argument_count).write(count as u8);
    }
}

impl HandleRef {
    /// Makes a handle for `call` on `event_loop` (borrowed), for the timers if there is a deadline. Fails only when memory
    /// runs out.
    ///
    /// # Safety
    /// The GIL is held, every pointer in `call` is a live object, and `event_loop` is a live instance of `Loop`.
    #[inline]
    pub(crate) unsafe fn new(
        call: &Call<'_>,
        event_loop: *mut ffi::PyObject,
        when: Option<Deadline>,
        origin: Origin,
    ) -> Option<Self> {
        // SAFETY: the GIL is held, and the pointers are live objects, which is the function's contract. The fields of a
        // timer are the handle and those that are written after it.
        unsafe {
            let context = if call.copies_context() {
                Owned::from_owned(ffi::PyContext_CopyCurrent())?
            } else {
                Owned::new(call.context)
            };
            let spill = if call.arguments.len() > INLINE_ARGUMENTS {
                Some(Owned::from_owned(objects::tuple_from_borrowed(
                    call.arguments,
                ))?)
            } else {
                None
            };
            let object = match when {
                None => new_untracked(|handle| {
                    write(handle, call, event_loop, context, spill, origin);
                })?,
                Some(when) => new_untracked(|timer: *mut TimerHandle| {
                    let origin = if when.integer {
                        Origin::IntegerDeadline
                    } else {
                        origin
                    };
                    let handle = &raw mut (*timer).handle;
                    write(handle, call, event_loop, context, spill, origin);
                    (&raw mut (*timer).when_s).write(when.seconds);
                    (&raw mut (*timer).timer).write(AtomicU64::new(0));
                })?,
            };
            Some(Self(object))
        }
    }

    /// The handle behind `object`, borrowed, if it is one of ours.
    pub(crate) fn from_object(object: &Bound<'_, PyAny>) -> Option<Self> {
        // SAFETY: an object is not at null.
        (is::<Handle>(object) || is::<TimerHandle>(object))
            .then(|| Self(unsafe { NonNull::new_unchecked(object.as_ptr()) }))
    }

    /// The handle behind a pointer.
    ///
    /// # Safety
    /// It is a live handle, which outlives what is done with the result.
    #[inline]
    pub(crate) unsafe fn from_ptr(object: *mut ffi::PyObject) -> Self {
        // SAFETY: a live handle, which the function's contract asks for, is not at null.
        Self(unsafe { NonNull::new_unchecked(object) })
    }

    #[inline]
    pub(crate) fn as_ptr(self) -> *mut ffi::PyObject {
        self.0.as_ptr()
    }

    /// Where its content is.
    #[inline]
    fn content(self) -> *mut Handle {
        content(self.as_ptr())
    }

    /// Where the content of a timer's handle is; None for another one.
    #[inline]
    fn timer_content(self) -> Option<*mut TimerHandle> {
        // SAFETY: a `HandleRef` refers to a live handle.
        let class = unsafe { ffi::Py_TYPE(self.as_ptr()) };
        TimerHandle::class()
            .is(class)
            .then(|| content(self.as_ptr()))
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

    /// The handle, borrowed.
    #[inline]
    fn borrowed<'py>(&self, py: Python<'py>) -> Borrowed<'_, 'py, PyAny> {
        // SAFETY: a `HandleRef` refers to a live handle, and the GIL is held.
        unsafe { Borrowed::from_ptr(py, self.as_ptr()) }
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
        if self.is_shared() {
            return Ok(());
        }
        let mut forward = Forward {
            visit,
            result: Ok(()),
        };
        // SAFETY: a `HandleRef` refers to a live handle, and the collector runs with the GIL held. `forward_visit` gets
        // the `Forward` that it expects, which outlives the call.
        unsafe {
            let visitor = Visitor::new(forward_visit, (&raw mut forward).cast());
            // The result is in `forward`, too.
            let _ = (*self.content()).show(visitor);
        }
        forward.result
    }

    /// Remembers the handle's place in the timers, or that it has left them. For timer handles only.
    #[inline]
    pub(crate) fn set_timer(self, key: Option<TimerKey>) {
        if let Some(timer) = self.timer_content() {
            // SAFETY: a `HandleRef` refers to a live handle.
            unsafe {
                (*timer)
                    .timer
                    .store(key.map_or(0, TimerKey::to_bits), Relaxed);
            };
        }
    }

    /// Tells the collector of a handle that somebody besides the queue holds.
    #[inline]
    pub(crate) fn track(self) {
        // SAFETY: a `HandleRef` refers to a live handle, whose fields are set.
        unsafe {
            if !IS_TRACKED_AT_ONCE && ffi::PyObject_GC_IsTracked(self.as_ptr()) == 0 {
                ffi::PyObject_GC_Track(self.as_ptr().cast());
            }
        }
    }

    /// True if somebody besides the caller holds the handle. Of use only where handles are tracked late.
    #[inline]
    pub(crate) fn is_shared(self) -> bool {
        // SAFETY: a `HandleRef` refers to a live handle.
        unsafe { ffi::Py_REFCNT(self.as_ptr()) > 1 }
    }

    #[inline]
    pub(crate) fn is_cancelled(self) -> bool {
        // SAFETY: a `HandleRef` refers to a live handle.
        unsafe { (*self.content()).state.is_cancelled() }
    }

    /// Runs `body`, which looks at callback and arguments or takes them out, while no other thread does so. No Python code
    /// runs meanwhile.
    #[inline]
    fn alone<R>(self, py: Python<'_>, body: impl FnOnce() -> R) -> R {
        with_critical_section(&self.borrowed(py), body)
    }

    /// Cancels the callback and drops what it holds, which may run Python code. The caller, who keeps the handle alive,
    /// takes the timer that it returns out of the queue of this loop.
    #[must_use]
    pub(crate) fn cancel(self, py: Python<'_>) -> Option<(Bound<'_, PyAny>, TimerKey)> {
        let this = self.content();
        // SAFETY: the GIL is held and the handle is alive; so is its loop, which the handle refers to until it ends.
        unsafe {
            if !(*this).state.cancel() {
                return None;
            }
            self.drop_call_unless_running(py);
            self.track();
            let timer = &(*self.timer_content()?).timer;
            let key = TimerKey::from_bits(timer.load(Relaxed))?;
            timer.store(0, Relaxed);
            Some(((*this).event_loop.bind(py).clone(), key))
        }
    }

    /// Where asyncio would take the lock of a handle of `call_soon_threadsafe`.
    pub(crate) fn wait_for_end_of_run(self, py: Python<'_>) -> PyResult<()> {
        let this = self.content();
        // SAFETY: the handle is alive until this returns, as the caller owns a reference. Whenever `is_running` is
        // called, the GIL is held.
        unsafe {
            if (*this).origin == Origin::Threadsafe && (*this).state.is_running() {
                let is_running = || (*this).state.is_running();
                return run_lock::wait_for_end(py, self.as_ptr() as usize, is_running);
            }
        }
        Ok(())
    }

    /// Runs the callback in its context. `Err` is only what must end the loop (`SystemExit`, `KeyboardInterrupt`);
    /// every other exception goes to the loop's exception handler, as asyncio's `Handle._run` does.
    #[inline]
    pub(crate) fn run(self, py: Python<'_>) -> PyResult<()> {
        let this = self.content();
        // SAFETY: the GIL is held, the handle is alive (the caller owns a reference for the whole call), and `running`
        // keeps `cancel` from dropping callback and arguments until the call is over.
        unsafe {
            if !(*this).state.begin_run() {
                return Ok(());
            }
            if !IS_TRACKED_AT_ONCE && self.is_shared() {
                self.track();
            }
            if (*this).origin == Origin::Threadsafe {
                run_lock::begin(self.as_ptr() as usize);
            }
            let context = (*this).context.as_ptr_or_null();
            reveal(context);
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
            if result.is_null() {
                let outcome = report(py, self);
                Self::end_run(this);
                return outcome;
            }
            ffi::Py_DECREF(result);
            Self::end_run(this);
            // Not one variable for both: a `PyResult` has 64 bytes, which would be copied each time.
            Ok(())
        }
    }

    /// The last part of `run`.
    ///
    /// # Safety
    /// The GIL is held, `this` is alive, and `run` has begun with it.
    #[inline]
    unsafe fn end_run(this: *mut Handle) {
        // SAFETY: the GIL is held, and `this` is alive, which is the function's contract.
        unsafe {
            (*this).state.end_run();
            if (*this).origin == Origin::Threadsafe {
                run_lock::end();
            }
        }
    }

    /// The callback that `run` has called, even if it was cancelled meanwhile. To be asked before `finish_run`.
    pub(crate) fn callback(self, py: Python<'_>) -> Option<Bound<'_, PyAny>> {
        // SAFETY: the GIL is held (`py`), and a `HandleRef` refers to a live handle. No Python code runs here.
        self.alone(py, || unsafe { (*self.content()).callback.bound(py) })
    }

    /// Drops callback and arguments if they were cancelled during `run`.
    #[inline]
    pub(crate) fn finish_run(self, py: Python<'_>) {
        if self.is_cancelled() {
            self.drop_call_unless_running(py);
        }
    }

    /// Drops callback and arguments of a cancelled handle, unless a run uses them. May run Python code.
    #[inline]
    fn drop_call_unless_running(self, py: Python<'_>) {
        let this = self.content();
        // SAFETY: the GIL is held (`py`), and the handle is alive (the caller owns a reference). A cancelled handle that
        // doesn't run won't, so nobody but this critical section uses what is taken.
        let taken = self.alone(py, || unsafe {
            (!(*this).state.is_running()).then(|| (*this).take_call())
        });
        drop(taken);
    }
}

/// PyO3's visitor, where a `visitproc` is asked for.
struct Forward<'a, 'py> {
    visit: &'a PyVisit<'py>,
    result: Result<(), PyTraverseError>,
}

/// A `visitproc` whose argument is a [`Forward`].
unsafe extern "C" fn forward_visit(object: *mut ffi::PyObject, argument: *mut c_void) -> c_int {
    // SAFETY: `HandleRef::traverse` passes a `Forward`; whoever traverses passes a live object.
    let (forward, object) = unsafe {
        (
            &mut *argument.cast::<Forward<'_, '_>>(),
            NonNull::new_unchecked(object),
        )
    };
    forward.result = forward.visit.call(support::borrow_pointer(&object));
    c_int::from(forward.result.is_err())
}

/// Calls the callback with its arguments; the result is owned, null with an exception set.
///
/// # Safety
/// The GIL is held, `this` is alive and not cancelled, and `running` is above zero.
#[inline]
unsafe fn call(this: *mut Handle) -> *mut ffi::PyObject {
    // SAFETY: the GIL is held, and `this` is alive, which is the function's contract. As `running` is above zero,
    // callback and arguments stay; `spilled` says that the first argument is the tuple of all. The copy on the stack
    // leaves the slot before the first argument free for the callee, which is what PY_VECTORCALL_ARGUMENTS_OFFSET
    // allows it to use.
    unsafe {
        let callback = (*this).callback.as_ptr_or_null();
        if (*this).spilled {
            let arguments = (&(*this).arguments)[0].as_ptr_or_null();
            return ffi::PyObject_Call(callback, arguments, ptr::null_mut());
        }
        let [first, second, third] = &(*this).arguments;
        let stack = [
            ptr::null_mut(),
            first.as_ptr_or_null(),
            second.as_ptr_or_null(),
            third.as_ptr_or_null(),
        ];
        ffi::PyObject_Vectorcall(
            callback,
            stack.as_ptr().add(1),
            (*this).argument_count as usize | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET,
            ptr::null_mut(),
        )
    }
}

/// Runs the callback by the `run` method of a context that is no `contextvars.Context`, as asyncio does. The result is
/// owned, or null with an exception set.
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
