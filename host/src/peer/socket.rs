//! Messages and descriptors between processes of one host.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The longest message, in bytes. What ranks say of themselves takes about one kilobyte.
const MAX_BYTES: usize = 16 << 10;

/// Descriptors of one message, at the most; the system's own limit is 253.
const MAX_DESCRIPTORS: usize = 32;

/// What came with one message.
pub(super) struct Parcel {
    pub(super) bytes: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// A connected Unix socket that keeps messages apart.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl Socket {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Two that are connected to each other.
    pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        Ok(socketpair(AddressFamily::UNIX, kind, flags, None)?)
    }

    /// Sends one message. The other side must read within the deadline if its queue is full.
    pub(super) fn send(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> io::Result<()> {
        if bytes.len() > MAX_BYTES || descriptors.len() > MAX_DESCRIPTORS {
            return Err(Errno::MSGSIZE.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty()
                && !control.push(SendAncillaryMessage::ScmRights(descriptors))
            {
                return Err(Errno::MSGSIZE.into());
            }
            match sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if wait_any(&[self.as_fd()], PollFlags::OUT, deadline)?.is_empty() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives one message; `None` when the other side is gone.
    pub(super) fn receive(&self, deadline: Instant) -> io::Result<Option<Parcel>> {
        if wait_any(&[self.as_fd()], PollFlags::IN, deadline)?.is_empty() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut bytes = vec![0; MAX_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            flags,
        );
        let received = match received {
            Ok(received) => received,
            Err(Errno::CONNRESET | Errno::PIPE) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let descriptors = control
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
                _ => Vec::new(),
            })
            .collect();
        let truncated = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
        if received.flags.intersects(truncated) {
            return Err(Errno::MSGSIZE.into());
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        bytes.truncate(received.bytes);
        Ok(Some(Parcel { bytes, descriptors }))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until something can be done with one of `descriptors`, and says with which; none when time is up.
///
/// A descriptor whose other side is gone counts too.
pub(super) fn wait_any(
    descriptors: &[BorrowedFd<'_>],
    what: PollFlags,
    deadline: Instant,
) -> io::Result<Vec<usize>> {
    let mut polled: Vec<_> = descriptors
        .iter()
        .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, what))
        .collect();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut polled, Some(&limit)) {
            Ok(0) => return Ok(Vec::new()),
            Ok(_) => {
                let ready = polled.iter().enumerate();
                let ready = ready.filter(|(_, polled)| !polled.revents().is_empty());
                return Ok(ready.map(|(index, _)| index).collect());
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the other side of a socket is gone. Does not wait.
pub(super) fn is_gone(socket: &Socket) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::RDHUP)];
    let now = Timespec::try_from(Duration::ZERO).map_err(|_| Errno::INVAL)?;
    match poll(&mut polled, Some(&now)) {
        Ok(ready) => Ok(ready > 0),
        // Asked again with the next operation.
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
