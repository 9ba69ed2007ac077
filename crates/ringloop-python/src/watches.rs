//! The tables of what is watched, and who is notified.
//!
//! Nothing here runs Python code. Displaced entries are returned to the caller as [`Displaced`], to be cancelled and
//! dropped when the tables are no longer borrowed.

#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit, ffi};
use ringloop_driver::{Driver, Event, Interest, Mode, Registration, Registry, Token};

use crate::queue::{Queue, Readiness, Ready, Reason, Served, Transport, TransportKind};
use crate::support::WeakPointer;

/// The reader's and the writer's handle of a descriptor.
pub(crate) type Handles = (Option<Py<PyAny>>, Option<Py<PyAny>>);

/// A transport's watch.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Watch {
    /// The driver's own.
    Held(Token),
    /// The registry's.
    Registered(Registration),
}

/// The callbacks of one descriptor.
#[derive(Default)]
struct Callbacks {
    /// The object that the descriptor was registered by, if not by its number.
    file: Option<Py<PyAny>>,
    reader: Option<Callback>,
    writer: Option<Callback>,
}

/// The callback that runs when a descriptor is ready for one direction.
struct Callback {
    handle: Py<PyAny>,
    /// The last turn that it was queued for.
    runs_in: u64,
}

/// A transport as the tables hold it. The reference is counted only while the transport is reading or writing: one that
/// is paused and that nobody else refers to may go, as under asyncio.
pub(crate) struct Listed {
    transport: WeakPointer,
    kind: TransportKind,
    strong: bool,
}

/// Who hears of a registration.
#[derive(Default)]
enum Owner {
    #[default]
    Nobody,
    Callbacks(Box<Callbacks>),
    Transport(Listed),
}

/// The state of one descriptor number.
#[derive(Default)]
struct Entry {
    /// The last registration of this number. The kernel has dropped it if the file was closed.
    registration: Option<Registration>,
    owner: Owner,
    /// The events that the kernel was last asked to report.
    told: Option<(Interest, Mode)>,
    /// It is a `Mode::OneShot` that has reported, and reports nothing more until it is changed.
    rests: bool,
}

/// The objects that have lost their places in the tables.
#[derive(Default)]
pub(crate) struct Displaced {
    handle: Option<Py<PyAny>>,
    owners: Vec<Owner>,
}

/// Where a callback's handle goes.
pub(crate) struct Place {
    pub(crate) fd: RawFd,
    pub(crate) for_writing: bool,
    /// The object that stands for the descriptor, if it is no number.
    pub(crate) file: Option<Py<PyAny>>,
    /// That object is closed. It was known, but its number may be another file's.
    pub(crate) is_closed: bool,
}

/// A look at the kernel.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    /// The turn in which it happens. They are counted from one.
    pub(crate) turn: u64,
    /// The turn that runs what it finds: this one, or the next.
    pub(crate) runs_in: u64,
}

/// The address of a transport that is known to have a descriptor.
pub(crate) struct Entered(NonZeroUsize);

/// The tables: by descriptor for what the registry watches, by token for what the driver watches itself.
#[derive(Default)]
pub(crate) struct Watches {
    /// None once the loop is closed.
    registry: Option<Registry>,
    entries: Vec<Entry>,
    /// By token index, with the token: an index is used again.
    held: Vec<Option<(Token, Listed)>>,
    /// The transport that has a descriptor, borrowed: it takes itself out before it goes.
    transports: Vec<Option<WeakPointer>>,
    /// Watches that ended while the reactor was away; dropped when it is back.
    orphans: Vec<Token>,
}

/// The error of a number that no file has, or another file than before.
fn bad_descriptor() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

/// Whether a registration can't be changed because its file is closed.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EBADF))
}

fn direction(for_writing: bool) -> Interest {
    if for_writing {
        Interest::WRITE
    } else {
        Interest::READ
    }
}

impl Watches {
    pub(crate) fn new(registry: Registry) -> Self {
        Self {
            registry: Some(registry),
            ..Self::default()
        }
    }

