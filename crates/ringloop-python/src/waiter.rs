//! The future that a native read of a stream waits for. It does only what a task, and asyncio's own streams, ask of
//! one.
//!
//! It stands where asyncio has the future of `_wait_for_data`: in `StreamReader._waiter`, and behind the task. It follows
//! the protocol of futures (`_asyncio_future_blocking`), by which asyncio recognizes every future that isn't its own. Its
//! callbacks run as a future's do: one `call_soon` each, in the context that they came with. What it saves is the future
//! object, the call that makes one, and the lookups of `set_result` and of `call_soon`.
//!
//! A reader keeps its waiter. It serves the next wait, if nobody else refers to it any longer. While nothing waits,
//! `StreamReader._waiter` is None all the same (`is_listed`).
//!
//! A waiter can also carry the bytes for which a read waits, so that they need not go through the reader's buffer. That
//! is asyncio's own attribute, where everybody may look. So these bytes go there (`stream_reader::settle`) before anybody
//! but the read that waits sees it.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::mem::{self, offset_of};

use pyo3::Borrowed;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::sync::critical_section::{with_critical_section, with_critical_section2};
use pyo3::types::{PyBytes, PyList, PyString, PyTuple, PyType};

use crate::cell;
use crate::coroutine;
use crate::event_loop::Loop;
use crate::fields::Fields;
use crate::handle::{Call, Origin};
use crate::names::{self, intern};
use crate::native_type::{
    self, Class, Native, Optional, Owned, References, Table, attribute, content, method,
    references, slot,
};
use crate::objects::{self, New};
use crate::originals::Checked;
use crate::scheduling::schedule_soon;
use crate::support::{self, guard_in};

/// The data that is enough for a read to go on with, and all that it will take. Small, because each idle connection has
/// one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Whatever there is, up to a number of bytes.
    UpTo(u32),
    Exactly(u32),
    /// One line, up to the limit.
    Line,
    /// Something that only the read itself can tell.
    Other,
}

