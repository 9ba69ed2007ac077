//! The methods of a loop that run once per callback, or take any arguments: plain C functions, called by vectorcall.

#![allow(unsafe_code)]

use std::ptr;

use pyo3::Borrowed;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyTuple, PyType};

use crate::event_loop::Loop;
use crate::handle::{Call, Deadline, Origin};
use crate::names::intern;
use crate::native_type::arguments_of;
use crate::objects::{self, New};
use crate::scheduling::{schedule_at, schedule_soon, schedule_threadsafe, seconds_now};
use crate::support::{self, guard, guard_scheduling};
use crate::thread_exit::SleepsAtExit;
use crate::watching;

/// Up to here, a float holds every integer exactly.
const EXACT_INTEGERS: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;

/// The arguments of one of the scheduling methods, still borrowed.
struct Parsed<'a> {
    /// `delay`, `when` or `fd`, where the method takes one before the callback.
    first: *mut ffi::PyObject,
    call: Call<'a>,
}

/// Splits a vectorcall into what comes first (where `first_name` names it), callback, further arguments and context.
///
/// # Safety
/// The GIL is held; `arguments` holds `positional` objects and one more per name in `names`, all alive.
#[inline]
unsafe fn parse<'a>(
    method: &str,
    first_name: Option<&str>,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
    py: Python<'_>,
) -> PyResult<Parsed<'a>> {
    // SAFETY: there are `positional` live objects, which is the function's contract, or none.
    let given = unsafe { arguments_of(arguments, positional, ptr::null_mut()) };
    let mut before = ptr::null_mut();
    let mut callback = ptr::null_mut();
    let mut context = ptr::null_mut();
    let mut rest = given;
    if first_name.is_some()
        && let [first, others @ ..] = rest
    {
        before = *first;
        rest = others;
    }
    if let [first, others @ ..] = rest {
        callback = *first;
        rest = others;
    }
    if !names.is_null() {
        // SAFETY: `names` is a tuple of strings, and a keyword's value stands behind the positional arguments. They are
        // borrowed: all loops share them, and without the GIL their threads would share the counts of references.
        let names = unsafe { Borrowed::from_ptr(py, names).cast_unchecked::<PyTuple>() };
        for (index, name) in names.iter_borrowed().enumerate() {
            // SAFETY: `index` is below the length of `names`, and one value per name follows the positional arguments,
            // which is the function's contract.
            let value = unsafe { *arguments.add(positional as usize + index) };
            // SAFETY: a keyword is a string.
            let name = unsafe { name.cast_unchecked::<PyString>() };
            let name = name.to_str()?;
            let slot = match name {
                "context" => &mut context,
                "callback" => &mut callback,
                _ if Some(name) == first_name => &mut before,
                _ => {
                    return Err(objects::error::<PyTypeError>(
                        py,
                        &format!("{method}() got an unexpected keyword argument '{name}'"),
                    ));
                }
            };
            if !slot.is_null() {
                return Err(objects::error::<PyTypeError>(
                    py,
                    &format!("{method}() got multiple values for argument '{name}'"),
                ));
            }
            *slot = value;
        }
    }
    if callback.is_null() || (first_name.is_some() && before.is_null()) {
        let missing: Vec<&str> = first_name
            .filter(|_| before.is_null())
            .into_iter()
            .chain(callback.is_null().then_some("callback"))
            .collect();
        let message = match missing[..] {
            [one] => format!("{method}() missing 1 required positional argument: '{one}'"),
            _ => format!(
                "{method}() missing 2 required positional arguments: '{}' and '{}'",
                missing[0], missing[1]
            ),
        };
        return Err(objects::error::<PyTypeError>(py, &message));
    }
    Ok(Parsed {
        first: before,
        call: Call {
            callback,
            arguments: rest,
            context,
        },
    })
}

/// A number of seconds as a float.
///
/// # Safety
/// The GIL is held and `value` is alive.
#[inline]
unsafe fn seconds(py: Python<'_>, value: *mut ffi::PyObject) -> PyResult<f64> {
    // SAFETY: the GIL is held, and `value` is alive, which is the function's contract.
    unsafe {
        let number = ffi::PyFloat_AsDouble(value);
        // The exact value that says that there may be an error.
        #[allow(clippy::float_cmp)]
        if number == -1.0 && !ffi::PyErr_Occurred().is_null() {
            return Err(PyErr::fetch(py));
        }
        Ok(number)
    }
}

/// The time `delay` from now. What is no plain number adds itself to the clock, or refuses to, as it would in Python.
///
/// # Safety
/// The GIL is held and `delay` is alive.
#[inline]
unsafe fn time_after(py: Python<'_>, delay: *mut ffi::PyObject) -> PyResult<f64> {
    // SAFETY: the GIL is held, and `delay` is alive, which is the function's contract.
    unsafe {
        if ffi::PyFloat_CheckExact(delay) != 0 || ffi::PyLong_CheckExact(delay) != 0 {
            return Ok(seconds_now() + seconds(py, delay)?);
        }
        let delay = Bound::from_borrowed_ptr(py, delay);
        objects::float(py, seconds_now())?.add(delay)?.extract()
    }
}

