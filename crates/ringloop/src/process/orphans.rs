//! Children that nobody waits for any more. Somebody has to take their status when they end, or they stay as zombies.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ringloop_driver::affinity;

use crate::sys::children::{poll_readable, reap};
use crate::sys::{PerProcess, eventfd, transfer};

/// How long to wait before looking again at children that are ready, but not for their parent.
const TRACED_WAIT: Duration = Duration::from_millis(10);

/// Waits for them in a thread, which exists only as long as there are any. No runtime is needed, which may be gone, and
/// no handler for SIGCHLD, which others may have installed.
struct Orphans(Mutex<State>);

#[derive(Default)]
struct State {
    /// Their pidfds.
    waiting: Vec<OwnedFd>,
    /// An eventfd that tells the thread about new ones; `None` if there is no thread.
    bell: Option<OwnedFd>,
}

static ORPHANS: PerProcess<Orphans> = PerProcess::new();

fn orphans() -> &'static Orphans {
    ORPHANS.get(|| Orphans(Mutex::default()))
}

/// Takes over a child that may still run.
pub(super) fn adopt(pidfd: OwnedFd) {
    let orphans = orphans();
    let mut state = orphans.lock();
    state.waiting.push(pidfd);
    orphans.wait_for(state);
}

/// Takes the status of those that have ended, if no thread does, for want of memory or descriptors earlier.
pub(super) fn look_after() {
    let orphans = orphans();
    let mut state = orphans.lock();
    if state.bell.is_none() && !state.waiting.is_empty() {
        state.reap();
        orphans.wait_for(state);
    }
}

impl Orphans {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread wait for all of them. Starts it if there is none; if that fails, the next child tries again.
    fn wait_for(&'static self, mut state: MutexGuard<'_, State>) {
        if let Some(bell) = &state.bell {
            // It cannot be full.
            drop(transfer::write(bell.as_fd(), &1_u64.to_ne_bytes()));
            return;
        }
        if state.waiting.is_empty() {
            return;
        }
        let Ok(bell) = eventfd() else { return };
        let Ok(remote) = bell.try_clone() else { return };
        let started = thread::Builder::new()
            .name("ringloop-reaper".to_owned())
            .spawn(move || {
                affinity::unpin_thread();
                self.work(&bell);
            });
        if started.is_ok() {
            state.bell = Some(remote);
        }
    }

    fn work(&self, bell: &OwnedFd) {
        let mut is_reported = false;
        loop {
            let mut state = self.lock();
            let before = state.waiting.len();
            state.reap();
            if state.waiting.is_empty() {
                state.bell = None;
                return;
            }
            let is_any_gone = state.waiting.len() < before;
            // Only this thread closes them, so they stay open without the lock. Duplicates would take descriptors.
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            if is_reported && !is_any_gone {
                // A child that is traced may have ended for its tracer, and not yet for its parent.
                thread::sleep(TRACED_WAIT);
            }
            let all = waiting.iter().chain([bell]).map(AsFd::as_fd);
            // Whatever it returns, all of them are looked at.
            drop(poll_readable(all));
            is_reported = transfer::read(bell.as_fd(), &mut [MaybeUninit::uninit(); 8]).is_err();
            self.lock().waiting.extend(waiting);
        }
    }
}

impl State {
    fn reap(&mut self) {
        // An error means that somebody else has taken the status.
        self.waiting
            .retain(|pidfd| matches!(reap(pidfd.as_fd()), Ok(None)));
    }
}
