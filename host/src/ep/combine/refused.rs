//! A refusal that gives back what it did not use.

use crate::ep::error::EpError;
use std::error::Error;
use std::fmt;

/// An operation that consumes a handle was refused: why, and the handle, with which it can be tried again.
///
/// Where nobody wants the handle back, `?` turns it into an [`EpError`].
pub struct Refused<H> {
    /// Why. Boxed, as a result is as large as its larger side.
    pub error: Box<EpError>,
    /// What the operation would have consumed.
    pub handle: H,
}

impl<H> Refused<H> {
    pub(super) fn new(error: EpError, handle: H) -> Self {
        Self {
            error: Box::new(error),
            handle,
        }
    }
}

impl<H> From<Refused<H>> for EpError {
    fn from(refused: Refused<H>) -> Self {
        *refused.error
    }
}

impl<H> fmt::Debug for Refused<H> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Refused")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<H> fmt::Display for Refused<H> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

impl<H> Error for Refused<H> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}
