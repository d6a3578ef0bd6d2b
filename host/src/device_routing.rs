//! Routing tables in device memory.

use crate::backend::LaunchConfig;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::DeviceError;
use crate::routing::{Routing, RoutingError, max_tiles};
use crate::stream::Stream;
use kernels_gpu::route;
use thiserror::Error;

/// The tables that say which rows belong to which expert, as kernels read them.
#[derive(Debug)]
pub struct DeviceRouting {
    pub(crate) row_offsets: DeviceBuffer<u32>,
    pub(crate) scales_offsets: DeviceBuffer<u32>,
    pub(crate) expert_ids: DeviceBuffer<i32>,
    pub(crate) source_rows: Option<DeviceBuffer<i32>>,
    rows: usize,
    tiles_needed: usize,
    /// One past the largest source row, where the host knows it.
    source_rows_end: Option<usize>,
}

/// Routing tables as they lie in device memory, copied to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingTables {
    /// `[slots + 1]`.
    pub row_offsets: Vec<u32>,
    /// `[slots]`.
    pub scales_offsets: Vec<u32>,
    /// `[slots]`.
    pub expert_ids: Vec<i32>,
    /// The source of each row that the row offsets cover, where rows are gathered.
    pub source_rows: Option<Vec<i32>>,
}

/// Why routing tables cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceRoutingError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// The tables contradict themselves.
    #[error(transparent)]
    Routing(#[from] RoutingError),

    /// Two tables have lengths that do not go together.
    #[error("{table} holds {found} values; {expected} go with {slots} slots and {rows} rows")]
    TableLength {
        /// The table.
        table: &'static str,
        /// Values it holds.
        found: usize,
        /// Values it should hold.
        expected: usize,
        /// Number of slots.
        slots: usize,
        /// Number of rows.
        rows: usize,
    },

    /// A tile offset is not the one that the row offsets lead to.
    #[error("slot {slot}: scales_offsets is {found}, and the row offsets lead to {expected}")]
    ScalesOffset {
        /// The slot.
        slot: usize,
        /// The value in the table.
        found: u32,
        /// The value that puts the slot's scales right after its predecessor's.
        expected: u32,
    },

    /// Ids for another number of tokens or choices than the router was made for.
    #[error("the router was built for {tokens} tokens with {top_k} experts each, got {found} ids")]
    IdsLength {
        /// Tokens.
        tokens: usize,
        /// Experts per token.
        top_k: usize,
        /// Ids given.
        found: usize,
    },

    /// The tables given for the result are not those of this router.
    #[error(
        "the tables hold {slots} slots and {rows} rows; this router makes {experts} and {assignments}"
    )]
    TablesMismatch {
        /// Slots of the tables.
        slots: usize,
        /// Rows of the tables.
        rows: usize,
        /// Experts of the router.
        experts: usize,
        /// Most rows that the router can make.
        assignments: usize,
    },
}

impl DeviceRouting {
    /// Copies a routing to a device.
    ///
    /// # Errors
    ///
    /// As [`Device::upload`].
    pub fn upload(device: &Device, routing: &Routing) -> Result<Self, DeviceError> {
        let source_rows = routing.source_rows();
        Ok(Self {
            row_offsets: device.upload(routing.row_offsets())?,
            scales_offsets: device.upload(routing.scales_offsets())?,
            expert_ids: device.upload(routing.expert_ids())?,
            source_rows: source_rows.map(|rows| device.upload(rows)).transpose()?,
            rows: routing.rows(),
            tiles_needed: routing.occupied_tiles(),
            source_rows_end: source_rows
                .map(|rows| rows.iter().max().map_or(0, |&row| row as usize + 1)),
        })
    }

