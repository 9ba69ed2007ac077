//! The tests of a module of ringloop-python, whose tests need Python. It stands alone, so it is tested here, as this program's
//! allocator.

#[path = "../../ringloop-python/src/reserve.rs"]
mod reserve;