    /// The registry, and what is known of a number that was registered.
    fn registered(&mut self, fd: RawFd) -> Option<(&Registry, &mut Entry, Registration)> {
        let entry = self.entries.get_mut(usize::try_from(fd).ok()?)?;
        let registration = entry.registration?;
        Some((self.registry.as_ref()?, entry, registration))
    }

    /// Registers a number for a new owner. The table grows only to what the kernel has accepted.
    fn register(
        &mut self,
        fd: RawFd,
        owner: Owner,
        told: (Interest, Mode),
    ) -> Result<Registration, (io::Error, Owner)> {
        let added = match &self.registry {
            Some(registry) => registry.add(fd, told.0, told.1),
            None => Err(bad_descriptor()),
        };
        let registration = match added {
            Ok(registration) => registration,
            Err(error) => return Err((error, owner)),
        };
        let index = fd as usize;
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, Entry::default);
        }
        self.entries[index] = Entry {
            registration: Some(registration),
            owner,
            told: Some(told),
            rests: false,
        };
        Ok(registration)
    }

    // ---- callbacks

    /// Enters a handle for one direction of a descriptor, in the place of the one that was there. `EEXIST` if a
    /// transport has the file.
    pub(crate) fn enter_callback(
        &mut self,
        place: Place,
        handle: Py<PyAny>,
        mode: Mode,
        displaced: &mut Displaced,
    ) -> io::Result<()> {
        let own = direction(place.for_writing);
        if let Some((registry, entry, registration)) = self.registered(place.fd) {
            let wanted = entry.wanted(own, place.for_writing, mode);
            let is_told = entry.told == Some(wanted) && !entry.rests;
            let changed = registry.change(registration, wanted.0, wanted.1);
            match (&mut entry.owner, changed) {
                (Owner::Transport(_), Ok(())) => {
                    return Err(io::Error::from_raw_os_error(libc::EEXIST));
                }
                (owner, Ok(())) => {
                    displaced.handle = owner.put(place, handle);
                    entry.told = Some(wanted);
                    entry.rests = false;
                    return Ok(());
                }
                (owner @ Owner::Callbacks(_), Err(error))
                    if is_told
                        && (place.is_closed || error.raw_os_error() == Some(libc::EBADF)) =>
                {
                    // A closed descriptor, watched for the same as before: selectors doesn't ask the kernel then.
                    displaced.handle = owner.put(place, handle);
                    return Ok(());
                }
                (_, Err(error)) => {
                    // The file is closed. Callbacks for it must not be called for the file that has the number now.
                    displaced.owners.push(std::mem::take(entry).owner);
                    if place.is_closed || !is_gone(&error) {
                        return Err(error);
                    }
                }
            }
        }
        let fd = place.fd;
        let mut owner = Owner::Nobody;
        owner.put(place, handle);
        self.register(fd, owner, (own, mode))
            .map(drop)
            .map_err(|(error, owner)| {
                displaced.owners.push(owner);
                error
            })
    }

    /// Takes out the handle for one direction. Whether there was one.
    pub(crate) fn take_out(
        &mut self,
        fd: RawFd,
        for_writing: bool,
        displaced: &mut Displaced,
    ) -> io::Result<bool> {
        let Some((registry, entry, registration)) = self.registered(fd) else {
            return Ok(false);
        };
        let Owner::Callbacks(callbacks) = &mut entry.owner else {
            return Ok(false);
        };
        displaced.handle = callbacks.slot(for_writing).take().map(|it| it.handle);
        if displaced.handle.is_none() {
            return Ok(false);
        }
        if callbacks.slot(!for_writing).is_some() {
            let mode = entry.told.map_or(Mode::Level, |(_, mode)| mode);
            let wanted = (direction(!for_writing), mode);
            if let Err(error) = registry.change(registration, wanted.0, wanted.1) {
                // As with selectors: nothing is known of a number whose file is closed.
                displaced.owners.push(std::mem::take(entry).owner);
                return Err(error);
            }
            entry.told = Some(wanted);
            entry.rests = false;
            return Ok(true);
        }
        displaced.owners.push(std::mem::take(&mut entry.owner));
        if !entry.rests {
            // A resting registration is kept for whoever waits for the same file next. It goes when the file is closed.
            registry.remove(registration);
            entry.registration = None;
        }
        Ok(true)
    }

    fn callbacks(&self, fd: RawFd) -> Option<&Callbacks> {
        match &self.entries.get(usize::try_from(fd).ok()?)?.owner {
            Owner::Callbacks(callbacks) => Some(callbacks),
            Owner::Nobody | Owner::Transport(_) => None,
        }
    }

    /// Whether this handle still has its place.
    fn has_handle(&self, fd: RawFd, for_writing: bool, handle: &Bound<'_, PyAny>) -> bool {
        let callbacks = self.callbacks(fd);
        let known = callbacks.and_then(|callbacks| callbacks.get(for_writing));
        known.is_some_and(|known| known.handle.is(handle))
    }

    /// `take_out`, unless another handle took this one's place.
    pub(crate) fn take_out_if(
        &mut self,
        fd: RawFd,
        for_writing: bool,
        handle: &Bound<'_, PyAny>,
        displaced: &mut Displaced,
    ) -> io::Result<bool> {
        if self.has_handle(fd, for_writing, handle) {
            self.take_out(fd, for_writing, displaced)
        } else {
            Ok(false)
        }
    }

    /// Watches on for a handle whose `Mode::OneShot` has reported. Does nothing if another handle took its place.
    pub(crate) fn watch_again(
        &mut self,
        fd: RawFd,
        for_writing: bool,
        handle: &Bound<'_, PyAny>,
        displaced: &mut Displaced,
    ) -> io::Result<()> {
        if !self.has_handle(fd, for_writing, handle) {
            return Ok(());
        }
        let place = Place {
            fd,
            for_writing,
            file: None,
            is_closed: false,
        };
        self.enter_callback(place, handle.clone().unbind(), Mode::OneShot, displaced)
    }

    /// The handles of a descriptor.
    pub(crate) fn handles(&self, py: Python<'_>, fd: RawFd) -> Option<Handles> {
        let callbacks = self.callbacks(fd)?;
        let copy = |callback: &Option<Callback>| {
            let callback = callback.as_ref();
            callback.map(|it| it.handle.clone_ref(py))
        };
        Some((copy(&callbacks.reader), copy(&callbacks.writer)))
    }

    /// The number that this very object is registered under.
    pub(crate) fn number_of(&self, file: &Bound<'_, PyAny>) -> Option<RawFd> {
        let index = self.entries.iter().position(|entry| match &entry.owner {
            Owner::Callbacks(callbacks) => callbacks.file.as_ref().is_some_and(|it| it.is(file)),
            Owner::Nobody | Owner::Transport(_) => false,
        });
        index.map(|index| index as RawFd)
    }

    // ---- transports

    /// Registers a transport. `EEXIST` if another one has the file.
    pub(crate) fn register_transport(
        &mut self,
        fd: RawFd,
        listed: Listed,
        told: (Interest, Mode),
        displaced: &mut Displaced,
    ) -> io::Result<Watch> {
        let owner = Owner::Transport(listed);
        match self.make_way(fd, displaced) {
            Ok(()) => self.register(fd, owner, told),
            Err(error) => Err((error, owner)),
        }
        .map(Watch::Registered)
        .map_err(|(error, owner)| {
            displaced.owners.push(owner);
            error
        })
    }

    /// Takes away what is registered under a number that a transport is about to have: callbacks, as when asyncio's
    /// transport registers its own, and a transport if its file is closed. `EEXIST` if it isn't.
    pub(crate) fn make_way(&mut self, fd: RawFd, displaced: &mut Displaced) -> io::Result<()> {
        let Some((registry, entry, registration)) = self.registered(fd) else {
            return Ok(());
        };
        match (&entry.owner, entry.told) {
            (Owner::Nobody, _) => return Ok(()),
            (Owner::Transport(_), Some((interest, mode)))
                if registry.change(registration, interest, mode).is_ok() =>
            {
                return Err(io::Error::from_raw_os_error(libc::EEXIST));
            }
            _ => {}
        }
        registry.remove(registration);
        displaced.owners.push(std::mem::take(entry).owner);
        Ok(())
    }

    /// Enters a transport that the driver watches itself.
    pub(crate) fn enter_held(&mut self, token: Token, listed: Listed) -> Watch {
        let index = token.index() as usize;
        if self.held.len() <= index {
            self.held.resize_with(index + 1, || None);
        }
        self.held[index] = Some((token, listed));
        Watch::Held(token)
    }

    fn listed_mut(&mut self, watch: Watch) -> Option<&mut Listed> {
        match watch {
            Watch::Held(token) => match self.held.get_mut(token.index() as usize)? {
                Some((known, listed)) if *known == token => Some(listed),
                _ => None,
            },
            Watch::Registered(registration) => {
                let entry = self.entries.get_mut(registration.fd() as usize)?;
                match &mut entry.owner {
                    Owner::Transport(listed) if entry.registration == Some(registration) => {
                        Some(listed)
                    }
                    _ => None,
                }
            }
        }
    }

    /// Sets whether the table keeps the transport alive. A reference that it gives up goes to the caller.
    pub(crate) fn keep_alive(
        &mut self,
        py: Python<'_>,
        watch: Watch,
        keep: bool,
    ) -> Option<Py<PyAny>> {
        let listed = self
            .listed_mut(watch)
            .filter(|listed| listed.strong != keep)?;
        listed.strong = keep;
        // SAFETY: the transport is alive while the tables list it: it takes itself out before it goes. One reference is
        // taken, or handed to the caller.
        unsafe {
            if keep {
                ffi::Py_INCREF(listed.transport.as_ptr());
                None
            } else {
                Some(Bound::from_owned_ptr(py, listed.transport.as_ptr()).unbind())
            }
        }
    }

    /// Changes what a registered transport waits for.
    pub(crate) fn change_registered(
        &mut self,
        registration: Registration,
        told: (Interest, Mode),
    ) -> io::Result<()> {
        match self.registered(registration.fd()) {
            Some((registry, entry, known)) if known == registration => {
                registry.change(registration, told.0, told.1)?;
                entry.told = Some(told);
                Ok(())
            }
            // Somebody else has the number, so the file is closed.
            _ => Err(bad_descriptor()),
        }
    }

    /// Whether the kernel still has a transport's registration. False for a watch of the driver's: it is asked only
    /// about a socket that has another number now, and was closed behind the loop's back.
    pub(crate) fn is_alive(&mut self, watch: Watch) -> bool {
        let Watch::Registered(registration) = watch else {
            return false;
        };
        match self.registered(registration.fd()) {
            Some((registry, entry, known)) if known == registration => {
                let told = entry.told;
                told.is_some_and(|told| registry.change(known, told.0, told.1).is_ok())
            }
            _ => false,
        }
    }

    /// Takes a transport out, and its registration. A watch of the driver's is left to the caller.
    pub(crate) fn delist(&mut self, watch: Watch, displaced: &mut Displaced) {
        match watch {
            Watch::Held(token) => {
                let place = self.held.get_mut(token.index() as usize);
                let listed = place.and_then(|it| it.take_if(|(known, _)| *known == token));
                displaced
                    .owners
                    .extend(listed.map(|(_, listed)| Owner::Transport(listed)));
            }
            Watch::Registered(registration) => match self.registered(registration.fd()) {
                Some((registry, entry, known)) if known == registration => {
                    registry.remove(registration);
                    displaced.owners.push(std::mem::take(entry).owner);
                }
                // Somebody else has the number, and theirs is not to be touched.
                _ => {}
            },
        }
    }

    /// Puts off the end of a driver's watch until the reactor is back.
    pub(crate) fn put_off(&mut self, token: Token) {
        self.orphans.push(token);
    }

    /// Makes the kernel forget the watches that ended while the reactor was away.
    pub(crate) fn drop_orphans(&mut self, driver: &mut Driver) {
        for token in self.orphans.drain(..) {
            // The descriptor may be closed by now; there is nothing left to undo then.
            driver.unwatch(token);
        }
    }

    // ---- the descriptors of transports

    /// Enters the transport as the one that has the descriptor. None for that of a socket which was closed before.
    pub(crate) fn enter_transport(
        &mut self,
        fd: RawFd,
        transport: &Bound<'_, PyAny>,
    ) -> Option<Entered> {
        let index = usize::try_from(fd).ok()?;
        if self.transports.len() <= index {
            self.transports.resize(index + 1, None);
        }
        let entry = WeakPointer::new(transport);
        self.transports[index] = Some(entry);
        Some(Entered(entry.addr()))
    }

    /// Takes the transport out again, unless another one has the number by now.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "what was entered is left once"
    )]
    pub(crate) fn leave_transport(&mut self, fd: RawFd, entered: Entered) {
        if let Some(place) = self.transports.get_mut(fd as usize) {
            place.take_if(|known| known.addr() == entered.0);
        }
    }

    /// The transport that has this descriptor.
    pub(crate) fn transport<'py>(&self, py: Python<'py>, fd: RawFd) -> Option<Bound<'py, PyAny>> {
        let entry = self.transports.get(usize::try_from(fd).ok()?)?;
        // SAFETY: a transport takes itself out before it goes, and these are the tables.
        entry.and_then(|transport| unsafe { transport.upgrade(py) })
    }

    /// How many transports have a descriptor.
    pub(crate) fn transports(&self) -> usize {
        self.transports.iter().flatten().count()
    }

    // ---- events

    /// Queues what the event stands for. That of a registration which has lost its number to another is dropped.
    pub(crate) fn dispatch(
        &mut self,
        py: Python<'_>,
        event: &Event,
        look: Look,
        queue: &mut Queue,
    ) {
        let ready = event.readiness();
        let readiness = Readiness {
            readable: ready.is_readable(),
            // Not at the peer's end of stream: there may be no room, and asyncio would wait for some.
            writable: ready.is_writable(),
            read_on: ready.is_read_closed() || ready.is_error() || ready.is_priority(),
        };
        let Some(registration) = event.registration() else {
            if let Some(listed) = self.listed_mut(Watch::Held(event.token())) {
                queue.ready.extend(listed.ready(py, readiness));
            }
            return;
        };
        let Some(entry) = self.entries.get_mut(registration.fd() as usize) else {
            return;
        };
        if entry.registration != Some(registration) {
            return;
        }
        entry.rests = matches!(entry.told, Some((_, Mode::OneShot)));
        match &mut entry.owner {
            Owner::Transport(listed) => queue.ready.extend(listed.ready(py, readiness)),
            Owner::Callbacks(callbacks) => {
                // A callback that reads once per call must always find something. What is still ready is reported
                // again.
                let once_a_turn = matches!(entry.told, Some((_, Mode::Level)));
                let both = [
                    (readiness.readable, &mut callbacks.reader),
                    (readiness.writable, &mut callbacks.writer),
                ];
                for (fired, callback) in both {
                    let Some(callback) = callback.as_mut().filter(|_| fired) else {
                        continue;
                    };
                    if once_a_turn && callback.runs_in >= look.turn {
                        continue;
                    }
                    callback.runs_in = look.runs_in;
                    let handle = callback.handle.bind(py);
                    queue.ready.push_back(Ready::from_object(handle));
                }
            }
            Owner::Nobody => {}
        }
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for entry in &self.entries {
            match &entry.owner {
                Owner::Callbacks(callbacks) => {
                    visit.call(&callbacks.file)?;
                    for callback in [&callbacks.reader, &callbacks.writer].into_iter().flatten() {
                        visit.call(&callback.handle)?;
                    }
                }
                Owner::Transport(listed) => listed.traverse(visit)?,
                Owner::Nobody => {}
            }
        }
        for (_, listed) in self.held.iter().flatten() {
            listed.traverse(visit)?;
        }
        Ok(())
    }
}