impl Wanted {
    /// Of a read of up to `count` bytes. No receive takes as many as the greatest number that fits.
    pub(crate) fn up_to(count: usize) -> Self {
        Self::UpTo(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Of a read of just `count` bytes.
    pub(crate) fn exactly(count: usize) -> Self {
        u32::try_from(count).map_or(Self::Other, Self::Exactly)
    }

    /// Whether the read returns just these bytes, where they are all that there is.
    #[inline]
    pub(crate) fn is(self, bytes: &[u8], limit: usize) -> bool {
        match self {
            Self::UpTo(count) => bytes.len() <= count as usize,
            Self::Exactly(count) => bytes.len() == count as usize,
            Self::Line => {
                // SAFETY: memchr reads within the slice.
                let found = unsafe {
                    libc::memchr(bytes.as_ptr().cast(), b'\n'.into(), bytes.len()).cast::<u8>()
                };
                !found.is_null()
                    && found as usize - bytes.as_ptr() as usize + 1 == bytes.len()
                    && bytes.len() - 1 <= limit
            }
            Self::Other => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum State {
    /// The state in zeroed memory.
    Pending = 0,
    Done,
    /// With an exception: `outcome` is a future of asyncio's that has it, and reports it if nobody asks.
    Failed,
    /// `outcome` is the message, or null.
    Cancelled,
}

/// How a wake is to be told to a task: by a future of asyncio's that is done. A task looks at the result of such a one
/// by itself, but calls `result()` of every other.
///
/// Without the GIL, threads are spread over several of them: each wake writes to such a future's reference count, and each
/// task that wakes takes its lock.
static DONE: PyOnceLock<[Py<PyAny>; DONE_COPIES]> = PyOnceLock::new();
const DONE_COPIES: usize = if cfg!(Py_GIL_DISABLED) { 16 } else { 1 };

/// Tells which future of asyncio's is done, with the result None.
pub(crate) fn set_done(py: Python<'_>, future: &Bound<'_, PyAny>) -> PyResult<()> {
    let event_loop = future.getattr(intern!(py, "_loop"))?;
    let mut copies = vec![future.clone().unbind()];
    while copies.len() < DONE_COPIES {
        let copy = event_loop.call_method0(intern!(py, "create_future"))?;
        copy.call_method1(intern!(py, "set_result"), (py.None(),))?;
        copies.push(copy.unbind());
    }
    if let Ok(copies) = copies.try_into() {
        DONE.get_or_init(py, || copies);
    }
    Ok(())
}

/// Whether a callback is the wakeup of one of asyncio's native tasks.
#[inline]
fn is_wakeup(callback: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the GIL is held, and the object is alive; a function has a definition, which has a name.
    unsafe {
        if ffi::Py_TYPE(callback.as_ptr()) != &raw mut ffi::PyCFunction_Type {
            return false;
        }
        let definition = (*callback.as_ptr().cast::<ffi::PyCFunctionObject>()).m_ml;
        CStr::from_ptr((*definition).ml_name) == c"task_wakeup"
    }
}

struct Waiter {
    /// `add_done_callback`: whoever asks for that method gets the waiter itself, which is cheaper than a bound method.
    vectorcall: ffi::vectorcallfunc,
    /// The first callback and its context, if there is one.
    callback: Option<Owned>,
    context: Option<Owned>,
    /// A list of further callbacks with their contexts, if there are any.
    others: Option<Owned>,
    outcome: Option<Owned>,
    /// The bytes that were received for the read that waits; None if there are none, or if they went to the buffer.
    bytes: Option<Owned>,
    /// Stays when the collector clears the waiter, as whoever still calls it needs one.
    event_loop: Owned<Loop>,
    wanted: Wanted,
    /// The reader's limit, or the greatest number.
    limit: u32,
    state: State,
    blocking: bool,
    is_listed: bool,
}

references! {
    Waiter {
        keeps { event_loop }
        takes { callback, context, others, outcome, bytes }
    }
}

/// The methods of a loop that a future calls.
const METHODS: [usize; 2] = [names::index("create_future"), names::index("call_soon")];

/// Whether those of the class of the last loop that was asked about are ours.
static CHECKED: Checked = Checked::new();

/// Whether the methods of a loop's class that a future calls are ours.
#[inline]
fn has_own_methods(event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
    let class = event_loop.get_type();
    CHECKED.find(&class, || compare_methods(&class))
}

fn compare_methods(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let py = class.py();
    let own = py.get_type::<Loop>();
    let mut same = class.is_subclass(&own)?;
    for name in names::all(py, METHODS) {
        same = same && class.getattr(name)?.is(&own.getattr(name)?);
    }
    Ok(same)
}

/// The reader's waiter again, for a read that is about to wait; the object that was given where that is not possible.
#[inline]
pub(crate) fn reuse(
    previous: Bound<'_, PyAny>,
    wanted: Wanted,
    limit: usize,
) -> Result<Bound<'_, PyAny>, Bound<'_, PyAny>> {
    // SAFETY: the GIL is held, and the object is alive. If two refer to the waiter, these are the reader and we. (Without
    // the GIL, a thread may get one more reference from the reader's dictionary at this very moment. It sees a waiter that
    // waits again.)
    if !is_one(&previous) || unsafe { ffi::Py_REFCNT(previous.as_ptr()) } != 2 {
        return Err(previous);
    }
    // SAFETY: the GIL is held, and the fields are those of a waiter. No Python code runs while they are used.
    let old = with(&previous, |this| unsafe {
        if (*this).event_loop.get().is_debug() {
            return None;
        }
        let old = (*this).take();
        begin(this, wanted, limit);
        Some(old)
    });
    let Some(old) = old else {
        return Err(previous);
    };
    // It may be the user's, and read when it goes: that finds a read that waits.
    drop(old);
    Ok(previous)
}

/// Whether a future, and what a future calls, need not be asked of a loop by name: outside of debug mode, if the user has
/// replaced neither `create_future` nor `call_soon`.
pub(crate) fn is_plain(event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = event_loop.py();
    if !has_own_methods(event_loop)? {
        return Ok(false);
    }
    // SAFETY: its class is derived from `Loop`.
    if unsafe { event_loop.cast_unchecked::<Loop>() }
        .get()
        .is_debug()
    {
        return Ok(false);
    }
    Ok(!Fields::of(event_loop).has_any(&names::all(py, METHODS))?)
}

/// A new waiter for a read that is about to wait. None where only the loop's `create_future` will do, as `is_plain` says.
pub(crate) fn new<'py>(
    event_loop: &Bound<'py, PyAny>,
    wanted: Wanted,
    limit: usize,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if !is_plain(event_loop)? {
        return Ok(None);
    }
    let py = event_loop.py();
    // SAFETY: its class is derived from `Loop`, as `is_plain` has found.
    let event_loop = unsafe { event_loop.cast_unchecked::<Loop>() };
    let waiter = native_type::new(py, || Waiter {
        vectorcall: add_done_callback,
        callback: None,
        context: None,
        others: None,
        outcome: None,
        bytes: None,
        event_loop: event_loop.clone().into(),
        wanted,
        limit: stored_limit(limit),
        state: State::Pending,
        blocking: true,
        is_listed: true,
    })?;
    Ok(Some(waiter))
}

/// A reader's limit, as a waiter has it.
#[inline]
fn stored_limit(limit: usize) -> u32 {
    u32::try_from(limit).unwrap_or(u32::MAX)
}

/// Another wait begins.
///
/// # Safety
/// The GIL is held, and the fields are those of a waiter, in its critical section.
#[inline]
unsafe fn begin(this: *mut Waiter, wanted: Wanted, limit: usize) {
    // SAFETY: the fields are those of a waiter, which is the function's contract.
    unsafe {
        (*this).state = State::Pending;
        (*this).wanted = wanted;
        (*this).limit = stored_limit(limit);
        (*this).blocking = true;
        (*this).is_listed = true;
    }
}

/// Whether an object is a waiter.
#[inline]
pub(crate) fn is_one(object: &Bound<'_, PyAny>) -> bool {
    native_type::is::<Waiter>(object)
}

/// The waiter's fields. The caller has asked `is_one`, and uses no reference into them while Python code may run.
#[inline]
fn fields(waiter: &Bound<'_, PyAny>) -> *mut Waiter {
    debug_assert!(is_one(waiter));
    content(waiter.as_ptr())
}

/// The object whose critical section a waiter is used in: its loop. So all of one loop's streams are in the same, and what
/// native code does with a reader, its waiter and the call that waits is one step to other threads.
#[inline]
fn section(waiter: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: called with the GIL for a live waiter, whose loop never changes.
    unsafe { (*content::<Waiter>(waiter)).event_loop.as_ptr() }
}

/// Runs `body` with the waiter's fields, in its critical section. The caller has asked `is_one`.
#[inline]
fn with<R>(waiter: &Bound<'_, PyAny>, body: impl FnOnce(*mut Waiter) -> R) -> R {
    let this = fields(waiter);
    // SAFETY: the GIL is held, and the loop lives as long as the waiter, and never changes.
    let event_loop = unsafe { Borrowed::from_ptr(waiter.py(), section(waiter.as_ptr())) };
    with_critical_section(&event_loop, || body(this))
}

/// Runs `body` in one critical section of the waiter's loop and of another object. The caller has asked `is_one`, and
/// loses the critical section that it is in: what it has seen there may have changed afterwards.
pub(crate) fn in_section_with<R>(
    waiter: &Bound<'_, PyAny>,
    other: &Bound<'_, PyAny>,
    body: impl FnOnce() -> R,
) -> R {
    // SAFETY: the GIL is held, and the loop lives as long as the waiter, and never changes.
    let event_loop = unsafe { Borrowed::from_ptr(waiter.py(), section(waiter.as_ptr())) };
    with_critical_section2(&event_loop, other, body)
}

/// Whether what a reader has for a waiter is one to everybody, rather than None.
#[inline]
pub(crate) fn is_listed(waiter: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the GIL is held, and the fields are those of a waiter.
    !waiter.is_none() && (!is_one(waiter) || with(waiter, |this| unsafe { (*this).is_listed }))
}

/// `reader._waiter = None`; false if that is to be done in the reader.
#[inline]
pub(crate) fn unlist(waiter: &Bound<'_, PyAny>) -> bool {
    if !is_one(waiter) {
        return waiter.is_none();
    }
    // SAFETY: `waiter` is a waiter, as `is_one` has just said, and its `Bound` proves that the GIL is held.
    with(waiter, |this| unsafe { (*this).is_listed = false });
    true
}

/// Whether the waiter carries bytes.
#[inline]
pub(crate) fn has_bytes(waiter: &Bound<'_, PyAny>) -> bool {
    // SAFETY: `waiter` is a waiter, as `is_one` has just said, and its `Bound` proves that the GIL is held.
    is_one(waiter) && with(waiter, |this| unsafe { (*this).bytes.is_some() })
}

/// The bytes that the waiter carries, if it does. It carries them no longer.
#[inline]
pub(crate) fn take_bytes<'py>(waiter: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    if !is_one(waiter) {
        return None;
    }
    // SAFETY: `waiter` is a waiter, as `is_one` has just said, and its `Bound` proves that the GIL is held.
    let bytes = with(waiter, |this| unsafe { (*this).bytes.take() });
    bytes.map(|it| it.into_bound(waiter.py()))
}

/// The waiter carries these bytes again, which were taken and could not be put anywhere else.
pub(crate) fn give_back(waiter: &Bound<'_, PyAny>, bytes: Bound<'_, PyAny>) {
    // SAFETY: `waiter` is a waiter, as it has carried them. It carries none now, so that nothing is dropped here.
    with(waiter, |this| unsafe { (*this).bytes = Some(bytes.into()) });
}

/// The read that waits is to look at the buffer.
#[inline]
pub(crate) fn want_other(waiter: &Bound<'_, PyAny>) {
    if is_one(waiter) {
        // SAFETY: `waiter` is a waiter, as `is_one` has just said, and its `Bound` proves that the GIL is held.
        with(waiter, |this| unsafe { (*this).wanted = Wanted::Other });
    }
}

/// How many bytes the read that waits takes at most, whatever they are; 0 if that depends on them.
pub(crate) fn room(waiter: &Bound<'_, PyAny>) -> usize {
    // SAFETY: the GIL is held, and the object is a waiter: the caller has asked `is_one`. No Python code runs here.
    with(waiter, |this| unsafe {
        match (*this).wanted {
            Wanted::UpTo(count) if (*this).state == State::Pending && (*this).is_listed => {
                (count as usize).min(2 * (*this).limit as usize)
            }
            _ => 0,
        }
    })
}

/// Wakes the read with the bytes, if they are just what it waits for; otherwise it goes on waiting. `object` is what they
/// are in, if they need not be copied.
#[inline]
pub(crate) fn wake_with(
    waiter: &Bound<'_, PyAny>,
    bytes: &[u8],
    object: Option<&Bound<'_, PyBytes>>,
) -> PyResult<bool> {
    // SAFETY: the GIL is held, and the object is a waiter: all callers have asked `is_one`. A raw pointer is no
    // reference, so that making the object may run other code.
    with(waiter, |this| unsafe {
        let limit = (*this).limit as usize;
        if (*this).state != State::Pending
            || !(*this).is_listed
            || bytes.len() > limit.saturating_mul(2)
            || !(*this).wanted.is(bytes, limit)
        {
            return Ok(false);
        }
        let object = match object {
            Some(object) => object.clone(),
            None => objects::bytes(waiter.py(), bytes)?,
        };
        (*this).is_listed = false;
        drop((*this).bytes.replace(object.into_any().into()));
        finish(waiter, State::Done, None)?;
        Ok(true)
    })
}

/// `if not waiter.cancelled(): waiter.set_result(None)`.
pub(crate) fn wake(waiter: &Bound<'_, PyAny>) -> PyResult<()> {
    // SAFETY: the GIL is held, and the object is a waiter.
    with(waiter, |this| match unsafe { (*this).state } {
        State::Cancelled => Ok(()),
        State::Pending => finish(waiter, State::Done, None),
        _ => Err(invalid_state(waiter.py(), "invalid state")),
    })
}

/// The outcome of a waiter for the coroutine that awaits it: its exception, if it has one.
pub(crate) fn outcome(waiter: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = waiter.py();
    // SAFETY: the GIL is held, and the object is a waiter: callers have asked `is_one`.
    with(waiter, |this| match unsafe { (*this).state } {
        State::Done => Ok(()),
        State::Pending => Err(coroutine::not_awaited(py)),
        State::Failed | State::Cancelled => get_result(waiter).map(drop),
    })
}

#[cold]
fn invalid_state(py: Python<'_>, text: &str) -> PyErr {
    static ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let made = support::class(py, &ERROR, "asyncio.exceptions", "InvalidStateError")
        .and_then(|class| class.call1((New(text),)));
    match made {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// Ends the wait, and queues the callbacks.
fn finish(
    waiter: &Bound<'_, PyAny>,
    state: State,
    outcome: Option<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let this = fields(waiter);
    let py = waiter.py();
    // SAFETY: the GIL is held, and the object is a waiter. What is taken out of it is dropped once the callbacks are queued.
    let (first, others, _previous) = unsafe {
        (*this).state = state;
        let previous = mem::replace(&mut (*this).outcome, outcome.map(Owned::from));
        let first = (*this).callback.take().zip((*this).context.take());
        (first, (*this).others.take(), previous)
    };
    if let Some((callback, context)) = first {
        call_soon(waiter, callback.bind(py), context.bind(py))?;
    }
    if let Some(others) = others {
        for other in others.bind(py).try_iter()? {
            let (callback, context): (Bound<'_, PyAny>, Bound<'_, PyAny>) = other?.extract()?;
            call_soon(waiter, &callback, &context)?;
        }
    }
    Ok(())
}

/// `loop.call_soon(callback, waiter, context=context)`.
fn call_soon(
    waiter: &Bound<'_, PyAny>,
    callback: &Bound<'_, PyAny>,
    context: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = waiter.py();
    // SAFETY: the GIL is held, and the object is a waiter, whose loop stays until it ends. All objects are alive.
    unsafe {
        let this = fields(waiter);
        let event_loop = (*this).event_loop.bind(py).as_any().clone();
        if !has_own_methods(&event_loop)? {
            let options = objects::dict(py)?;
            options.set_item(intern!(py, "context"), context)?;
            return event_loop
                .call_method(intern!(py, "call_soon"), (callback, waiter), Some(&options))
                .map(drop);
        }
        let argument = match DONE.get(py) {
            Some(done) if (*this).state == State::Done && is_wakeup(callback) => {
                cell::of_this_thread(done).as_ptr()
            }
            _ => waiter.as_ptr(),
        };
        let call = Call {
            callback: callback.as_ptr(),
            arguments: &[argument],
            context: context.as_ptr(),
        };
        schedule_soon(py, event_loop.as_ptr(), &call, Origin::Usual).map(drop)
    }
}

/// `result()`.
fn get_result<'py>(waiter: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = waiter.py();
    // SAFETY: the GIL is held, and the object is a waiter.
    unsafe {
        let this = fields(waiter);
        let outcome = (*this).outcome.bound(py);
        match ((*this).state, outcome) {
            (State::Pending, _) => Err(invalid_state(py, "Result is not set.")),
            (State::Cancelled, message) => Err(cancelled_error(py, message)),
            (State::Failed, Some(future)) => future.call_method0(intern!(py, "result")),
            (_, value) => Ok(value.unwrap_or_else(|| py.None().into_bound(py))),
        }
    }
}

#[cold]
fn cancelled_error(py: Python<'_>, message: Option<Bound<'_, PyAny>>) -> PyErr {
    static ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let made =
        support::class(py, &ERROR, "asyncio.exceptions", "CancelledError").and_then(|class| {
            match message {
                Some(message) if !message.is_none() => class.call1((message,)),
                _ => class.call0(),
            }
        });
    match made {
        Ok(error) => support::raised(&error),
        Err(error) => error,
    }
}

/// The object that a method was called on.
///
/// # Safety
/// Called by the interpreter, with the GIL, for a live object of our type.
unsafe fn this(py: Python<'_>, object: *mut ffi::PyObject) -> Bound<'_, PyAny> {
    // SAFETY: the GIL is held, and `object` is alive while the interpreter's call lasts, which is the function's
    // contract.
    unsafe { Bound::from_borrowed_ptr(py, object) }
}

fn truth(py: Python<'_>, value: bool) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the GIL is held.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBool_FromLong(c_int::from(value).into())) }
}

macro_rules! methods {
    ($($function:ident |$py:ident, $waiter:ident, $argument:ident| $body:block)*) => { $(
        unsafe extern "C" fn $function(
            object: *mut ffi::PyObject,
            argument: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject {
            guard_in(section(object), |$py| {
                // SAFETY: called by the interpreter, with the GIL, by METH_NOARGS or METH_O.
                let $waiter = unsafe { this($py, object) };
                // SAFETY: `argument` is null by METH_NOARGS, and an object that lives while the call lasts by METH_O.
                let $argument = unsafe { Bound::from_borrowed_ptr_or_opt($py, argument) };
                let _ = &$argument;
                $body
            })
        }
    )* };
}

methods! {
    done |py, waiter, _argument| {
        // SAFETY: the GIL is held, and the object is a waiter.
        truth(py, unsafe { (*fields(&waiter)).state } != State::Pending)
    }
    cancelled |py, waiter, _argument| {
        // SAFETY: the GIL is held (`py`), and `waiter` is a waiter: the interpreter calls this as a method of the type.
        truth(py, unsafe { (*fields(&waiter)).state } == State::Cancelled)
    }
    result |_py, waiter, _argument| { get_result(&waiter) }
    exception |py, waiter, _argument| {
        // SAFETY: the GIL is held (`py`), and `waiter` is a waiter: the interpreter calls this as a method of the type.
        match unsafe { (*fields(&waiter)).state } {
            State::Pending => Err(invalid_state(py, "Exception is not set.")),
            State::Done => Ok(py.None().into_bound(py)),
            State::Cancelled => get_result(&waiter),
            State::Failed => {
                // SAFETY: the GIL is held (`py`), and `waiter` is a waiter: the interpreter calls this as a method of
                // the type.
                match unsafe { (*fields(&waiter)).outcome.bound(py) } {
                    Some(future) => future.call_method0(intern!(py, "exception")),
                    // The collector has cleared it.
                    None => Ok(py.None().into_bound(py)),
                }
            }
        }
    }
    set_result |py, waiter, argument| {
        // SAFETY: the GIL is held (`py`), and `waiter` is a waiter: the interpreter calls this as a method of the type.
        if unsafe { (*fields(&waiter)).state } != State::Pending {
            return Err(invalid_state(py, "invalid state"));
        }
        finish(&waiter, State::Done, argument.filter(|value| !value.is_none()))?;
        Ok(py.None().into_bound(py))
    }
    set_exception |py, waiter, argument| {
        // SAFETY: the GIL is held (`py`), and `waiter` is a waiter: the interpreter calls this as a method of the type.
        // Its loop is set until it ends.
        let (state, event_loop) = unsafe {
            let this = fields(&waiter);
            ((*this).state, (*this).event_loop.bind(py).clone())
        };
        if state != State::Pending {
            return Err(invalid_state(py, "invalid state"));
        }
        let future = event_loop.call_method0(intern!(py, "create_future"))?;
        future.call_method1(intern!(py, "set_exception"), (argument,))?;
        // Python code has run, which may have ended the wait. None runs from here to `finish`.
        // SAFETY: the GIL is held (`py`), and `waiter` is a waiter.
        if unsafe { (*fields(&waiter)).state } != State::Pending {
            future.call_method0(intern!(py, "exception"))?;
            return Err(invalid_state(py, "invalid state"));
        }
        finish(&waiter, State::Failed, Some(future))?;
        Ok(py.None().into_bound(py))
    }
    remove_done_callback |py, waiter, argument| {
        let mut equal = Vec::new();
        if let Some(function) = argument {
            for (callback, context) in callbacks(&waiter)? {
                if callback.eq(&function)? {
                    equal.push((callback, context));
                }
            }
        }
        // The comparisons may have run Python code, which may have changed everything.
        Ok(New(remove(&waiter, &equal)?).into_pyobject(py)?.into_any())
    }
}

type Callbacks<'py> = Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>;

/// The callbacks, with their contexts.
fn callbacks<'py>(waiter: &Bound<'py, PyAny>) -> PyResult<Callbacks<'py>> {
    let py = waiter.py();
    let this = fields(waiter);
    // SAFETY: the GIL is held, and the object is a waiter.
    let (callback, context, others) = unsafe {
        (
            (*this).callback.bound(py),
            (*this).context.bound(py),
            (*this).others.bound(py),
        )
    };
    let mut found: Vec<_> = callback.zip(context).into_iter().collect();
    if let Some(others) = others {
        for other in others.try_iter()? {
            found.push(other?.extract()?);
        }
    }
    Ok(found)
}

/// Removes these callbacks, as far as they still wait; returns how many. The caller keeps what it has asked to remove
/// alive, so that no Python code runs here.
fn remove<'py>(waiter: &Bound<'py, PyAny>, wanted: &Callbacks<'py>) -> PyResult<usize> {
    let py = waiter.py();
    let this = fields(waiter);
    let is_wanted = |callback: &Bound<'_, PyAny>, context: &Bound<'_, PyAny>| {
        wanted
            .iter()
            .any(|each| each.0.is(callback) && each.1.is(context))
    };
    let mut count = 0;
    // SAFETY: the GIL is held, and the object is a waiter. What is taken out is kept alive by the caller.
    unsafe {
        let first = (*this).callback.bound(py).zip((*this).context.bound(py));
        if first.is_some_and(|(callback, context)| is_wanted(&callback, &context)) {
            drop(((*this).callback.take(), (*this).context.take()));
            count += 1;
        }
    }
    // SAFETY: the GIL is held, and the object is a waiter.
    let Some(others) = (unsafe { (*this).others.bound(py) }) else {
        return Ok(count);
    };
    let others = others.cast_into::<PyList>()?;
    for index in (0..others.len()).rev() {
        let other = others.get_item(index)?;
        let (callback, context): (Bound<'_, PyAny>, Bound<'_, PyAny>) = other.extract()?;
        if is_wanted(&callback, &context) {
            others.del_item(index)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Notes a callback of a waiter that is pending, or queues it, if the wait has ended meanwhile.
fn add_callback(
    waiter: &Bound<'_, PyAny>,
    callback: &Bound<'_, PyAny>,
    context: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = waiter.py();
    let this = fields(waiter);
    // SAFETY: the GIL is held, and the object is a waiter. What is set was None before, so that nothing is dropped here.
    unsafe {
        if (*this).callback.is_none() && (*this).others.is_none() {
            (*this).callback = Some(callback.clone().into());
            (*this).context = Some(context.clone().into());
            return Ok(());
        }
    }
    // Before Python 3.12, making these may start a collection, which may run Python code.
    let pair = objects::tuple(py, [callback.clone(), context.clone()])?;
    let added = objects::list(py, [pair.clone()])?.into_any();
    // SAFETY: the GIL is held, and the object is a waiter.
    let (state, others) = unsafe { ((*this).state, (*this).others.bound(py)) };
    match others {
        _ if state != State::Pending => call_soon(waiter, callback, context),
        Some(others) => others.cast_into::<PyList>()?.append(pair),
        None => {
            // SAFETY: the GIL is held, and the object is a waiter, which has no others, so that nothing is dropped here.
            unsafe { (*this).others = Some(added.into()) };
            Ok(())
        }
    }
}

/// An argument that may be missing.
type Argument<'py> = Option<Bound<'py, PyAny>>;

/// The one argument of a call by METH_FASTCALL | METH_KEYWORDS, and the one that may follow by name.
///
/// # Safety
/// Called by the interpreter, with the GIL; the arguments are as it lays them out.
unsafe fn arguments<'py>(
    py: Python<'py>,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
    name: &Bound<'py, PyString>,
) -> PyResult<(Argument<'py>, Argument<'py>)> {
    // SAFETY: the GIL is held, and `arguments` has `positional` live objects and one for each of `keywords`, a tuple or
    // null, as the interpreter lays them out; that is the function's contract. Nothing else is read.
    unsafe {
        let first = (positional > 0).then(|| Bound::from_borrowed_ptr(py, *arguments));
        let mut second = None;
        if !keywords.is_null() {
            let keywords = Bound::from_borrowed_ptr(py, keywords).cast_into_unchecked::<PyTuple>();
            for (index, given) in keywords.iter().enumerate() {
                if !given.is(name) && !given.eq(name)? {
                    let text = format!("unexpected keyword argument {given}");
                    return Err(objects::error::<PyTypeError>(py, &text));
                }
                let value = *arguments.add(positional as usize + index);
                second = Some(Bound::from_borrowed_ptr(py, value));
            }
        }
        if positional > 1 {
            return Err(objects::error::<PyTypeError>(
                py,
                "expected at most one positional argument",
            ));
        }
        Ok((first, second))
    }
}

unsafe extern "C" fn add_done_callback(
    object: *mut ffi::PyObject,
    given: *const *mut ffi::PyObject,
    positional: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_in(section(object), |py| {
        // SAFETY: called by the interpreter, with the GIL.
        let (waiter, (function, context)) = unsafe {
            let positional = ffi::PyVectorcall_NARGS(positional);
            let given = arguments(py, given, positional, names, intern!(py, "context"))?;
            (this(py, object), given)
        };
        let Some(function) = function else {
            let text = "add_done_callback() takes exactly 1 positional argument (0 given)";
            return Err(objects::error::<PyTypeError>(py, text));
        };
        let context = match context.filter(|it| !it.is_none()) {
            Some(context) => context,
            None => support::copy_context(py)?.into_bound(py),
        };
        // SAFETY: the GIL is held (`py`), and `waiter` is a waiter: the interpreter calls this for an object of the
        // type.
        if unsafe { (*fields(&waiter)).state } == State::Pending {
            add_callback(&waiter, &function, &context)?;
        } else {
            call_soon(&waiter, &function, &context)?;
        }
        Ok(py.None().into_bound(py))
    })
}

unsafe extern "C" fn cancel(
    object: *mut ffi::PyObject,
    given: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_in(section(object), |py| {
        // SAFETY: called by the interpreter, with the GIL.
        let (waiter, (message, by_name)) = unsafe {
            let given = arguments(py, given, positional, names, intern!(py, "msg"))?;
            (this(py, object), given)
        };
        // SAFETY: the GIL is held (`py`), and `waiter` is a waiter: the interpreter calls this as a method of the type.
        let is_pending = unsafe { (*fields(&waiter)).state } == State::Pending;
        if is_pending {
            finish(&waiter, State::Cancelled, message.or(by_name))?;
        }
        truth(py, is_pending)
    })
}

unsafe extern "C" fn get_blocking(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    guard_in(section(object), |py| {
        // SAFETY: called with the GIL for a live object of our type.
        truth(py, unsafe { (*content::<Waiter>(object)).blocking })
    })
}

unsafe extern "C" fn set_blocking(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    _: *mut c_void,
) -> c_int {
    // SAFETY: called with the GIL for a live object of our type; null asks for a deletion.
    unsafe {
        if value.is_null() {
            let text = c"cannot delete attribute".as_ptr();
            ffi::PyErr_SetString(ffi::PyExc_AttributeError, text);
            return -1;
        }
        match ffi::PyObject_IsTrue(value) {
            -1 => -1,
            truth => {
                let waiter = this(Python::assume_attached(), object);
                with(&waiter, |this| (*this).blocking = truth == 1);
                0
            }
        }
    }
}

unsafe extern "C" fn get_loop_attribute(
    object: *mut ffi::PyObject,
    _: *mut c_void,
) -> *mut ffi::PyObject {
    // SAFETY: called with the GIL for a live object of our type.
    unsafe { ffi::Py_NewRef((*content::<Waiter>(object)).event_loop.as_ptr()) }
}

unsafe extern "C" fn get_itself(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called with the GIL for a live object of our type.
    unsafe { ffi::Py_NewRef(object) }
}

unsafe extern "C" fn repr(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard_in(section(object), |py| {
        // SAFETY: called with the GIL for a live object of our type.
        let state = match unsafe { (*content::<Waiter>(object)).state } {
            State::Pending => "pending",
            State::Cancelled => "cancelled",
            State::Done | State::Failed => "finished",
        };
        Ok(objects::string(py, &format!("<Future {state}>"))?.into_any())
    })
}

// SAFETY: the functions above are for waiters, and `vectorcall` is one of them.
unsafe impl Native for Waiter {
    const NAME: &'static CStr = c"ringloop._core.StreamWaiter";
    const DOC: &'static CStr =
        c"The object that a read of a stream waits for, in the place of a future.";
    const VECTORCALL: Option<usize> = Some(offset_of!(Waiter, vectorcall));

    #[inline]
    fn class() -> &'static Class {
        static CLASS: Class = Class::new();
        &CLASS
    }

    fn table() -> Table {
        let mut cancel_method = method(c"cancel", done, c"Cancel the wait.");
        cancel_method.ml_meth = ffi::PyMethodDefPointer {
            PyCFunctionFastWithKeywords: cancel,
        };
        cancel_method.ml_flags = ffi::METH_FASTCALL | ffi::METH_KEYWORDS;
        let with_argument = |name, function, doc| {
            let mut definition = method(name, function, doc);
            definition.ml_flags = ffi::METH_O;
            definition
        };
        Table {
            slots: vec![slot(ffi::Py_tp_repr, repr as *mut c_void)],
            methods: vec![
                method(c"done", done, c"Whether the wait is over."),
                method(c"cancelled", cancelled, c"Whether it was cancelled."),
                method(c"result", result, c"The result, None, or the exception."),
                method(c"exception", exception, c"The exception, if there is one."),
                with_argument(c"set_result", set_result, c"End the wait."),
                with_argument(
                    c"set_exception",
                    set_exception,
                    c"End the wait with an exception.",
                ),
                with_argument(
                    c"remove_done_callback",
                    remove_done_callback,
                    c"Remove a callback; returns how often it was there.",
                ),
                cancel_method,
            ],
            attributes: vec![
                ffi::PyGetSetDef {
                    set: Some(set_blocking),
                    ..attribute(c"_asyncio_future_blocking", get_blocking)
                },
                attribute(c"_loop", get_loop_attribute),
                attribute(c"add_done_callback", get_itself),
            ],
        }
    }
}

/// Makes the type.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    native_type::add_to::<Waiter>(module)
}
