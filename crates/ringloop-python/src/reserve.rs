//! Memory for the loop's bookkeeping when the system has none left.
//!
//! Where Python raises `MemoryError`, Rust ends the process: a queue that must grow, or a table, cannot report an error from
//! everywhere. So small allocations that the system refuses come from a reserve, which is part of the module's own memory. Its
//! pages are untouched until then. Python's objects don't come from it, so the program gets its `MemoryError`, and has a chance to
//! free something. What depends on the user's sizes asks for its memory with `try_reserve` instead.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

const SIZE: usize = 4 << 20;
/// A queue doubles into this when 60,000 callbacks wait.
const LARGEST: usize = SIZE / 2;

#[repr(C, align(4096))]
struct Arena(UnsafeCell<[u8; SIZE]>);

// SAFETY: the bytes are only handed out by `Reserve`, each to one owner at a time.
unsafe impl Sync for Arena {}

/// An arena that begins anew when all that came from it has been freed. It has no lock, which a thread could hold while another
/// forks.
struct Reserve {
    arena: Arena,
    /// The bytes that are used up, and above them the number of allocations that live.
    state: AtomicU64,
}

const ONE_ALLOCATION: u64 = 1 << 32;

impl Reserve {
    #[allow(clippy::large_stack_arrays)] // It is made when the crate is compiled.
    const fn new() -> Self {
        Self {
            arena: Arena(UnsafeCell::new([0; SIZE])),
            state: AtomicU64::new(0),
        }
    }

    fn start(&self) -> *mut u8 {
        self.arena.0.get().cast()
    }

    #[inline]
    fn contains(&self, pointer: *mut u8) -> bool {
        pointer.addr().wrapping_sub(self.start().addr()) < SIZE
    }

    /// A piece of the arena; null if it is too large, or too little is left.
    #[cold]
    fn allocate(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LARGEST || layout.align() > align_of::<Arena>() {
            return ptr::null_mut();
        }
        let mut offset = 0;
        let taken = self
            .state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| {
                let used = (state % ONE_ALLOCATION) as usize;
                offset = used.next_multiple_of(layout.align());
                let end = offset + layout.size();
                (end <= SIZE).then(|| state - used as u64 + end as u64 + ONE_ALLOCATION)
            });
        if taken.is_err() {
            return ptr::null_mut();
        }
        // SAFETY: the piece is within the arena.
        unsafe { self.start().add(offset) }
    }

    /// Gives a piece back.
    #[cold]
    fn free(&self) {
        let freed = self
            .state
            .fetch_update(Ordering::Release, Ordering::Relaxed, |state| {
                let left = state - ONE_ALLOCATION;
                Some(if left < ONE_ALLOCATION { 0 } else { left })
            });
        debug_assert!(freed.is_ok());
    }
}

static RESERVE: Reserve = Reserve::new();

/// The system's allocator, with the reserve behind it.
struct WithReserve;

#[global_allocator]
static ALLOCATOR: WithReserve = WithReserve;

// SAFETY: memory comes from the system's allocator, or from the reserve, which owns what lies within its arena. Each piece is given
// back to where it came from.
unsafe impl GlobalAlloc for WithReserve {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the size of the layout is not zero, which is the contract of `alloc` and all that the system's asks
        // for.
        let pointer = unsafe { System.alloc(layout) };
        if pointer.is_null() {
            return RESERVE.allocate(layout);
        }
        pointer
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if RESERVE.contains(pointer) {
            return RESERVE.free();
        }
        // SAFETY: the piece is the system's, as it is not in the reserve, and has this layout, which is the contract of
        // `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the size of the layout is not zero, which is the contract of `alloc_zeroed` and all that the system's
        // asks for.
        let mut pointer = unsafe { System.alloc_zeroed(layout) };
        if pointer.is_null() {
            pointer = RESERVE.allocate(layout);
            if !pointer.is_null() {
                // SAFETY: the piece has this size. Others have used it before.
                unsafe { pointer.write_bytes(0, layout.size()) };
            }
        }
        pointer
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !RESERVE.contains(pointer) {
            // SAFETY: the piece is the system's, as it is not in the reserve. It has this layout, and `size` is valid
            // for it, which is the contract of `realloc`.
            let moved = unsafe { System.realloc(pointer, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller promises that the size is valid for this alignment, and that the old piece has its layout. The two
        // pieces are different ones.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                ptr::copy_nonoverlapping(pointer, moved, layout.size().min(size));
                self.dealloc(pointer, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn pieces_are_apart_and_aligned() {
        static RESERVE: Reserve = Reserve::new();
        let reserve = &RESERVE;
        let pieces: Vec<_> = [(1, 1), (8, 8), (100, 64), (3, 1), (4096, 4096)]
            .into_iter()
            .map(|(size, align)| (reserve.allocate(layout(size, align)).addr(), size, align))
            .collect();
        for pair in pieces.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0);
        }
        for (start, _, align) in pieces {
            assert!(reserve.contains(ptr::without_provenance_mut(start)));
            assert_eq!(start % align, 0);
        }
        let end = reserve.start().addr() + SIZE;
        assert!(!reserve.contains(ptr::without_provenance_mut(end)));
        assert!(!reserve.contains(ptr::null_mut()));
    }

    #[test]
    fn it_ends_and_begins_anew_when_everything_is_free() {
        static RESERVE: Reserve = Reserve::new();
        let reserve = &RESERVE;
        assert!(reserve.allocate(layout(LARGEST + 1, 1)).is_null());
        let first = reserve.allocate(layout(LARGEST, 8));
        for _ in 1..SIZE / LARGEST {
            assert!(!reserve.allocate(layout(LARGEST, 8)).is_null());
        }
        assert!(reserve.allocate(layout(1, 1)).is_null());
        for _ in 1..SIZE / LARGEST {
            reserve.free();
            assert!(reserve.allocate(layout(1, 1)).is_null());
        }
        reserve.free();
        assert_eq!(reserve.allocate(layout(1, 1)), first);
    }

    #[test]
    fn threads_get_different_pieces() {
        static RESERVE: Reserve = Reserve::new();
        let reserve = &RESERVE;
        let mut starts: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| [(); 100].map(|()| reserve.allocate(layout(24, 8)).addr())))
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[0] + 24 <= pair[1]));
    }
}