    /// Wraps tables that something else made on the device, for `rows` rows.
    ///
    /// Lengths are checked here. What the tables say is not: kernels stay inside the buffers
    /// whatever it is, but only [`validate`](Self::validate) tells whether it makes sense.
    ///
    /// # Errors
    ///
    /// [`DeviceRoutingError::TableLength`], and [`RoutingError::NoExperts`] for no slot at all.
    pub fn from_buffers(
        row_offsets: DeviceBuffer<u32>,
        scales_offsets: DeviceBuffer<u32>,
        expert_ids: DeviceBuffer<i32>,
        source_rows: Option<DeviceBuffer<i32>>,
        rows: usize,
    ) -> Result<Self, DeviceRoutingError> {
        let slots = expert_ids.len();
        if slots == 0 {
            return Err(RoutingError::NoExperts.into());
        }
        if u32::try_from(rows).is_err() {
            return Err(RoutingError::TooManyRows { rows }.into());
        }
        if i32::try_from(slots).is_err() {
            return Err(RoutingError::TooManyExperts { experts: slots }.into());
        }
        let check = |table, found, expected| {
            if found == expected {
                return Ok(());
            }
            Err(DeviceRoutingError::TableLength {
                table,
                found,
                expected,
                slots,
                rows,
            })
        };
        check("row_offsets", row_offsets.len(), slots + 1)?;
        check("scales_offsets", scales_offsets.len(), slots)?;
        if let Some(source_rows) = &source_rows {
            check("source_rows", source_rows.len(), rows)?;
        }
        let device = row_offsets.device();
        device.check_same("scales_offsets", scales_offsets.device())?;
        device.check_same("expert_ids", expert_ids.device())?;
        if let Some(source_rows) = &source_rows {
            device.check_same("source_rows", source_rows.device())?;
        }
        Ok(Self {
            rows,
            tiles_needed: max_tiles(rows, slots),
            source_rows_end: None,
            row_offsets,
            scales_offsets,
            expert_ids,
            source_rows,
        })
    }

