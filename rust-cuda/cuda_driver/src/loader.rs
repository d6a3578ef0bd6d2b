//! Loading `libcuda.so.1`, once per process, and looking up its functions, once each.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

/// Where a driver may be, in the order tried. The bare name is found by the dynamic loader; the
/// others are where systems put it that do not tell the loader: WSL, Kubernetes nodes, NixOS.
const CANDIDATES: [&str; 4] = [
    "libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/run/opengl-driver/lib/libcuda.so.1",
];

/// One file that was tried in the search for a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The name given to the dynamic loader.
    pub file: &'static str,
    /// What the dynamic loader said about it.
    pub reason: String,
}

/// No CUDA driver could be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no CUDA driver could be loaded; tried {}", ListedAttempts(.tried))]
#[non_exhaustive]
pub struct NoDriver {
    /// The files tried, in order.
    pub tried: Vec<Attempt>,
}

struct ListedAttempts<'a>(&'a [Attempt]);

impl fmt::Display for ListedAttempts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Attempt { file, reason }) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            // The loader usually begins with the file's name; it is not worth saying twice.
            let reason = reason
                .strip_prefix(file)
                .map_or(reason.as_str(), |rest| rest.trim_start_matches([':', ' ']));
            write!(f, "{separator}{file} ({reason})")?;
        }
        Ok(())
    }
}

/// The driver library. It stays loaded until the process ends, so addresses taken from it never
/// dangle.
fn library() -> Result<&'static Library, &'static NoDriver> {
    static LIBRARY: OnceLock<Result<Library, NoDriver>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            let mut tried = Vec::new();
            for file in CANDIDATES {
                // SAFETY: loading runs the library's initialisers. These are the names under which
                // NVIDIA's driver is installed; its initialisers may run at any time, on any
                // thread, and the library is never unloaded.
                match unsafe { Library::new(file) } {
                    Ok(library) => return Ok(library),
                    Err(error) => tried.push(Attempt {
                        file,
                        reason: reason(&error),
                    }),
                }
            }
            Err(NoDriver { tried })
        })
        .as_ref()
}

/// The loader's own words, without the name of the function that failed.
fn reason(error: &libloading::Error) -> String {
    use std::error::Error as _;
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// Whether a CUDA driver can be loaded on this machine.
///
/// The first call in a process loads it; the answer never changes afterwards. A driver that loads
/// may still find no device, or refuse to work with it: that is for `cuInit` to say.
///
/// # Errors
///
/// [`NoDriver`], naming each file tried and what the dynamic loader said about it.
pub fn driver_available() -> Result<(), NoDriver> {
    library().map(|_| ()).map_err(Clone::clone)
}

/// A driver function that is looked up on first use.
///
/// `target` is the first field because trampolines load it through the symbol's own address.
#[repr(C)]
pub(crate) struct Symbol {
    target: AtomicPtr<c_void>,
    name: &'static CStr,
}

/// Why a symbol has no address.
pub(crate) enum Unresolved {
    /// There is no driver on this machine.
    NoDriver(&'static NoDriver),
    /// There is a driver, but it is older than the function.
    Missing,
}

impl Symbol {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            target: AtomicPtr::new(ptr::null_mut()),
            name,
        }
    }

    /// The function's address in the driver; looked up once, then remembered.
    pub(crate) fn address(&self) -> Result<NonNull<c_void>, Unresolved> {
        if let Some(known) = NonNull::new(self.target.load(Ordering::Acquire)) {
            return Ok(known);
        }
        let library = library().map_err(Unresolved::NoDriver)?;
        // SAFETY: the symbol is only taken as an address here; whoever calls it states its type.
        let found = unsafe { library.get::<*mut c_void>(self.name) };
        let address = found
            .ok()
            .and_then(|symbol| NonNull::new(*symbol))
            .ok_or(Unresolved::Missing)?;
        self.remember(address);
        Ok(address)
    }

    /// Makes `address` the target of every later use.
    ///
    /// Threads that race here store the same value, since the driver is loaded once and stays.
    pub(crate) fn remember(&self, address: NonNull<c_void>) {
        self.target.store(address.as_ptr(), Ordering::Release);
    }
}

/// A [`Symbol`] for the function named by the identifier.
macro_rules! symbol {
    ($name:ident) => {
        $crate::loader::Symbol::new(
            const {
                match std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => panic!("an identifier holds no NUL"),
                }
            },
        )
    };
}
pub(crate) use symbol;
