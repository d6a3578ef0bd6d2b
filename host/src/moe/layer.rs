//! The layer.

use super::error::{MoeError, check_length};
use super::experts::ExpertMlp;
use super::router::Router;
use super::weights::{MoeShape, MoeWeights};
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::ep::{
    Batch, CombineFormat, CombineTarget, EpConfig, EpError, EpGroup, ExpertOutputs, Received,
    TokenFormat,
};
use crate::quantizer::TensorScales;
use crate::reference::moe::WireFormat;
use crate::stream::Stream;
use half::bf16;

/// How a layer is spread over ranks, and what its tokens travel as.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeLayerConfig {
    /// What tokens are dispatched as. They return in BF16.
    pub wire: WireFormat,
    /// Ranks, a divisor of the experts.
    pub ranks: usize,
    /// Tokens that a rank can have at once.
    pub max_tokens_per_rank: usize,
}

/// A Mixture-of-Experts layer over the virtual ranks of a device, each with its share of the experts.
///
/// ```
/// use half::bf16;
/// use tokenyard::Device;
/// use tokenyard::ep::TokenFormat;
/// use tokenyard::moe::{MoeLayer, MoeLayerConfig, MoeShape, MoeWeights};
/// use tokenyard::reference::moe::WireFormat;
///
/// let shape = MoeShape { hidden_size: 64, intermediate_size: 16, experts: 4, top_k: 2 };
/// let weights = MoeWeights::random(shape, 1)?;
/// let device = Device::emulator(0);
/// let stream = device.create_stream()?;
/// let config = MoeLayerConfig {
///     wire: WireFormat::new(TokenFormat::Mxfp4),
///     ranks: 2,
///     max_tokens_per_rank: 8,
/// };
/// let mut layer = MoeLayer::new(&device, &weights, config)?;
///
/// let tokens = [device.upload(&[bf16::ONE; 3 * 64])?, device.upload(&[bf16::ONE; 64])?];
/// let outputs = layer.forward(&stream, &tokens)?;
///
/// // Equal tokens have equal results, whatever rank they are on.
/// let of_rank_0 = outputs[0].download()?;
/// assert_eq!(of_rank_0[..64], outputs[1].download()?);
/// assert_eq!(of_rank_0[..64], of_rank_0[128..]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MoeLayer {
    shape: MoeShape,
    router: Router,
    group: EpGroup,
    ranks: Vec<RankBuffers>,
    received: Vec<Received>,
    factors: Option<Factors>,
}

/// What a rank has between dispatch and combine.
#[derive(Debug)]
struct RankBuffers {
    /// `[output_rows, H]`.
    rows: DeviceBuffer<f32>,
    experts: ExpertMlp,
    /// `[output_rows, H]`.
    outputs: DeviceBuffer<bf16>,
}

/// The factor of NVFP4, as dispatch takes it and as the way back does.
#[derive(Debug)]
struct Factors {
    dispatch: DeviceBuffer<f32>,
    groups: TensorScales,
}

impl MoeLayer {
    /// A layer with these weights.
    ///
    /// # Errors
    ///
    /// A group that cannot be: see [`EpConfigBuilder::build`](crate::ep::EpConfigBuilder::build). A device that cannot
    /// allocate; for NVFP4 a factor that is not finite and above 0.
    pub fn new(
        device: &Device,
        weights: &MoeWeights,
        config: MoeLayerConfig,
    ) -> Result<Self, MoeError> {
        let shape = weights.shape();
        let MoeLayerConfig {
            wire,
            ranks,
            max_tokens_per_rank,
        } = config;
        let mut builder = EpConfig::builder(wire.format)
            .hidden_size(shape.hidden_size)
            .top_k(shape.top_k)
            .experts(shape.experts)
            .ranks(ranks)
            .max_tokens_per_rank(max_tokens_per_rank)
            .combine(CombineFormat::Bf16);
        if wire.format.is_mx() {
            builder = builder.scale_rounding(wire.scale_rounding);
        }
        let group = EpGroup::new(device, builder.build()?)?;
        let local_experts = group.config().local_experts();
        let rows = group.config().output_rows();
        let buffers = (0..ranks).map(|rank| {
            let experts = rank * local_experts..(rank + 1) * local_experts;
            Ok(RankBuffers {
                rows: device.alloc(rows * shape.hidden_size)?,
                experts: ExpertMlp::new(device, weights, experts, rows)?,
                outputs: device.alloc(rows * shape.hidden_size)?,
            })
        });
        let buffers = buffers.collect::<Result<_, MoeError>>()?;
        let received = (0..ranks).map(|_| group.allocate_received());
        let received = received.collect::<Result<_, EpError>>()?;
        let factors = match wire.format {
            TokenFormat::Nvfp4 => Some(Factors {
                dispatch: device.upload(&[wire.global_factor])?,
                groups: TensorScales::upload(device, &vec![wire.global_factor; local_experts])?,
            }),
            _ => None,
        };
        Ok(Self {
            shape,
            router: Router::new(device, weights, max_tokens_per_rank)?,
            group,
            ranks: buffers,
            received,
            factors,
        })
    }

    /// The layer on the tokens of each rank, `[T, H]`; one result for each. Waits for the device.
    ///
    /// # Errors
    ///
    /// Tokens that do not fit the layer; a rank that did not arrive, [`EpError::Deadline`].
    pub fn forward(
        &mut self,
        stream: &Stream,
        tokens: &[DeviceBuffer<bf16>],
    ) -> Result<Vec<DeviceBuffer<bf16>>, MoeError> {
        check_length("the tokens of the ranks", tokens.len(), self.ranks.len())?;
        let device = self.group.device();
        let MoeShape {
            hidden_size, top_k, ..
        } = self.shape;

        // Route.
        let mut routed = Vec::with_capacity(tokens.len());
        for tokens in tokens {
            let choices = tokens.len() / hidden_size * top_k;
            let (mut ids, mut weights) = (device.alloc(choices)?, device.alloc(choices)?);
            self.router.route(stream, tokens, &mut ids, &mut weights)?;
            routed.push((ids, weights));
        }

        // Dispatch.
        let batches = tokens.iter().zip(&routed).map(|(tokens, (ids, _))| {
            let batch = Batch::new(tokens, ids);
            match &self.factors {
                Some(factors) => batch.input_scale(&factors.dispatch),
                None => batch,
            }
        });
        let batches: Vec<_> = batches.collect();
        let mut combined = tokens
            .iter()
            .map(|tokens| device.alloc(tokens.len()))
            .collect::<Result<Vec<_>, _>>()?;
        let dispatched = self.group.dispatch(stream, &batches, &mut self.received)?;

        // Widen, and let the experts of each rank work on what it got.
        let factors = self.factors.as_ref().map(|factors| &factors.groups);
        for (rank, received) in self.ranks.iter_mut().zip(dispatched.received()) {
            received.dequantize(stream, factors, &mut rank.rows)?;
            let row_offsets = received.row_offsets();
            rank.experts
                .forward(stream, &rank.rows, row_offsets, &mut rank.outputs)?;
        }

        // Combine.
        let outputs: Vec<_> = self
            .ranks
            .iter()
            .map(|rank| ExpertOutputs::from(&rank.outputs))
            .collect();
        let targets = combined.iter_mut().zip(&routed);
        let targets =
            targets.map(|(combined, (_, weights))| CombineTarget::weighted(weights, combined));
        dispatched
            .combine(stream, &outputs, &batches, targets.collect())
            .map_err(EpError::from)?;
        self.group.check()?;
        Ok(combined)
    }
}