type FastCall = unsafe extern "C" fn(
    *mut ffi::PyObject,
    *const *mut ffi::PyObject,
    ffi::Py_ssize_t,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// Calls `then` with the arguments. By reference: moved out of the result of `parse`, they would be copied in wider pieces
/// than they were written in, and the processor would wait for the writes.
///
/// # Safety
/// As `parse`.
#[inline]
unsafe fn parse_then<'py>(
    method: &str,
    first_name: Option<&str>,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
    py: Python<'py>,
    then: impl FnOnce(&Parsed<'_>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the function's contract is that of `parse`.
    match unsafe { parse(method, first_name, arguments, positional, names, py) } {
        Ok(ref parsed) => then(parsed),
        Err(error) => Err(error),
    }
}

unsafe extern "C" fn call_soon(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_scheduling(|py| {
        // SAFETY: the interpreter calls this, with the GIL, through a method descriptor of `Loop`: `this` is a `Loop`,
        // and the arguments live until it returns.
        unsafe {
            parse_then(
                "call_soon",
                None,
                arguments,
                positional,
                names,
                py,
                |parsed| schedule_soon(py, this, &parsed.call, Origin::Usual),
            )
        }
    })
}

unsafe extern "C" fn call_soon_threadsafe(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_scheduling(|py| {
        // SAFETY: the interpreter calls this, with the GIL, through a method descriptor of `Loop`: `this` is a `Loop`,
        // and the arguments live until it returns.
        unsafe {
            parse_then(
                "call_soon_threadsafe",
                None,
                arguments,
                positional,
                names,
                py,
                |parsed| schedule_threadsafe(py, this, &parsed.call),
            )
        }
    })
}

unsafe extern "C" fn call_later(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_scheduling(|py| {
        // SAFETY: the interpreter calls this, with the GIL, through a method descriptor of `Loop`: `this` is a `Loop`,
        // and the arguments live until it returns. `parsed.first` is not null, as `parse` was given a name for it.
        unsafe {
            parse_then(
                "call_later",
                Some("delay"),
                arguments,
                positional,
                names,
                py,
                |parsed| {
                    if parsed.first == ffi::Py_None() {
                        return Err(objects::error::<PyTypeError>(py, "delay must not be None"));
                    }
                    let when = Deadline {
                        seconds: time_after(py, parsed.first)?,
                        integer: false,
                    };
                    schedule_at(py, this, when, &parsed.call)
                },
            )
        }
    })
}

unsafe extern "C" fn call_at(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard_scheduling(|py| {
        // SAFETY: the interpreter calls this, with the GIL, through a method descriptor of `Loop`: `this` is a `Loop`,
        // and the arguments live until it returns. `parsed.first` is not null, as `parse` was given a name for it.
        unsafe {
            parse_then(
                "call_at",
                Some("when"),
                arguments,
                positional,
                names,
                py,
                |parsed| {
                    if parsed.first == ffi::Py_None() {
                        return Err(objects::error::<PyTypeError>(py, "when cannot be None"));
                    }
                    // Before the time is looked at: a closed loop says that it is closed, whatever it is given.
                    Bound::from_borrowed_ptr(py, this)
                        .cast_unchecked::<Loop>()
                        .get()
                        .check_closed(py)?;
                    let seconds = seconds(py, parsed.first)?;
                    let when = Deadline {
                        seconds,
                        // Larger ones may have lost digits.
                        integer: ffi::PyLong_CheckExact(parsed.first) != 0
                            && seconds.abs() <= EXACT_INTEGERS,
                    };
                    schedule_at(py, this, when, &parsed.call)
                },
            )
        }
    })
}

/// Runs a coroutine as a task of the loop, `asyncio.loop.create_task`.
unsafe extern "C" fn create_task(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|py| {
        // SAFETY: called by the interpreter through a method descriptor of `Loop`, with `positional` live arguments and
        // one for each of `names`, which is null or a tuple.
        let (this, arguments, names) = unsafe {
            (
                Bound::from_borrowed_ptr(py, this),
                arguments_of(arguments, positional, names),
                Bound::from_borrowed_ptr_or_opt(py, names)
                    .map(|names| names.cast_into_unchecked::<PyTuple>()),
            )
        };
        // SAFETY: the method descriptor of `Loop` has checked the type of `this`.
        let owner = unsafe { this.cast_unchecked::<Loop>() }.get();
        if let ([coroutine], 1) = (arguments, positional)
            && !owner.is_debug()
            && !owner.is_closed()
            && !owner.has_task_factory(py)
        {
            static TASK: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            let class = support::class(py, &TASK, "asyncio.tasks", "Task")?;
            let names = Some(loop_keyword(py)?);
            // SAFETY: the GIL is held; the caller keeps the coroutine and the loop for the length of the call.
            return unsafe { objects::vectorcall(class, &[*coroutine, this.as_ptr()], names) };
        }
        // Names, contexts, factories: asyncio's own, called directly so that tracebacks show no frame of ours.
        static BASE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let function = support::class(py, &BASE, "asyncio.base_events", "BaseEventLoop")?
            .getattr(intern!(py, "create_task"))?;
        let _sleeps_at_exit = SleepsAtExit::new();
        let mut all = vec![this.as_ptr()];
        all.extend_from_slice(arguments);
        // SAFETY: the GIL is held; the caller keeps the loop and the arguments for the length of the call.
        unsafe { objects::vectorcall(&function, &all, names.as_ref()) }
    })
}

