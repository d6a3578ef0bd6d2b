//! Faults planted in the emulated kernels, one at a time: every one is found, by the same comparison of the
//! same kind of case that the rest of the suite consists of; and without a fault there is nothing to find.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokenyard::ep::{EpConfig, Fault, TokenFormat};
use tokenyard::reference::ep::{MessageParts, Setup};
use tokenyard_tests::ep::{EpCase, Mode, Traffic, World};
use tokenyard_tests::{Context, Suite};

use super::small;

pub fn register(suite: &mut Suite) {
    for fault in Fault::DISPATCH {
        suite.emulator(&format!("ep::faults::{fault:?}"), move |context| {
            is_found(context, fault)
        });
    }
    suite.emulator("ep::faults::without", without);
    suite.host("ep::faults::message_extents", || {
        message_extents().map(|()| None)
    });
}

/// A case in which the fault can show. Waits are short, as some faults leave nothing to wait for.
fn case(fault: Fault) -> EpCase {
    let traffic = match fault {
        Fault::SharedRowsOfRoutedTokens => Traffic::Holes,
        Fault::RepeatedIdsCount => Traffic::Hostile,
        Fault::OutputsWithoutPadding => Traffic::Same(0),
        _ => Traffic::Uniform,
    };
    let format = match fault {
        Fault::UnpaddedGroups | Fault::OutputsWithoutPadding => TokenFormat::Fp8Block128,
        Fault::TileEndsNotCleared => TokenFormat::Nvfp4,
        _ => TokenFormat::Mxfp4,
    };
    let mut setup = small(format, 3);
    match fault {
        Fault::SharedRowsOfRoutedTokens => setup.fused_shared_expert = true,
        // Every rank sends all it can, so that more room is needed for nothing but padding.
        Fault::OutputsWithoutPadding => setup.top_k = setup.experts,
        // The receive buffer is larger than the offsets reach.
        Fault::NarrowOffsets => setup.hidden_size = 512,
        _ => {}
    }
    let mut case = EpCase::new(setup, &[5, 5, 5], traffic, 70);
    case.deadline = Some(Duration::from_millis(20));
    case
}

/// Two rounds in every mode and schedule, as the suite checks them, until something is found.
fn first_finding(context: &Context, case: &EpCase, config: &EpConfig) -> Result<Option<String>> {
    for (label, device) in context.replays() {
        for &mode in Mode::of(case) {
            let run = || {
                let mut world = World::with_config(&device, case, config.clone())?;
                world.check_round(case, mode)?;
                world.check_round(case, mode)
            };
            if let Err(error) = run() {
                return Ok(Some(format!("{label}; {mode:?}: {error:#}")));
            }
        }
    }
    Ok(None)
}

fn is_found(context: &Context, fault: Fault) -> Result<()> {
    let case = case(fault);
    let config = case.builder().plant(fault).build()?;
    let found = first_finding(context, &case, &config)?;
    let found = found.with_context(|| format!("was planted, and nothing found it: {case}"))?;
    // What finds it is a comparison, a fault of the emulator or a deadline, and not a refusal of the call.
    for refusal in ["group was made for", "group of another shape"] {
        ensure!(!found.contains(refusal), "{found}");
    }
    Ok(())
}

/// The same cases without faults.
fn without(context: &Context) -> Result<()> {
    for fault in Fault::DISPATCH {
        let case = case(fault);
        for (label, device) in context.replays().into_iter().take(6) {
            for &mode in Mode::of(&case) {
                let mut world = World::new(&device, &case)?;
                let mut run = || {
                    world.check_round(&case, mode)?;
                    world.check_round(&case, mode)
                };
                run().with_context(|| format!("{label}: {case}; {mode:?}"))?;
            }
        }
    }
    Ok(())
}

/// The library's extents of a message are those of the definition. A payload that is reserved as if FP4
/// elements were bytes, as has been shipped, would be seen.
fn message_extents() -> Result<()> {
    let differs = |parts: MessageParts, bytes: u32, scales_offset: u32| {
        parts.bytes as u32 != bytes || parts.scales_offset as u32 != scales_offset
    };
    for format in TokenFormat::ALL {
        for (times, top_k) in [(1, 1), (2, 8), (3, 9), (45, 32)] {
            let hidden_size = times * format.hidden_multiple();
            let setup = Setup {
                experts: 32,
                top_k,
                ..Setup::new(format, hidden_size, 1)
            };
            let config = EpCase::new(setup, &[0], Traffic::Uniform, 71).config()?;
            let layout = config.message_layout();
            let parts = MessageParts::new(format, hidden_size, top_k);
            ensure!(
                !differs(parts, layout.bytes, layout.scales_offset)
                    && parts.source_offset as u32 == layout.source_offset
                    && parts.topk_offset as u32 == layout.topk_offset,
                "{format}, H = {hidden_size}, K = {top_k}: {layout:?}, not {parts:?}"
            );
            let as_bytes = hidden_size as u32 - parts.payload_bytes.min(hidden_size) as u32;
            if as_bytes > 0 {
                let (bytes, offset) = (layout.bytes + as_bytes, layout.scales_offset + as_bytes);
                if !differs(parts, bytes, offset) {
                    bail!("{format}: a payload of H bytes was not seen");
                }
            }
        }
    }
    Ok(())
}
