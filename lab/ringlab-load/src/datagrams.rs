//! Echoed datagrams: a frame in each, of which the kernel or the server may lose some.

use std::collections::VecDeque;
use std::io;

use crate::exchange::{Answer, Exchange, Taken};
use crate::failure::{Failure, Kind};
use crate::link::Link;
use crate::pattern::{Frame, Pattern};

/// How many lost datagrams of each connection are remembered, because their echoes may come late.
const REMEMBERED: usize = 64;

/// Echoed datagrams.
#[derive(Clone, Debug)]
pub(crate) struct Datagrams(pub(crate) Pattern);

/// The sequence numbers of the datagrams that were lost last.
#[derive(Debug, Default)]
pub(crate) struct Lost(VecDeque<u32>);

impl Exchange for Datagrams {
    type Partial = Lost;

    const DATAGRAMS: bool = true;

    fn request_bytes(&self) -> usize {
        self.0.size()
    }

    fn send(
        &mut self,
        to: &mut Link,
        first: Frame,
        position: usize,
        _: usize,
    ) -> io::Result<usize> {
        self.0.write(to, first, position, 1)
    }

    fn lose(&mut self, request: Frame, lost: &mut Lost) {
        if lost.0.len() == REMEMBERED {
            lost.0.pop_front();
        }
        lost.0.push_back(request.sequence);
    }

    #[inline]
    fn take(&mut self, request: Frame, lost: &mut Lost, received: &[u8]) -> Result<Taken, Failure> {
        let (bytes, size) = (received.len(), self.0.size());
        if bytes != size {
            let Frame {
                connection,
                sequence,
            } = request;
            let words = format!(
                "wrong echo on connection {connection}, message {sequence}: a datagram of {bytes} bytes came, and {size} were sent"
            );
            return Err(Failure::new(Kind::Mismatch, words));
        }
        let Err(failure) = self.0.check(request, 0, received) else {
            let answer = Answer::Complete {
                last: false,
                wrong: None,
            };
            return Ok(Taken { bytes, answer });
        };
        let came = lost.0.iter().position(|&sequence| {
            let frame = Frame {
                sequence,
                ..request
            };
            self.0.check(frame, 0, received).is_ok()
        });
        let at = came.ok_or(failure)?;
        lost.0.remove(at);
        Ok(Taken {
            bytes,
            answer: Answer::Late,
        })
    }

    fn describe(&self, _: &Lost) -> Option<String> {
        None
    }
}
