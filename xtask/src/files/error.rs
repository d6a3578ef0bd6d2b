//! What can be wrong with a file.

use std::fmt;
use std::path::PathBuf;

use safetensors::Dtype;

/// A file that could not be read, understood or written. Every variant names the file; those about
/// a tensor name it too, with what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system refused to open or read the file.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Fewer than the eight bytes that hold the header's length.
    #[error(
        "{} is not a safetensors file: it has {found} bytes, and the header's length alone takes 8",
        path.display()
    )]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        found: usize,
    },
    /// The header would end after the end of the file.
    #[error(
        "{} is truncated, or not a safetensors file: its header claims {header_bytes} bytes, \
         but only {available} follow",
        path.display()
    )]
    HeaderBeyondEnd {
        /// The file.
        path: PathBuf,
        /// Header length that the first eight bytes give.
        header_bytes: u64,
        /// Bytes that follow the length.
        available: usize,
    },
    /// The header is longer than the format allows.
    #[error(
        "{}: its header claims {header_bytes} bytes; safetensors allows at most {limit}",
        path.display()
    )]
    HeaderTooLarge {
        /// The file.
        path: PathBuf,
        /// Header length that the first eight bytes give.
        header_bytes: u64,
        /// Largest length that is accepted.
        limit: usize,
    },
    /// The header is not JSON, or its dtypes, shapes and offsets contradict each other.
    #[error("{} has a malformed header", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Where and how.
        source: serde_json::Error,
    },
    /// The header describes more or fewer bytes than follow it.
    #[error(
        "{} is truncated or has trailing bytes: its tensors take {expected} bytes, {found} are there",
        path.display()
    )]
    DataLength {
        /// The file.
        path: PathBuf,
        /// Bytes that the header's tensors take.
        expected: usize,
        /// Bytes after the header.
        found: usize,
    },
    /// A tensor that is needed is not in the file.
    #[error(
        "{} has no tensor `{tensor}`; it has {}",
        path.display(),
        listed(found)
    )]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor that is needed.
        tensor: String,
        /// The tensors that are there.
        found: Vec<String>,
    },
    /// A tensor has an element type that has no meaning here.
    #[error("{}: tensor `{tensor}` must be {expected}, found {found}", path.display())]
    WrongDtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Element types that would do.
        expected: &'static str,
        /// Its element type.
        found: Dtype,
    },
    /// A tensor's shape does not fit the others, or the operation.
    #[error(
        "{}: tensor `{tensor}` must have shape {expected}, found {found:?}",
        path.display()
    )]
    WrongShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape that would do, with the names of its extents.
        expected: String,
        /// Its shape.
        found: Vec<usize>,
    },
    /// An element of a tensor is out of range.
    #[error("{}: tensor `{tensor}`: expected {expected}, found {found}", path.display())]
    WrongValue {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the element had to satisfy.
        expected: String,
        /// Which element, and its value.
        found: String,
    },
    /// The file lacks what `quantize` notes in `__metadata__`.
    #[error(
        "{}: `__metadata__` has no `{key}`; was the file written by `quantize`?",
        path.display()
    )]
    MissingMetadata {
        /// The file.
        path: PathBuf,
        /// The missing key.
        key: &'static str,
    },
    /// `__metadata__` has a value that cannot be understood.
    #[error(
        "{}: `__metadata__` has {key} = {found:?}, expected {expected}",
        path.display()
    )]
    WrongMetadata {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What would do.
        expected: String,
        /// The value.
        found: String,
    },
    /// The output exists and is a device, a pipe or a folder, which cannot be replaced safely.
    #[error("will not replace {}: it is not a regular file", path.display())]
    NotAFile {
        /// The output.
        path: PathBuf,
    },
    /// Writing failed; the output is what it was before.
    #[error("cannot write {}", path.display())]
    Write {
        /// The output.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// `a, b and c`, or words for an empty list.
fn listed(names: &[String]) -> impl fmt::Display {
    match names {
        [] => "no tensors".to_owned(),
        [one] => format!("`{one}`"),
        [first @ .., last] => format!("`{}` and `{last}`", first.join("`, `")),
    }
}