/// The names of the arguments of a call with `loop=` alone.
pub(super) fn loop_keyword(py: Python<'_>) -> PyResult<&Bound<'_, PyTuple>> {
    static NAMES: PyOnceLock<Py<PyTuple>> = PyOnceLock::new();
    NAMES
        .get_or_try_init(py, || {
            let name = intern!(py, "loop").clone().into_any();
            objects::tuple(py, [name]).map(Bound::unbind)
        })
        .map(|names| names.bind(py))
}

unsafe extern "C" fn add_reader(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls this, with the GIL, through a method descriptor of `Loop`: `this` is a `Loop`, and
    // the arguments live until it returns.
    guard(|py| unsafe { watch(py, "_add_reader", this, arguments, positional, names, false) })
}

unsafe extern "C" fn add_writer(
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls this, with the GIL, through a method descriptor of `Loop`: `this` is a `Loop`, and
    // the arguments live until it returns.
    guard(|py| unsafe { watch(py, "_add_writer", this, arguments, positional, names, true) })
}

/// Watches a descriptor with a callback.
///
/// # Safety
/// As `parse`; `this` is an instance of `Loop`.
unsafe fn watch<'py>(
    py: Python<'py>,
    method: &str,
    this: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
    for_writing: bool,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the GIL is held, `this` is a `Loop`, and the arguments are alive, which is the function's contract.
    // `parsed.first` is not null, as `parse` was given a name for it.
    unsafe {
        let parsed = parse(method, Some("fd"), arguments, positional, names, py)?;
        let this = Bound::from_borrowed_ptr(py, this);
        let file = Bound::from_borrowed_ptr(py, parsed.first);
        watching::add(this.cast_unchecked(), &file, &parsed.call, for_writing)
    }
}

/// Adds what runs once per callback, and what takes any arguments, to the class as plain C methods.
pub(super) fn add_to(class: &Bound<'_, PyType>) -> PyResult<()> {
    let py = class.py();
    let methods: [(&std::ffi::CStr, FastCall, &std::ffi::CStr); 7] = [
        (
            c"call_soon",
            call_soon,
            c"call_soon($self, callback, /, *args, context=None)\n--\n\nRun callback(*args) in the next turn; returns its Handle.",
        ),
        (
            c"call_soon_threadsafe",
            call_soon_threadsafe,
            c"call_soon_threadsafe($self, callback, /, *args, context=None)\n--\n\nLike call_soon, from any thread: wakes the loop.",
        ),
        (
            c"call_later",
            call_later,
            c"call_later($self, delay, callback, /, *args, context=None)\n--\n\nRun callback(*args) after delay seconds; returns its TimerHandle.",
        ),
        (
            c"call_at",
            call_at,
            c"call_at($self, when, callback, /, *args, context=None)\n--\n\nRun callback(*args) at loop.time() == when; returns its TimerHandle.",
        ),
        (
            c"create_task",
            create_task,
            c"create_task($self, coro, **kwargs)\n--\n\nRuns a coroutine as a task of this loop; see asyncio.loop.create_task.",
        ),
        (
            c"_add_reader",
            add_reader,
            c"_add_reader($self, fd, callback, /, *args, context=None)\n--\n\n",
        ),
        (
            c"_add_writer",
            add_writer,
            c"_add_writer($self, fd, callback, /, *args, context=None)\n--\n\n",
        ),
    ];
    for (name, function, doc) in methods {
        // The descriptor keeps the pointer for the life of the process.
        let definition = Box::leak(Box::new(ffi::PyMethodDef {
            ml_name: name.as_ptr(),
            ml_meth: ffi::PyMethodDefPointer {
                PyCFunctionFastWithKeywords: function,
            },
            ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
            ml_doc: doc.as_ptr(),
        }));
        // SAFETY: the GIL is held and the definition lives for ever.
        let descriptor = unsafe {
            Bound::from_owned_ptr_or_err(
                py,
                ffi::PyDescr_NewMethod(class.as_type_ptr(), definition),
            )?
        };
        class.setattr(New(&*name.to_string_lossy()), descriptor)?;
    }
    Ok(())
}
