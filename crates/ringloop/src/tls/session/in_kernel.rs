//! The part of a session that is about the kernel: giving it the keys, and the records that are no data.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustls::{AlertDescription, InvalidMessage};

use super::{Session, Side, error, unexpected};
use crate::tls::boundary::Boundary;
use crate::tls::in_kernel::Next;
use crate::tls::kernel::KernelTls;
use crate::tls::kernel::offload::{Meaning, Plan, alert};

impl Session {
    /// Gives the keys to the kernel after the handshake, if that was asked for and is possible. After an error, the
    /// connection is over.
    pub(in crate::tls) fn offload(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let Some(boundary) = self.boundary.take() else {
            return Ok(());
        };
        match self.plan(&boundary, socket) {
            Ok(plan) => {
                let done = match std::mem::replace(&mut self.side, Side::Lost) {
                    Side::Client(connection) => plan.carry_out(connection, socket),
                    Side::Server(connection) => plan.carry_out(connection, socket),
                    side @ (Side::Kernel(_) | Side::Lost) => {
                        self.side = side;
                        return Ok(());
                    }
                };
                let offloaded = done.map_err(|failure| {
                    self.kernel = KernelTls::Refused(failure.to_string().into());
                    self.fail(failure)
                })?;
                self.side = Side::Kernel(Box::new(offloaded));
                self.kernel = KernelTls::On;
            }
            Err(reason) => self.kernel = KernelTls::Refused(reason),
        }
        Ok(())
    }

    fn plan(&self, boundary: &Boundary, socket: BorrowedFd<'_>) -> Result<Plan, Arc<str>> {
        let common = self.common().ok_or("the connection has failed")?;
        let is_quiet = boundary.is_between_records()
            && self.incoming.is_empty()
            && self.outgoing.is_empty()
            && !common.wants_write()
            && !self.is_ended
            && !self.is_closed;
        if !is_quiet {
            return Err("the handshake has left something behind".into());
        }
        Plan::new(common, socket)
    }

    /// Interprets a record that is no data, which the kernel has decrypted.
    pub(in crate::tls) fn receive_record(
        &mut self,
        socket: BorrowedFd<'_>,
        kind: u8,
        bytes: &[u8],
    ) -> io::Result<()> {
        let Side::Kernel(offloaded) = &mut self.side else {
            return Err(error(unexpected()));
        };
        match offloaded.receive(socket, kind, bytes) {
            Ok(Meaning::Nothing) => Ok(()),
            Ok(Meaning::Closed) => {
                self.is_ended = true;
                Ok(())
            }
            Ok(Meaning::Renegotiation) => {
                // close_notify is the last record.
                if !self.is_closed {
                    self.alert = Some(AlertDescription::NoRenegotiation);
                }
                Ok(())
            }
            Err(failure) => {
                self.alert = failure.alert;
                Err(self.fail(failure.error))
            }
        }
    }

    /// Notes that the kernel has received data.
    pub(in crate::tls) fn data_is_received(&mut self) -> io::Result<()> {
        let Side::Kernel(offloaded) = &mut self.side else {
            return Ok(());
        };
        offloaded.receive_data().map_err(|failure| {
            self.alert = failure.alert;
            self.fail(failure.error)
        })
    }

    /// Notes that the kernel could not decrypt what came, and returns the error.
    pub(in crate::tls) fn fail_to_decrypt(&mut self, errno: i32) -> io::Error {
        let (failure, alert) = match errno {
            libc::EMSGSIZE => (
                rustls::Error::PeerSentOversizedRecord,
                AlertDescription::RecordOverflow,
            ),
            // The record's header is none.
            libc::EINVAL => (
                InvalidMessage::UnknownProtocolVersion.into(),
                AlertDescription::DecodeError,
            ),
            _ => (rustls::Error::DecryptError, AlertDescription::BadRecordMac),
        };
        self.alert = Some(alert);
        self.fail(failure)
    }

    /// Notes an error after which the connection cannot be used.
    pub(in crate::tls) fn fail(&mut self, failure: rustls::Error) -> io::Error {
        self.failure = Some(failure.clone());
        error(failure)
    }

    /// Returns what must be sent next by way of the kernel, so that nothing waits.
    pub(in crate::tls) fn next_to_send(&mut self) -> Option<Next> {
        self.next_before_data().or_else(|| {
            // close_notify is the last record, and has taken along what was held back.
            let is_over = self.is_closed || self.failure.is_some();
            let holds_back = self
                .offloaded()
                .is_some_and(|offloaded| offloaded.holds_back);
            (holds_back && !is_over).then_some(Next::HeldBack)
        })
    }

    /// Returns what must be sent next by way of the kernel, before data.
    pub(in crate::tls) fn next_before_data(&mut self) -> Option<Next> {
        // close_notify is the last record.
        let is_over = self.is_closed && self.alert.is_none() && self.outgoing.is_empty();
        let Side::Kernel(offloaded) = &mut self.side else {
            return None;
        };
        if offloaded.owes_key_update && !is_over && self.failure.is_none() {
            return Some(Next::KeyUpdate);
        }
        if !self.outgoing.is_empty() {
            return Some(Next::Data);
        }
        self.alert.map(|description| {
            let (kind, bytes) = alert(description);
            Next::Alert(kind, bytes)
        })
    }

    /// Notes that an alert is sent, in `count` bytes.
    pub(in crate::tls) fn alert_is_sent(&mut self, count: usize) {
        self.alert = None;
        if let Side::Kernel(offloaded) = &mut self.side {
            offloaded.note_sent(count);
        }
    }

    /// Notes that the kernel holds no part of a record back.
    pub(in crate::tls) fn nothing_is_held_back(&mut self) {
        if let Some(offloaded) = self.offloaded() {
            offloaded.holds_back = false;
        }
    }

    /// Gives the kernel the new key for sending, which is announced.
    pub(in crate::tls) fn key_update_is_sent(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let Side::Kernel(offloaded) = &mut self.side else {
            return Ok(());
        };
        let renewed = offloaded.renew_sending(socket);
        renewed.map_err(|failure| self.fail(failure))
    }

    /// Prepares to send data by way of the kernel. What comes [before data](Self::next_before_data) must be sent first. If
    /// the key must make no more records, this direction ends with close_notify, and reading goes on.
    pub(in crate::tls) fn before_sending(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.check_writing()?;
        let Side::Kernel(offloaded) = &mut self.side else {
            return Ok(());
        };
        offloaded.before_sending(socket).map_err(|exhausted| {
            self.is_closed = true;
            self.alert = Some(AlertDescription::CloseNotify);
            error(exhausted)
        })
    }

    /// Notes what became of data that was sent by way of the kernel. After an error, nothing may follow.
    pub(in crate::tls) fn after_sending(&mut self, sent: io::Result<usize>) -> io::Result<usize> {
        match (&sent, &mut self.side) {
            (Ok(count), Side::Kernel(offloaded)) => offloaded.note_sent(*count),
            // It is called again.
            (Err(error), _) if error.kind() == io::ErrorKind::Interrupted => {}
            (Err(_), _) => self.is_closed = true,
            _ => {}
        }
        sent
    }
}
