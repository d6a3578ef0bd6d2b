//! Refusals of routing tables and of the device's router, by their types and numbers.

use anyhow::Result;
use tokenyard::routing::{Routing, RoutingError};
use tokenyard::{DeviceBuffer, DeviceRouting, DeviceRoutingError, TopkRouter};
use tokenyard_tests::{Context, Suite};

pub fn register(suite: &mut Suite) {
    suite.both("errors::routing_tables", routing_tables);
    suite.both("errors::validate", validate);
    suite.both("errors::router", router);
    suite.both("errors::routing", routing);
}

fn routing_tables(context: &Context) -> Result<()> {
    let device = context.device();
    let new = |offsets, scales, ids, sources: Option<usize>, rows| -> Result<_> {
        let sources = sources.map(|len| device.alloc(len)).transpose()?;
        Ok(DeviceRouting::from_buffers(
            device.alloc(offsets)?,
            device.alloc(scales)?,
            device.alloc(ids)?,
            sources,
            rows,
        ))
    };
    refused!(
        new(1, 0, 0, None, 0)?,
        DeviceRoutingError::Routing(RoutingError::NoExperts)
    );
    refused!(
        new(2, 2, 2, None, 9)?,
        DeviceRoutingError::TableLength {
            table: "row_offsets",
            found: 2,
            expected: 3,
            slots: 2,
            rows: 9
        }
    );
    refused!(
        new(3, 3, 2, None, 9)?,
        DeviceRoutingError::TableLength {
            table: "scales_offsets",
            found: 3,
            expected: 2,
            ..
        }
    );
    refused!(
        new(3, 2, 2, Some(8), 9)?,
        DeviceRoutingError::TableLength {
            table: "source_rows",
            found: 8,
            expected: 9,
            ..
        }
    );
    refused!(
        new(3, 2, 2, None, 1 << 32)?,
        DeviceRoutingError::Routing(RoutingError::TooManyRows { rows }) if *rows == 1 << 32
    );
    // SAFETY: refused for its length, and so never read.
    let ids = unsafe { DeviceBuffer::from_raw(&device, 16 as *mut i32, 1 << 31)? };
    refused!(
        DeviceRouting::from_buffers(device.alloc(1)?, device.alloc(1)?, ids, None, 0),
        DeviceRoutingError::Routing(RoutingError::TooManyExperts { experts }) if *experts == 1 << 31
    );
    Ok(())
}

/// What only the device knows is told when asked for.
fn validate(context: &Context) -> Result<()> {
    let device = context.device();
    let check = |offsets: [u32; 3], scales: [u32; 2]| -> Result<_> {
        let tables = DeviceRouting::from_buffers(
            device.upload(&offsets)?,
            device.upload(&scales)?,
            device.upload(&[0, 1])?,
            None,
            300,
        )?;
        Ok(tables.validate())
    };
    check([0, 129, 300], [0, 1])??;
    refused!(
        check([1, 129, 300], [0, 1])?,
        DeviceRoutingError::Routing(RoutingError::FirstOffset { given: 1 })
    );
    refused!(
        check([0, 129, 128], [0, 1])?,
        DeviceRoutingError::Routing(RoutingError::DecreasingOffsets {
            slot: 1,
            start: 129,
            end: 128
        })
    );
    refused!(
        check([0, 129, 301], [0, 1])?,
        DeviceRoutingError::Routing(RoutingError::LastOffset {
            given: 301,
            rows: 300
        })
    );
    refused!(
        check([0, 129, 300], [0, 0])?,
        DeviceRoutingError::ScalesOffset {
            slot: 1,
            found: 0,
            expected: 1
        }
    );
    Ok(())
}

fn router(context: &Context) -> Result<()> {
    let device = context.device();
    let stream = device.create_stream()?;
    refused!(
        TopkRouter::new(&device, 3, 1, 0),
        DeviceRoutingError::Routing(RoutingError::NoExperts)
    );
    refused!(
        TopkRouter::new(&device, 3, 1, 1 << 31),
        DeviceRoutingError::Routing(RoutingError::TooManyExperts { .. })
    );
    for (tokens, top_k) in [(1 << 20, 1 << 11), (usize::MAX, 2)] {
        refused!(
            TopkRouter::new(&device, tokens, top_k, 8),
            DeviceRoutingError::Routing(RoutingError::TooManyRows { .. })
        );
    }
    let mut router = TopkRouter::new(&device, 3, 2, 8)?;
    let mut tables = router.allocate()?;
    refused!(
        router.route(&stream, &device.alloc(5)?, &mut tables),
        DeviceRoutingError::IdsLength {
            tokens: 3,
            top_k: 2,
            found: 5
        }
    );
    let ids = device.upload(&[0; 6])?;
    for (tokens, experts) in [(4, 8), (3, 7)] {
        let mut others = TopkRouter::new(&device, tokens, 2, experts)?.allocate()?;
        refused!(
            router.route(&stream, &ids, &mut others),
            DeviceRoutingError::TablesMismatch { slots, rows, experts: 8, assignments: 6 }
                if (*slots, *rows) == (experts, 2 * tokens)
        );
    }
    let mut without_sources = DeviceRouting::from_buffers(
        device.alloc(9)?,
        device.alloc(8)?,
        device.alloc(8)?,
        None,
        6,
    )?;
    refused!(
        router.route(&stream, &ids, &mut without_sources),
        DeviceRoutingError::TablesMismatch {
            slots: 8,
            rows: 6,
            ..
        }
    );
    router.route(&stream, &ids, &mut tables)?;
    Ok(stream.synchronize()?)
}

/// What the host refuses before a device is in play.
fn routing(_: &Context) -> Result<()> {
    refused!(Routing::from_topk(&[], 0, 2, 0), RoutingError::NoExperts);
    refused!(
        Routing::from_topk(&[0, 1, 2], 2, 2, 4),
        RoutingError::IdsLength {
            tokens: 2,
            top_k: 2,
            given: 3
        }
    );
    for id in [-2, 4, i32::MAX, i32::MIN] {
        refused!(
            Routing::from_topk(&[0, -1, 1, id], 2, 2, 4),
            RoutingError::UnknownExpert { token: 1, slot: 1, id: found, experts: 4 } if *found == id
        );
    }
    refused!(
        Routing::from_row_offsets(&[0], None, 0),
        RoutingError::NoExperts
    );
    refused!(
        Routing::from_row_offsets(&[0, 1, 2], Some(&[0]), 2),
        RoutingError::ExpertIdsLength { slots: 2, given: 1 }
    );
    Ok(())
}
