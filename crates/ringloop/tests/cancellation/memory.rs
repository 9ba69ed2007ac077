//! An allocator that watches the buffers of these tests: allocations of [`MARKED`] bytes are counted, have guards on
//! both sides, and are kept for a while after they are freed, so that late writes, including the kernel's, are
//! detected.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// A size that nothing else has.
pub(crate) const MARKED: usize = 24_593;

const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xca;
const FREED_BYTE: u8 = 0xdd;
/// How many freed buffers are kept.
const KEPT: usize = 64;

struct Watching;

#[global_allocator]
static ALLOCATOR: Watching = Watching;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);
static FREED: [AtomicPtr<u8>; KEPT] = [const { AtomicPtr::new(ptr::null_mut()) }; KEPT];
static GUARD_IS_HURT: AtomicBool = AtomicBool::new(false);
static FREED_IS_HURT: AtomicBool = AtomicBool::new(false);

const WHOLE: Layout = match Layout::from_size_align(GUARD + MARKED + GUARD, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

static GUARD_BYTES: [u8; GUARD] = [GUARD_BYTE; GUARD];
static FREED_BYTES: [u8; WHOLE.size()] = [FREED_BYTE; WHOLE.size()];

/// Whether memory contains only this byte.
///
/// # Safety
/// There must be as many that can be read.
unsafe fn is(start: *const u8, expected: &[u8]) -> bool {
    // SAFETY: as many bytes can be read, which is the function's contract. By C's function, since the kernel may have
    // written there unbeknown to the compiler.
    unsafe { libc::memcmp(start.cast(), expected.as_ptr().cast(), expected.len()) == 0 }
}

// SAFETY: memory comes from the system's allocator, whose layouts are kept to. Marked allocations are taken with a layout of
// their own and given back with that one, and lie inside of it.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() != MARKED || layout.align() > 16 {
            // SAFETY: the layout has a size, which is the function's contract.
            return unsafe { System.alloc(layout) };
        }
        // SAFETY: the layout has a size; all writes lie inside of it.
        unsafe {
            let start = System.alloc(WHOLE);
            if start.is_null() {
                return start;
            }
            start.write_bytes(GUARD_BYTE, WHOLE.size());
            LIVE.fetch_add(1, Ordering::Relaxed);
            start.add(GUARD)
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if layout.size() != MARKED || layout.align() > 16 {
            // SAFETY: the block is the system's and has this layout, which is the function's contract.
            return unsafe { System.dealloc(pointer, layout) };
        }
        // SAFETY: this was allocated above, so that the guards are there; nobody uses it any more.
        unsafe {
            let is_whole =
                is(pointer.sub(GUARD), &GUARD_BYTES) && is(pointer.add(MARKED), &GUARD_BYTES);
            if !is_whole {
                GUARD_IS_HURT.store(true, Ordering::Relaxed);
            }
            let start = pointer.sub(GUARD);
            start.write_bytes(FREED_BYTE, WHOLE.size());
            let place = NEXT.fetch_add(1, Ordering::Relaxed) % KEPT;
            let oldest = FREED[place].swap(start, Ordering::AcqRel);
            if !oldest.is_null() {
                if !is(oldest, &FREED_BYTES) {
                    FREED_IS_HURT.store(true, Ordering::Relaxed);
                }
                System.dealloc(oldest, WHOLE);
            }
        }
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A buffer that is watched.
pub(crate) fn buffer() -> Vec<u8> {
    Vec::with_capacity(MARKED)
}

/// How many watched buffers are alive.
pub(crate) fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// Checks that nobody has written next to a buffer, or to one that was freed.
pub(crate) fn check() {
    assert!(
        !GUARD_IS_HURT.load(Ordering::Relaxed),
        "something was written beside a buffer"
    );
    for place in &FREED {
        // Taken out meanwhile, so that nobody gives it back to the system.
        let start = place.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: it was put there by `dealloc` above, and is nobody else's now.
        if !start.is_null() && unsafe { !is(start, &FREED_BYTES) } {
            FREED_IS_HURT.store(true, Ordering::Relaxed);
        }
        let back =
            place.compare_exchange(ptr::null_mut(), start, Ordering::AcqRel, Ordering::Relaxed);
        if back.is_err() && !start.is_null() {
            // SAFETY: `dealloc` put it there, with the layout `WHOLE`. It is nobody else's now, as its place has been
            // taken.
            unsafe { System.dealloc(start, WHOLE) };
        }
    }
    assert!(
        !FREED_IS_HURT.load(Ordering::Relaxed),
        "something was written to a buffer after it was freed"
    );
}

#[test]
fn the_allocator_sees_what_it_is_there_for() {
    let _alone = crate::cut::alone();
    let mut bytes = buffer();
    assert_eq!(live(), 1);
    bytes.resize(MARKED, 7);
    let start = bytes.as_mut_ptr();
    drop(bytes);
    assert_eq!(live(), 0);
    check();
    // SAFETY: the memory is kept, and only looked at by `check`.
    unsafe { start.add(5).write_volatile(1) };
    assert!(std::panic::catch_unwind(check).is_err());
    // SAFETY: the memory is kept, and only looked at by `check`.
    unsafe { start.add(5).write_volatile(FREED_BYTE) };
    FREED_IS_HURT.store(false, Ordering::Relaxed);
    check();
    let mut bytes = buffer();
    let behind = bytes.as_mut_ptr().wrapping_add(MARKED);
    // SAFETY: the guard is there.
    unsafe { behind.write_volatile(1) };
    drop(bytes);
    assert!(std::panic::catch_unwind(check).is_err());
    GUARD_IS_HURT.store(false, Ordering::Relaxed);
}
