//! Rows to be quantized, with their routing: what `quantize` and `run` read.

use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;
use tokenyard::options::{COLUMN_MULTIPLE, InputType};
use tokenyard::routing::{Routing, RoutingError};

use super::tensor_file::decode;
use super::{FileError, Tensor, TensorFile};

/// Most experts that a file may ask for: far beyond any model, and small enough that a wrong id cannot
/// make the index vectors fill the memory.
pub const MAX_EXPERTS: usize = 1 << 20;

/// Elements of `hidden_states`, row-major, in the type that the file has.
#[derive(Clone, Debug)]
pub enum HiddenStates {
    /// bfloat16
    Bf16(Vec<bf16>),
    /// IEEE binary16
    F16(Vec<f16>),
    /// IEEE binary32
    F32(Vec<f32>),
}

impl HiddenStates {
    /// The element type.
    pub fn input_type(&self) -> InputType {
        match self {
            HiddenStates::Bf16(_) => InputType::Bf16,
            HiddenStates::F16(_) => InputType::F16,
            HiddenStates::F32(_) => InputType::F32,
        }
    }

    /// Every element, widened exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            HiddenStates::Bf16(values) => values.iter().map(|value| value.to_f32()).collect(),
            HiddenStates::F16(values) => values.iter().map(|value| value.to_f32()).collect(),
            HiddenStates::F32(values) => values.clone(),
        }
    }
}

/// Input of a grouped quantization, read from a file and checked.
#[derive(Debug)]
pub struct GroupedInput {
    /// `[tokens, columns]`
    pub hidden_states: HiddenStates,
    /// T: rows of `hidden_states`.
    pub tokens: usize,
    /// K: columns of `hidden_states`, a multiple of 8.
    pub columns: usize,
    /// Which row goes to which expert.
    pub routing: Routing,
    /// `[X]`: encode factor per expert, where the file gives any; finite and above zero. X covers
    /// every expert that has rows.
    pub tensor_scales: Option<Vec<f32>>,
}

impl GroupedInput {
    /// Reads `path`. `experts` is the number of experts if the file has `topk_ids`; without it,
    /// the largest id plus one.
    ///
    /// # Errors
    /// [`InputError`]: the file, one of its tensors, or the routing they describe.
    pub fn read(path: &Path, experts: Option<u32>) -> Result<Self, InputError> {
        Self::from_file(&TensorFile::open(path)?, experts)
    }

    /// The encode factors of the file, or 1 for every expert that the routing names. There is always
    /// at least one.
    pub fn tensor_scales_or_ones(&self) -> Vec<f32> {
        if let Some(scales) = &self.tensor_scales {
            return scales.clone();
        }
        let largest = self.routing.expert_ids().iter().copied().max();
        vec![1.0; largest.map_or(1, |id| id.max(0) as usize + 1)]
    }

    /// As [`GroupedInput::read`], from a file that is open already.
    ///
    /// # Errors
    /// As [`GroupedInput::read`].
    pub fn from_file(file: &TensorFile, experts: Option<u32>) -> Result<Self, InputError> {
        let tensor = file.require("hidden_states")?;
        let [tokens, columns] = tensor.extents("[T, K]")?;
        if !columns.is_multiple_of(COLUMN_MULTIPLE) {
            return Err(tensor
                .wrong_shape(&format!("[T, K] with K a multiple of {COLUMN_MULTIPLE}"))
                .into());
        }
        let hidden_states = hidden_states(tensor)?;
        let routing = match (file.tensor("topk_ids"), file.tensor("row_offsets")) {
            (Some(ids), _) => routing_from_topk(file, ids, tokens, experts)?,
            (None, Some(offsets)) => {
                if let Some(experts) = experts {
                    return Err(InputError::ExpertsWithoutIds { experts });
                }
                routing_from_offsets(file, offsets, tokens)?
            }
            (None, None) => return Err(file.missing("topk_ids` or `row_offsets").into()),
        };
        let tensor_scales = file
            .tensor("sf")
            .map(|sf| tensor_scales(sf, &routing))
            .transpose()?;
        Ok(Self {
            hidden_states,
            tokens,
            columns,
            routing,
            tensor_scales,
        })
    }
}

