//! What the commands read and write: safetensors files with typed errors, and writes that either
//! happen whole or not at all.

mod atomic;
mod dispatched;
mod error;
mod input;
mod quantized;
mod tensor_file;

pub use atomic::{StagedFolder, remove_unfinished_and_exit, write_atomically};
pub use dispatched::{DispatchedFile, RankRows, TokensFile};
pub use error::FileError;
pub use input::{GroupedInput, HiddenStates};
pub use quantized::{QuantizedFile, dequantized_bytes};
pub use tensor_file::{Tensor, TensorFile};

#[cfg(test)]
mod tests;
