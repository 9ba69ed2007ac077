//! The end of a daemon thread that runs a loop when the interpreter exits.
//!
//! Up to Python 3.13, a thread that asks for the GIL after that is ended with pthread_exit(3), which unwinds its stack
//! frame by frame. Rust's frames cannot be unwound in this way, so the process would abort while it exits. From Python
//! 3.14 on, such a thread sleeps forever instead (gh-87135). Here it does so on every version.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr;

// Of the C library, which has them for `pthread_cleanup_push(3)`; the libc crate declares only the macro's other half.
unsafe extern "C" {
    fn _pthread_cleanup_push(
        entry: *mut Entry,
        routine: extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
    fn _pthread_cleanup_pop(entry: *mut Entry, execute: c_int);
}

/// glibc's `struct _pthread_cleanup_buffer`; musl's `struct __ptcb` is smaller.
#[repr(C)]
struct Entry([*mut c_void; 4]);

/// While this exists, its thread sleeps for ever instead of being ended.
pub(crate) struct SleepsAtExit {
    /// The thread's list of clean-up routines has a pointer to it.
    entry: *mut Entry,
    /// It belongs to one thread.
    _not_send: PhantomData<*mut ()>,
}

impl SleepsAtExit {
    pub(crate) fn new() -> Self {
        // glibc calls a routine when its entry's frame has been unwound. An entry outside of the stack counts as
        // unwound before anything is: no frame of the thread is touched.
        let entry = Box::into_raw(Box::new(Entry([ptr::null_mut(); 4])));
        // SAFETY: the entry is as large as either C library's, and stays where it is until `drop` takes it off the
        // list.
        unsafe { _pthread_cleanup_push(entry, sleep_for_ever, ptr::null_mut()) };
        Self {
            entry,
            _not_send: PhantomData,
        }
    }
}

impl Drop for SleepsAtExit {
    fn drop(&mut self) {
        // SAFETY: pushed by `new` in this thread. What was pushed later is gone: these values live in nested scopes, as
        // the C library's macros require of everybody.
        unsafe {
            _pthread_cleanup_pop(self.entry, 0);
            drop(Box::from_raw(self.entry));
        }
    }
}

extern "C" fn sleep_for_ever(_: *mut c_void) {
    loop {
        // SAFETY: a system call without arguments. It returns whenever a signal's handler has run.
        unsafe { libc::pause() };
    }
}
