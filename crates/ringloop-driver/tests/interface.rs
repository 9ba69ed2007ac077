//! Which threads may have what: traits that hold by accident, or that soundness depends on.

use ringloop_driver::{
    Buffer, Bytes, Driver, Event, FileStatus, Op, Registration, Registry, SharedFd, SubmitError,
    Token, Waker,
};

/// Whether a type has a trait.
macro_rules! has {
    ($type:ty: $($bound:tt)+) => {{
        #[allow(dead_code, reason = "if the type has the trait")]
        trait Absent {
            const HAS: bool = false;
        }
        impl<T: ?Sized> Absent for T {}
        struct Probe<T: ?Sized>(std::marker::PhantomData<T>);
        // Found before the trait's.
        #[allow(dead_code, reason = "if the type does not have the trait")]
        impl<T: ?Sized + $($bound)+> Probe<T> {
            const HAS: bool = true;
        }
        <Probe<$type>>::HAS
    }};
}

/// A peek through a shared reference writes to the ring.
#[test]
fn a_driver_may_move_but_is_not_shared() {
    assert!(has!(Driver: Send));
    assert!(!has!(Driver: Sync));
}

#[test]
fn what_threads_pass_on_is_send() {
    macro_rules! check {
        ($bound:ident: $($type:ty)*) => {$(
            assert!(has!($type: $bound), stringify!($type));
        )*};
    }
    check!(Send: Op SubmitError Buffer Bytes SharedFd Event Token FileStatus);
    check!(Send: Waker Registry Registration);
    check!(Sync: Waker Registry Registration SharedFd Event Token FileStatus);
}