impl Callbacks {
    fn get(&self, for_writing: bool) -> Option<&Callback> {
        if for_writing {
            self.writer.as_ref()
        } else {
            self.reader.as_ref()
        }
    }

    fn slot(&mut self, for_writing: bool) -> &mut Option<Callback> {
        if for_writing {
            &mut self.writer
        } else {
            &mut self.reader
        }
    }
}

impl Owner {
    /// Has a handle served, and gives back the one that was in its place.
    fn put(&mut self, place: Place, handle: Py<PyAny>) -> Option<Py<PyAny>> {
        let callback = Callback { handle, runs_in: 0 };
        if let Self::Callbacks(callbacks) = self {
            let before = callbacks.slot(place.for_writing).replace(callback);
            return before.map(|it| it.handle);
        }
        let mut callbacks = Box::new(Callbacks {
            file: place.file,
            ..Callbacks::default()
        });
        *callbacks.slot(place.for_writing) = Some(callback);
        *self = Self::Callbacks(callbacks);
        None
    }
}

impl Entry {
    /// The interest and the mode that let the kernel watch for a callback's direction, too.
    fn wanted(&self, own: Interest, for_writing: bool, mode: Mode) -> (Interest, Mode) {
        match (&self.owner, self.told) {
            (Owner::Callbacks(callbacks), told) if callbacks.get(!for_writing).is_some() => {
                let is_level = matches!(told, Some((_, Mode::Level)));
                let mode = if is_level { Mode::Level } else { mode };
                (Interest::READ | Interest::WRITE, mode)
            }
            // Changing nothing tells whether the registration still exists.
            (Owner::Transport(_), Some(told)) => told,
            _ => (own, mode),
        }
    }
}