    /// Waits for the tables and checks what the offsets say. Ids and source rows need no check: those
    /// that name nothing are inactive slots and rows of zeros.
    ///
    /// # Errors
    ///
    /// The first contradiction, with its numbers.
    pub fn validate(&self) -> Result<(), DeviceRoutingError> {
        let row_offsets = self.row_offsets.download()?;
        let routing = Routing::from_row_offsets(&row_offsets, None, self.rows)?;
        let found = self.scales_offsets.download()?;
        for (slot, (&found, &expected)) in found.iter().zip(routing.scales_offsets()).enumerate() {
            if found != expected {
                return Err(DeviceRoutingError::ScalesOffset {
                    slot,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }

    /// The tables, back on the host. Waits for the device.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::download`].
    pub fn download(&self) -> Result<RoutingTables, DeviceError> {
        let row_offsets = self.row_offsets.download()?;
        let routed = row_offsets.last().map_or(0, |&end| end as usize);
        let mut source_rows = self
            .source_rows
            .as_ref()
            .map(DeviceBuffer::download)
            .transpose()?;
        if let Some(rows) = &mut source_rows {
            rows.truncate(routed);
        }
        Ok(RoutingTables {
            row_offsets,
            scales_offsets: self.scales_offsets.download()?,
            expert_ids: self.expert_ids.download()?,
            source_rows,
        })
    }

    /// Rows of the grouped order: an upper bound where the device made the tables.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.expert_ids.len()
    }

    /// Row tiles that a scales tensor must have: those occupied, or an upper bound where only the
    /// device knows.
    pub fn tiles_needed(&self) -> usize {
        self.tiles_needed
    }

    /// Whether rows are gathered, and if the host knows it, from how many input rows at the least.
    pub(crate) fn gathers(&self) -> Option<Option<usize>> {
        self.source_rows.as_ref().map(|_| self.source_rows_end)
    }

    pub(crate) fn device(&self) -> &Device {
        self.row_offsets.device()
    }
}

/// Makes routing tables on the device, from the expert ids of a top-k router.
///
/// Ids of −1 mean nobody. So do other ids outside `0..experts`: the device cannot refuse them, as
/// [`Routing::from_topk`] does on the host. Within an expert, rows are in ascending token order, on
/// every run.
#[derive(Debug)]
pub struct TopkRouter {
    tokens: usize,
    top_k: usize,
    counts: DeviceBuffer<u32>,
}

impl TopkRouter {
    /// A router for `tokens` tokens with `top_k` of `experts` experts each.
    ///
    /// # Errors
    ///
    /// No experts, or more assignments than kernels can count; a device that cannot allocate.
    pub fn new(
        device: &Device,
        tokens: usize,
        top_k: usize,
        experts: usize,
    ) -> Result<Self, DeviceRoutingError> {
        if experts == 0 {
            return Err(RoutingError::NoExperts.into());
        }
        if i32::try_from(experts).is_err() {
            return Err(RoutingError::TooManyExperts { experts }.into());
        }
        // Blocks step through the assignments in 32 bits, a block's worth at a time.
        let assignments = tokens.saturating_mul(top_k);
        if i32::try_from(assignments).is_err() {
            return Err(RoutingError::TooManyRows { rows: assignments }.into());
        }
        Ok(Self {
            tokens,
            top_k,
            counts: device.alloc(experts)?,
        })
    }

    /// Tables for [`route`](Self::route) to fill.
    ///
    /// # Errors
    ///
    /// As [`Device::alloc`].
    pub fn allocate(&self) -> Result<DeviceRouting, DeviceRoutingError> {
        let device = self.counts.device();
        let experts = self.counts.len();
        let rows = self.tokens * self.top_k;
        DeviceRouting::from_buffers(
            device.alloc_filled(experts + 1, 0)?,
            device.alloc_filled(experts, 0)?,
            device.alloc_filled(experts, 0)?,
            Some(device.alloc_filled(rows, 0)?),
            rows,
        )
    }

    /// Fills `tables` from `ids`, `[tokens, top_k]`. Neither allocates nor waits. Work on other streams
    /// that uses the tables must be ordered by [events](Stream::wait).
    ///
    /// # Errors
    ///
    /// Ids or tables of other sizes, or on another device.
    pub fn route(
        &mut self,
        stream: &Stream,
        ids: &DeviceBuffer<i32>,
        tables: &mut DeviceRouting,
    ) -> Result<(), DeviceRoutingError> {
        let device = self.counts.device();
        device.check_same("the stream", stream.device())?;
        device.check_same("the ids", ids.device())?;
        device.check_same("the tables", tables.device())?;
        let experts = self.counts.len();
        let assignments = self.tokens * self.top_k;
        if ids.len() != assignments {
            return Err(DeviceRoutingError::IdsLength {
                tokens: self.tokens,
                top_k: self.top_k,
                found: ids.len(),
            });
        }
        let Some(source_rows) = tables
            .source_rows
            .as_mut()
            .filter(|rows| rows.len() == assignments && tables.expert_ids.len() == experts)
        else {
            return Err(DeviceRoutingError::TablesMismatch {
                slots: tables.expert_ids.len(),
                rows: tables.rows,
                experts,
                assignments,
            });
        };
        let per_expert = LaunchConfig::line(experts as u64, route::THREADS, route::SHARED_BYTES)?;
        let single = LaunchConfig::line(1, route::THREADS, route::SHARED_BYTES)?;
        // What the tables say is now up to the device.
        tables.tiles_needed = max_tiles(assignments, experts);
        tables.source_rows_end = Some(self.tokens);
        // SAFETY: lengths were checked above, and the launches are those the kernels ask for.
        unsafe {
            stream.launch(
                per_expert,
                route::route_count::Args {
                    ids: ids.as_ptr(),
                    assignments: assignments as u32,
                    counts: self.counts.as_mut_ptr(),
                },
            )?;
            stream.launch(
                single,
                route::route_offsets::Args {
                    counts: self.counts.as_ptr(),
                    experts: experts as u32,
                    row_offsets: tables.row_offsets.as_mut_ptr(),
                    scales_offsets: tables.scales_offsets.as_mut_ptr(),
                    expert_ids: tables.expert_ids.as_mut_ptr(),
                },
            )?;
            if assignments > 0 {
                stream.launch(
                    per_expert,
                    route::route_place::Args {
                        ids: ids.as_ptr(),
                        assignments: assignments as u32,
                        top_k: self.top_k as u32,
                        row_offsets: tables.row_offsets.as_ptr(),
                        source_rows: source_rows.as_mut_ptr(),
                    },
                )?;
            }
        }
        Ok(())
    }
}
