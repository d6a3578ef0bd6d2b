//! Grouped dynamic quantization for Mixture-of-Experts inference.
//!
//! Activation rows, grouped by the expert they were routed to, become NVFP4, MXFP4 or MXFP8, with
//! block scales in the 128x4 layout that block-scaled matrix instructions read. The kernels are
//! written in Rust (`kernels-gpu`); they run on an NVIDIA GPU, or, thread by thread, in an emulator
//! on the CPU, with the same bytes.
//!
//! Where experts live on several ranks, [`ep`] sends each token, quantized, to those that it was routed to, and brings
//! home what they made of it; [`moe`] makes a complete small layer of that.
//!
//! ```
//! use half::bf16;
//! use tokenyard::{Device, DeviceRouting, Format, GroupedQuantizer, Routing, TensorScales};
//!
//! // Three tokens of 64 columns; each goes to two of four experts.
//! let (tokens, columns, experts) = (3, 64, 4);
//! let hidden_states: Vec<bf16> =
//!     (0..tokens * columns).map(|i| bf16::from_f32((i as f32).sin())).collect();
//! let routing = Routing::from_topk(&[0, 2, 2, 3, 0, 3], tokens, 2, experts)?;
//!
//! let device = Device::best(); // a GPU, or the emulator
//! let stream = device.create_stream()?;
//! let quantizer = GroupedQuantizer::builder(&device, Format::Nvfp4).columns(columns).build()?;
//!
//! let hidden_states = device.upload(&hidden_states)?;
//! let routing = DeviceRouting::upload(&device, &routing)?;
//! let tensor_scales = TensorScales::ones(&device, experts)?;
//! let quantized = quantizer.quantize(&stream, &hidden_states, &routing, &tensor_scales)?;
//!
//! let restored = quantized.dequantize(&stream, &routing, &tensor_scales)?.download()?;
//! assert_eq!(restored.len(), 6 * columns); // one row for each token and expert
//! // A block scale here is about 1/6, and E2M1's widest gap, 4 to 6, is 2: half of it is off by 1/6.
//! assert!((restored[1] - 1f32.sin()).abs() < 0.18);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The round trip of tokens to their experts on other ranks:
//!
//! ```
//! use half::bf16;
//! use tokenyard::Device;
//! use tokenyard::ep::{
//!     Batch, CombineFormat, CombineTarget, EpConfig, EpError, EpGroup, ExpertOutputs, TokenFormat,
//! };
//!
//! // Two ranks with three tokens each; a token goes to two of four experts.
//! let (tokens, hidden) = (3, 256);
//! let config = EpConfig::builder(TokenFormat::Mxfp4)
//!     .ranks(2).experts(4).top_k(2).hidden_size(hidden).max_tokens_per_rank(tokens)
//!     .combine(CombineFormat::F32)
//!     .build()?; // every limit is checked here, before anything is launched
//! let device = Device::best();
//! let stream = device.create_stream()?;
//! let mut group = EpGroup::new(&device, config)?;
//!
//! let hidden_states = device.upload(&vec![bf16::from_f32(1.5); tokens * hidden])?;
//! let topk_ids = device.upload(&[0, 2, 1, 3, 2, 0])?;
//! let weights = device.upload(&[0.75f32, 0.25].repeat(tokens))?;
//! let batches = [Batch::new(&hidden_states, &topk_ids); 2];
//! let mut received = [group.allocate_received()?, group.allocate_received()?];
//! let rows = group.config().output_rows();
//! let mut outputs = [device.alloc::<f32>(rows * hidden)?, device.alloc(rows * hidden)?];
//! let mut combined = [device.alloc::<f32>(tokens * hidden)?, device.alloc(tokens * hidden)?];
//!
//! let dispatched = group.dispatch(&stream, &batches, &mut received)?; // one launch for all ranks
//! for (received, outputs) in dispatched.received().iter().zip(&mut outputs) {
//!     received.dequantize(&stream, None, outputs)?; // experts that give back what they got
//! }
//! let outputs = outputs.each_ref().map(ExpertOutputs::from);
//! let targets = combined.iter_mut().map(|out| CombineTarget::weighted(&weights, out)).collect();
//! dispatched.combine(&stream, &outputs, &batches, targets).map_err(EpError::from)?;
//! group.check()?; // waits; an error says which rank kept the others waiting
//! assert_eq!(combined[1].download()?, vec![1.5; tokens * hidden]); // 0.75 * 1.5 + 0.25 * 1.5
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backend;
pub mod baseline;
pub mod buffer;
pub mod device;
pub mod device_routing;
pub mod ep;
pub mod error;
pub mod error_metrics;
pub mod graph;
pub mod moe;
pub mod ops;
pub mod options;
pub mod peer;
pub mod quantizer;
pub mod reference;
pub mod routing;
pub mod stream;

pub use backend::images::embedded_ptx;
pub use backend::{GpuPath, Topology};
pub use buffer::DeviceBuffer;
pub use device::{Device, EmulatorOptions};
pub use device_routing::{DeviceRouting, DeviceRoutingError, RoutingTables, TopkRouter};
pub use error::DeviceError;
pub use error_metrics::ErrorMetrics;
pub use graph::Graph;
pub use kernels_gpu::scale_tile::Swizzle;
pub use options::{DeadBlocks, Format, InputType, NanPolicy, QuantizeOptions, ScaleRounding};
pub use quantizer::{GroupedQuantizer, Input, QuantizeError, Quantized, ScaleStore, TensorScales};
pub use routing::{Routing, RoutingError};
pub use stream::{Event, Stream};

/// The programs of the README, compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