impl Displaced {
    /// The handles among it, which are to be cancelled; the rest is dropped.
    pub(crate) fn into_handles(self) -> impl Iterator<Item = Py<PyAny>> {
        let of_owners = self.owners.into_iter().flat_map(|owner| match owner {
            Owner::Callbacks(callbacks) => [callbacks.reader, callbacks.writer],
            Owner::Nobody | Owner::Transport(_) => [None, None],
        });
        let of_owners = of_owners.flatten().map(|it| it.handle);
        self.handle.into_iter().chain(of_owners)
    }
}

impl Listed {
    /// Lists a transport, and keeps it alive.
    pub(crate) fn new<T: Transport>(transport: &Bound<'_, T>) -> Self {
        let pointer = WeakPointer::new(transport.as_any());
        // The reference that a strong entry owns.
        std::mem::forget(transport.clone());
        Self {
            transport: pointer,
            kind: T::KIND,
            strong: true,
        }
    }

    /// The entry that is queued when the socket reports something. Without the GIL, None for a transport that is ending in
    /// another thread.
    fn ready(&self, py: Python<'_>, readiness: Readiness) -> Option<Ready> {
        // SAFETY: the transport takes itself out of the tables before it goes, and these are the tables. It was listed by
        // the kind of its type.
        unsafe {
            let transport = self.transport.upgrade(py)?.unbind();
            let served = Served::of_kind(transport, self.kind, Reason::Ready(readiness));
            Some(Ready::Transport(served))
        }
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        if self.strong {
            visit.call(self.transport.borrowed())?;
        }
        Ok(())
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if self.strong {
            // SAFETY: the GIL is held, or this thread is attached: only whoever is touches the tables, and what leaves
            // them. A strong entry owns one reference.
            unsafe { ffi::Py_DECREF(self.transport.as_ptr()) };
        }
    }
}