fn hidden_states(tensor: Tensor<'_>) -> Result<HiddenStates, FileError> {
    let bytes = tensor.bytes();
    match tensor.dtype() {
        Dtype::BF16 => Ok(HiddenStates::Bf16(decode(bytes, bf16::from_le_bytes))),
        Dtype::F16 => Ok(HiddenStates::F16(decode(bytes, f16::from_le_bytes))),
        Dtype::F32 => Ok(HiddenStates::F32(decode(bytes, f32::from_le_bytes))),
        _ => Err(tensor.wrong_dtype("BF16, F16 or F32")),
    }
}

fn routing_from_topk(
    file: &TensorFile,
    ids: Tensor<'_>,
    tokens: usize,
    experts: Option<u32>,
) -> Result<Routing, InputError> {
    if file.tensor("row_offsets").is_some() {
        return Err(InputError::TwoRoutings);
    }
    let expected = format!("[T, k] with T = {tokens}");
    let [rows, top_k] = ids.extents(&expected)?;
    if rows != tokens {
        return Err(ids.wrong_shape(&expected).into());
    }
    let ids = ids.to_i32()?;
    let experts = match experts {
        Some(experts) => experts as usize,
        // Without a single id there is nothing to route, which one expert can do as well as any.
        None => ids.iter().max().map_or(1, |&id| id.max(0) as usize + 1),
    };
    if experts > MAX_EXPERTS {
        return Err(InputError::TooManyExperts { experts });
    }
    Ok(Routing::from_topk(&ids, tokens, top_k, experts)?)
}

fn routing_from_offsets(
    file: &TensorFile,
    offsets: Tensor<'_>,
    tokens: usize,
) -> Result<Routing, InputError> {
    let [entries] = offsets.extents("[E+1]")?;
    let slots = entries.saturating_sub(1);
    let expert_ids = file
        .tensor("expert_ids")
        .map(|ids| {
            ids.require_shape("[E]", &[slots])?;
            ids.to_i32()
        })
        .transpose()?;
    Ok(Routing::from_row_offsets(
        &offsets.to_u32()?,
        expert_ids.as_deref(),
        tokens,
    )?)
}

/// Reads `sf` and checks that every factor is usable and that every slot that has rows has one.
pub(super) fn tensor_scales(sf: Tensor<'_>, routing: &Routing) -> Result<Vec<f32>, FileError> {
    let [experts] = sf.extents("[X]")?;
    let scales = sf.to_f32()?;
    for (index, &scale) in scales.iter().enumerate() {
        if !(scale.is_finite() && scale > 0.0) {
            return Err(sf.wrong_value("finite factors above zero", index, scale));
        }
    }
    // A negative id marks a slot as inactive; an id past the end is a mistake.
    let needed = routing
        .expert_ids()
        .iter()
        .zip(routing.rows_per_expert())
        .filter(|&(_, rows)| rows > 0)
        .filter_map(|(&id, _)| usize::try_from(id).ok())
        .max();
    match needed {
        Some(id) if id >= experts => {
            Err(sf.wrong_shape(&format!("[X] with X above {id}, an expert that has rows")))
        }
        _ => Ok(scales),
    }
}

/// Why a file is no input for a grouped quantization.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file or one of its tensors.
    #[error(transparent)]
    File(#[from] FileError),
    /// The tensors are well-formed, but describe no routing.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// Two tensors say where rows go.
    #[error("the input has both `topk_ids` and `row_offsets`; which one says where rows go?")]
    TwoRoutings,
    /// More experts than any model has.
    #[error(
        "{experts} experts, from --experts or the largest id; at most {MAX_EXPERTS} make sense"
    )]
    TooManyExperts {
        /// Experts asked for.
        experts: usize,
    },
    /// `--experts` for rows that are grouped already.
    #[error("--experts {experts} is for inputs with `topk_ids`; this one has `row_offsets`")]
    ExpertsWithoutIds {
        /// Experts asked for.
        experts: u32,
    },
}
