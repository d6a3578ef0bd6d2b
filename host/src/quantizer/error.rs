//! Why a quantization is refused, and the checks that its parts share.

use super::ScaleStore;
use crate::error::DeviceError;
use crate::options::{COLUMN_MULTIPLE, Format, InputType, UnsupportedRounding};
use thiserror::Error;

/// Why a quantization was refused. Nothing was launched or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// The device failed, or something lives on another one.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// Kernels read eight elements at a time.
    #[error("{columns} columns are not a multiple of {COLUMN_MULTIPLE}")]
    Columns {
        /// Columns asked for.
        columns: usize,
    },

    /// An extent does not fit the 32 bits that kernels count in.
    #[error("{what} is {value}; the most that kernels count to is {limit}")]
    TooLarge {
        /// The extent.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The limit.
        limit: usize,
    },

    /// The format does not round its scales that way.
    #[error(transparent)]
    Rounding(#[from] UnsupportedRounding),

    /// There is no kernel for the combination.
    #[error("there is no kernel for {format} from {input_type}; available: {available}")]
    NoKernel {
        /// The format.
        format: Format,
        /// The input type.
        input_type: InputType,
        /// The combinations that exist, as entry names.
        available: String,
    },

    /// A thread block takes a power of two of runs of columns.
    #[error("{found} runs per block; it must be a power of two up to {most}")]
    RunsPerBlock {
        /// What was asked for.
        found: u32,
        /// The most.
        most: u32,
    },

    /// A thread block has whole warps, as many for each of its runs.
    #[error("{found} threads per block; it must be a multiple of {multiple} up to {most}")]
    ThreadsPerBlock {
        /// What was asked for.
        found: u32,
        /// A warp for each run.
        multiple: u32,
        /// The most.
        most: u32,
    },

    /// The copy engine came with compute capability 9.0.
    #[error(
        "{store:?} needs compute capability 9.0; the device has {major}.{minor}",
        major = capability.0, minor = capability.1
    )]
    NoCopyEngine {
        /// What was asked for.
        store: ScaleStore,
        /// The device's compute capability.
        capability: (u32, u32),
    },

    /// A buffer does not have the length that the other arguments lead to.
    #[error("{buffer} holds {found} values; {rows} rows of {columns} columns take {expected}")]
    BufferLength {
        /// The buffer.
        buffer: &'static str,
        /// Values it holds.
        found: usize,
        /// Values it should hold.
        expected: usize,
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
    },

    /// The input is of another type than the quantizer was built for.
    #[error("the quantizer was built for {expected} input, got {found}")]
    InputType {
        /// Type given.
        found: InputType,
        /// Type expected.
        expected: InputType,
    },

    /// The output was made for another format or another number of columns.
    #[error(
        "the output is {found_format} with {found_columns} columns, the quantizer makes {format} with {columns}"
    )]
    OutputMismatch {
        /// Format of the output.
        found_format: Format,
        /// Columns of the output.
        found_columns: usize,
        /// Format of the quantizer.
        format: Format,
        /// Columns of the quantizer.
        columns: usize,
    },

    /// The output has another number of rows than the routing.
    #[error("the output has {found} rows, the routing {expected}")]
    OutputRows {
        /// Rows of the output.
        found: usize,
        /// Rows of the routing.
        expected: usize,
    },

    /// The scales tensor cannot hold all row tiles: some rows would be left out.
    #[error("the scales have {found} row tiles; the routing needs {needed}")]
    RowTiles {
        /// Row tiles of the scales tensor.
        found: usize,
        /// Row tiles that may be occupied.
        needed: usize,
    },

    /// A gathered row names an input row that does not exist.
    #[error("the routing reads input row {row}; the input has {rows} rows")]
    SourceRow {
        /// The row.
        row: usize,
        /// Rows of the input.
        rows: usize,
    },

    /// The routing has more slots than the quantizer was built for.
    #[error("the routing has {found} experts; the quantizer was built for at most {max}")]
    Experts {
        /// Slots of the routing.
        found: usize,
        /// The limit given to the builder.
        max: usize,
    },

    /// There are no tensor-wise factors.
    #[error("there must be at least one tensor-wise factor")]
    NoTensorScale,

    /// A tensor-wise factor is not a positive number.
    #[error("the tensor-wise factor of expert {expert} is {value}; it must be finite and above 0")]
    TensorScale {
        /// The expert.
        expert: usize,
        /// Its factor.
        value: f32,
    },
}

pub(super) fn check_columns(columns: usize) -> Result<u32, QuantizeError> {
    if !columns.is_multiple_of(COLUMN_MULTIPLE) {
        return Err(QuantizeError::Columns { columns });
    }
    // Kernels count the bytes of a row, four a column at most, in 32 bits.
    let limit = (1 << 30) - 1;
    if columns > limit {
        let what = "the number of columns";
        return Err(QuantizeError::TooLarge {
            what,
            value: columns,
            limit,
        });
    }
    Ok(columns as u32)
}

/// For what signed 32-bit indices name.
pub(super) fn to_index(what: &'static str, value: usize) -> Result<u32, QuantizeError> {
    let limit = i32::MAX as usize;
    if value > limit {
        return Err(QuantizeError::TooLarge { what, value, limit });
    }
    Ok(value as u32)
}

pub(super) fn to_u32(what: &'static str, value: usize) -> Result<u32, QuantizeError> {
    u32::try_from(value).map_err(|_| QuantizeError::TooLarge {
        what,
        value,
        limit: u32::MAX as usize,
    })
}
