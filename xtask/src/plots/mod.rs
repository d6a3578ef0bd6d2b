//! Pictures of a run, each as SVG and as PNG, drawn without any system library.

mod canvas;
mod error_distribution;
mod exchange;
mod latency;
mod rows_per_expert;
mod throughput;

pub use canvas::{Picture, PlotError};
pub use error_distribution::{ErrorHistogram, ErrorSeries, error_distribution};
pub use exchange::{Exchange, exchange_map};
pub use latency::{TimeLabels, TimeSeries, times};
pub use rows_per_expert::rows_per_expert;
pub use throughput::{ThroughputBar, throughput};
