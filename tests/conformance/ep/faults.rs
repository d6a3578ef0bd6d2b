//! Faults planted in the emulated kernels, one at a time: every one is found, by the same comparison of the
//! same kind of case that the rest of the suite consists of; and without a fault there is nothing to find.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use tokenyard::Device;
use tokenyard::ep::{CombineFormat, EpConfig, Fault, TokenFormat};
use tokenyard::options::InputType;
use tokenyard::reference::ep::{MessageParts, Setup};
use tokenyard_tests::ep::{EpCase, Mode, Returns, Traffic, World};
use tokenyard_tests::{Context, Suite};

use super::small;

pub fn register(suite: &mut Suite) {
    for fault in Fault::DISPATCH {
        suite.emulator(&format!("ep::faults::{fault:?}"), move |context| {
            is_found(context, fault)
        });
    }
    for fault in Fault::COMBINE {
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

/// A case in which a fault of combine can show, with positions that have no expert in the second round alone.
fn round_trips(fault: Fault) -> [EpCase; 2] {
    let mut setup = Setup {
        hidden_size: 64,
        ..small(TokenFormat::Bf16, 3)
    };
    // The combine buffer is larger than the offsets reach.
    if fault == Fault::NarrowReturnOffsets {
        setup.hidden_size = 512;
    }
    [Traffic::Uniform, Traffic::Holes].map(|traffic| {
        let mut case = EpCase::new(setup.clone(), &[5, 5, 5], traffic, 72);
        case.deadline = Some(Duration::from_millis(20));
        // Sums that are not rounded once more show the order that they were made in.
        case.combine = Some(CombineFormat::F32);
        case
    })
}

/// Two rounds in one mode, as the suite checks them. `plant` makes a configuration of a case.
fn two_rounds(
    device: &Device,
    fault: Fault,
    mode: Mode,
    plant: impl Fn(&EpCase) -> Result<EpConfig>,
) -> Result<()> {
    if !Fault::COMBINE.contains(&fault) {
        let case = case(fault);
        let mut world = World::with_config(device, &case, plant(&case)?)?;
        world.check_round(&case, mode)?;
        return world.check_round(&case, mode);
    }
    let cases = round_trips(fault);
    let mut world = World::with_config(device, &cases[0], plant(&cases[0])?)?;
    for case in &cases {
        let returns = Returns::random(case, Some(InputType::F32), &mut Rng::with_seed(73))?;
        world.check_round_trip(case, mode, &returns)?;
    }
    Ok(())
}

/// The modes in which a fault can show.
fn modes(fault: Fault) -> &'static [Mode] {
    match Fault::COMBINE.contains(&fault) {
        true => &Mode::ALL,
        false => Mode::of(&case(fault)),
    }
}

/// Two rounds in every mode and schedule, until something is found.
fn first_finding(context: &Context, fault: Fault) -> Option<String> {
    for (label, device) in context.replays() {
        for &mode in modes(fault) {
            let plant = |case: &EpCase| Ok(case.builder().plant(fault).build()?);
            if let Err(error) = two_rounds(&device, fault, mode, plant) {
                return Some(format!("{label}; {mode:?}: {error:#}"));
            }
        }
    }
    None
}

fn is_found(context: &Context, fault: Fault) -> Result<()> {
    let found = first_finding(context, fault).context("was planted, and nothing found it")?;
    // What finds it is a comparison, a fault of the emulator or a deadline, and not a refusal of the call.
    for refusal in ["group was made for", "group of another shape"] {
        ensure!(!found.contains(refusal), "{found}");
    }
    Ok(())
}

/// The same cases without faults.
fn without(context: &Context) -> Result<()> {
    for fault in Fault::DISPATCH.into_iter().chain(Fault::COMBINE) {
        for (label, device) in context.replays().into_iter().take(6) {
            for &mode in modes(fault) {
                two_rounds(&device, fault, mode, |case| Ok(case.config()?))
                    .with_context(|| format!("{label}: the case of {fault:?}; {mode:?}"))?;
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
