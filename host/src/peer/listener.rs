//! The socket at the meeting point.

use super::error::PeerError;
use super::socket::Socket;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect as join,
    listen, socket_with, sockopt::socket_peercred,
};
use rustix::process::geteuid;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How often a rank that came early looks whether rank 0 listens.
const RETRY: Duration = Duration::from_millis(5);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

fn path_error(action: &'static str, path: &Path, source: impl Into<io::Error>) -> PeerError {
    PeerError::Path {
        action,
        path: path.to_owned(),
        source: source.into(),
    }
}

fn new_socket(path: &Path, flags: SocketFlags) -> Result<(OwnedFd, SocketAddrUnix), PeerError> {
    let address = SocketAddrUnix::new(path).map_err(|e| path_error("name a socket", path, e))?;
    let flags = flags | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.map_err(|e| path_error("make a socket for", path, e))?;
    Ok((socket, address))
}

/// Listens at a path until dropped, which removes the path.
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and number of the file at the path.
    file: (u64, u64),
}

impl Listener {
    pub(super) fn bind(path: &Path) -> Result<Self, PeerError> {
        let (socket, address) = new_socket(path, SocketFlags::NONBLOCK)?;
        let bound = match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_stale(path)?;
                bind(&socket, &address)
            }
            bound => bound,
        };
        match bound {
            // Another one was as quick to replace the stale socket.
            Err(Errno::ADDRINUSE) => {
                return Err(PeerError::InUse {
                    path: path.to_owned(),
                });
            }
            bound => bound.map_err(|e| path_error("listen at", path, e))?,
        }
        let file = file_at(path).map_err(|e| path_error("listen at", path, e))?;
        let listener = Self {
            socket,
            path: path.to_owned(),
            file,
        };
        listen(&listener.socket, BACKLOG).map_err(|e| path_error("listen at", path, e))?;
        Ok(listener)
    }

    /// The next one who has connected, if there is one; another user's process is let go.
    pub(super) fn accept(&self) -> Result<Option<Socket>, PeerError> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => {
                let user = socket_peercred(&socket);
                let ours = user.is_ok_and(|user| user.uid == geteuid());
                Ok(ours.then(|| Socket::new(socket)))
            }
            // It has left again.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(path_error("accept at", &self.path, error)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Not one that another process has put in its place.
        if file_at(&self.path).is_ok_and(|file| file == self.file) {
            // If it stays, the next one to listen replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Removes the socket of a process that was killed.
fn remove_stale(path: &Path) -> Result<(), PeerError> {
    let (socket, address) = new_socket(path, SocketFlags::NONBLOCK)?;
    match join(&socket, &address) {
        // Nobody listens there.
        Err(Errno::CONNREFUSED) => match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(path_error("remove the stale socket", path, error))
            }
            _ => Ok(()),
        },
        // It went away meanwhile.
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => Err(PeerError::InUse {
            path: path.to_owned(),
        }),
        // Something that is no socket, for example, which is not ours to remove.
        Err(error) => Err(path_error("listen at", path, error)),
    }
}

/// Connects to who listens at `path`; `None` if nobody did in time.
pub(super) fn connect(path: &Path, until: Instant) -> Result<Option<Socket>, PeerError> {
    loop {
        let (socket, address) = new_socket(path, SocketFlags::empty())?;
        match join(&socket, &address) {
            Ok(()) => return Ok(Some(Socket::new(socket))),
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(path_error("connect to", path, error)),
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        thread::sleep(RETRY);
    }
}
