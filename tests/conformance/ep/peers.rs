//! Several devices, and several processes: this program again, told by its environment which rank it is.

use std::env;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tokenyard::ep::{CombineFormat, EpError, EpGroup, TokenFormat};
use tokenyard::options::InputType;
use tokenyard::peer::{PeerError, PeerMemory, Rendezvous, Sharing};
use tokenyard::{Device, DeviceError, EmulatorOptions};
use tokenyard_tests::ep::{DeviceInput, DeviceReturns, EpCase, Mode, Returns, Traffic, World};
use tokenyard_tests::{Context, Suite};

use super::small;

pub fn register(suite: &mut Suite) {
    suite.both_alone("ep::peers::across_devices", across_devices);
    suite.both("ep::peers::memory", memory);
    suite.both_alone("ep::peers::processes", processes);
    suite.both_alone("ep::peers::death", death);
}

/// Devices that reach each other. One GPU counts twice.
fn devices(context: &Context, count: usize) -> Result<Vec<Device>> {
    if context.device().is_emulator() {
        let mut options = EmulatorOptions::default();
        options.seed = context.settings.first_seed;
        return Ok(Device::emulated_node(count, options));
    }
    let gpus = gpus()?;
    let ordinals = (0..count as u32).map(|index| index % gpus);
    Ok(ordinals.map(Device::cuda).collect::<Result<_, _>>()?)
}

/// GPUs of this machine.
fn gpus() -> Result<u32> {
    match Device::cuda(u32::MAX) {
        Err(DeviceError::NoSuchGpu { count, .. }) => Ok(count.max(1)),
        Err(error) => Err(error.into()),
        Ok(_) => bail!("there is a GPU {}", u32::MAX),
    }
}

/// Whether every one of `count` ranks has a GPU of its own; emulated devices always do.
fn apart(context: &Context, count: usize) -> Result<bool> {
    Ok(context.device().is_emulator() || gpus()? as usize >= count)
}

/// Every format for the way out, with one for the way back that its smallest hidden size allows.
fn formats() -> impl Iterator<Item = (TokenFormat, CombineFormat)> {
    TokenFormat::ALL.into_iter().zip(CombineFormat::ALL)
}

/// Two devices, four, and eight, as far as there are so many, two ranks each: every format, split and fused, dispatches
/// and round trips after each other, the host between rounds alone.
fn across_devices(context: &Context) -> Result<()> {
    let most = match context.device().is_emulator() {
        true => 4,
        false => gpus()? as usize,
    };
    let counts = [2, 4, 8].into_iter().filter(|&count| count <= most.max(2));
    for count in counts {
        for (format, combine) in formats() {
            let run = || across(context, count, format, combine);
            run().with_context(|| format!("{count} devices"))?;
        }
    }
    Ok(())
}

fn across(
    context: &Context,
    count: usize,
    format: TokenFormat,
    combine: CombineFormat,
) -> Result<()> {
    let random = &mut Rng::with_seed(31);
    let full = vec![5; 2 * count];
    let case = EpCase::new(small(format, 2 * count), &full, Traffic::Uniform, 31);
    let mut case = case.side_by_side(&context.device());
    case.combine = Some(combine);
    let devices = devices(context, count)?;
    let members = EpGroup::across_with(&devices, case.config()?, case.launch)?;
    let mut members: Vec<World> = members.into_iter().map(World::of).collect::<Result<_>>()?;
    let modes: &[Mode] = match apart(context, count)? {
        true => &[Mode::Split, Mode::Fused, Mode::FusedThenSplit],
        // Of two cooperative launches on one GPU, one may wait for the end of the other.
        false => &[Mode::Split],
    };
    for round in 0..context.pick(60, 6) {
        let mode = modes[round / 2 % modes.len()];
        let counts: Vec<usize> = full.iter().map(|&most| random.usize(..=most)).collect();
        case.refill(&counts, Traffic::ALL[round % Traffic::ALL.len()], random);
        let returns = match round % 2 {
            0 => None,
            _ => Some(Returns::random(&case, Some(InputType::F32), random)?),
        };
        let mut run = || match &returns {
            None => dispatch_across(&mut members, &case, mode),
            Some(returns) => round_trip_across(&mut members, &case, mode, returns),
        };
        run().with_context(|| format!("round {round}, {mode:?}: {case}"))?;
    }
    Ok(())
}

fn dispatch_across(members: &mut [World], case: &EpCase, mode: Mode) -> Result<()> {
    let mut inputs = Vec::new();
    for member in members.iter_mut() {
        inputs.push(member.prepare(case)?);
    }
    for (member, inputs) in members.iter_mut().zip(&inputs) {
        member.queue(inputs, mode)?;
    }
    for member in members {
        member.compare_round(case)?;
        member.check_counters()?;
    }
    Ok(())
}

fn round_trip_across(
    members: &mut [World],
    case: &EpCase,
    mode: Mode,
    returns: &Returns,
) -> Result<()> {
    let mut operands = Vec::new();
    for member in members.iter_mut() {
        operands.push((member.prepare(case)?, own_returns(member, case, returns)?));
    }
    for (member, (inputs, returns)) in members.iter_mut().zip(&mut operands) {
        let batches: Vec<_> = inputs.iter().map(DeviceInput::batch).collect();
        member.queue_round_trip(&batches, mode, returns)?;
    }
    let (mut sources, mut found) = (Vec::new(), Vec::new());
    for (member, (_, returns)) in members.iter().zip(&operands) {
        member.group.check()?;
        sources.extend(member.sources()?);
        found.extend(returns.download()?);
    }
    returns.check(case, &sources, COMBINED_BEFORE, &found)?;
    members.iter().try_for_each(World::check_combined)
}

/// What combined tokens are written over.
const COMBINED_BEFORE: u8 = 0x9D;

/// The part of what experts made that a member's ranks send home.
fn own_returns(member: &World, case: &EpCase, returns: &Returns) -> Result<DeviceReturns> {
    let ranks = member.group.ranks();
    let first = ranks.first().map_or(0, |rank| rank.number());
    let own = first..first + ranks.len();
    returns.upload_ranks(case, member.group.device(), COMBINED_BEFORE, own)
}

/// What one device writes, another one reads: the same bytes, by another address.
fn memory(context: &Context) -> Result<()> {
    let (writer, reader) = (context.device(), devices(context, 2)?.remove(1));
    for megabytes in [1, 3, 64] {
        let words = megabytes << 18;
        let (memory, ticket) = PeerMemory::allocate(&writer, 4 * words, Sharing::Descriptor)?;
        ensure!(memory.bytes() >= 4 * words && ticket.bytes() == memory.bytes());
        let opened = PeerMemory::open(&reader, &ticket)?;
        drop(ticket);
        // SAFETY: both live to the end of the round, and nothing else uses them.
        let (mut written, read) =
            unsafe { (memory.buffer::<u32>(words)?, opened.buffer::<u32>(words)?) };
        let values: Vec<u32> = (0..words as u32)
            .map(|word| word.wrapping_mul(0x9e37_79b9))
            .collect();
        written.upload_from(&values)?;
        ensure!(read.download()? == values, "{megabytes} MiB differ");
        // The memory stays as long as anybody has it.
        drop(memory);
        ensure!(
            read.download()? == values,
            "{megabytes} MiB differ after their owner is gone"
        );
    }
    if writer.is_emulator() {
        let refused = PeerMemory::allocate(&writer, 1, Sharing::LegacyIpc);
        refused!(refused, PeerError::Sharing { .. });
    }
    Ok(())
}

/// What a process is to do.
#[derive(Serialize, Deserialize)]
struct Orders {
    path: String,
    rank: usize,
    ranks: usize,
    /// Which GPU; none for the emulator.
    gpu: Option<u32>,
    legacy: bool,
    /// Whether each has a device of its own. Processes that take turns on a GPU do not wait for each other in one
    /// launch.
    apart: bool,
    rounds: usize,
    /// The round before which rank 1 dies.
    death: Option<usize>,
}

/// Holds the [`Orders`] of a process.
const CHILD: &str = "TOKENYARD_PEER_CHILD";

/// How long kernels wait for each other: far longer than a slice of a GPU that processes take turns on.
const DEADLINE: Duration = Duration::from_secs(5);

/// In a child process: takes part as a rank, and reports by the exit status.
pub fn run_as_child() -> Option<ExitCode> {
    let orders = env::var(CHILD).ok()?;
    let run = || take_part(&serde_json::from_str(&orders).context("orders")?);
    Some(match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

fn take_part(orders: &Orders) -> Result<()> {
    let device = match orders.gpu {
        Some(ordinal) => Device::cuda(ordinal)?,
        None => Device::emulator(orders.rank as u64),
    };
    let dispatches = [
        TokenFormat::Mxfp4,
        TokenFormat::Fp8Block128,
        TokenFormat::Bf16,
    ];
    let dispatches = dispatches.into_iter().map(|format| (format, None));
    let round_trips = formats().map(|(format, combine)| (format, Some(combine)));
    for (format, combine) in dispatches.chain(round_trips) {
        rounds_of(orders, &device, format, combine)?;
        if orders.death.is_some() {
            break;
        }
    }
    Ok(())
}

/// Rounds of a group of processes: dispatches, or round trips. Of the latter, rows are in the order of tokens, so that
/// each process knows where the others have them.
fn rounds_of(
    orders: &Orders,
    device: &Device,
    format: TokenFormat,
    combine: Option<CombineFormat>,
) -> Result<()> {
    // All processes draw the same.
    let random = &mut Rng::with_seed(32);
    let full = vec![5; orders.ranks];
    let mut case = EpCase::new(small(format, orders.ranks), &full, Traffic::Uniform, 32);
    case.deadline = Some(DEADLINE);
    case.combine = combine;
    if combine.is_some() {
        case = case.deterministic();
    }
    let mut case = case.side_by_side(device);
    let meeting = Rendezvous::new(Path::new(&orders.path), orders.rank, orders.ranks)?;
    let sharing = match orders.legacy {
        true => Sharing::LegacyIpc,
        false => PeerMemory::sharing(device)?,
    };
    let group = EpGroup::join_with(device, case.config()?, &meeting, sharing, case.launch)?;
    let mut world = World::of(group)?;
    let modes: &[Mode] = match orders.apart {
        true => &[Mode::Split, Mode::Fused],
        false => &[Mode::Split],
    };
    for round in 0..orders.rounds {
        let mode = modes[round % modes.len()];
        let counts: Vec<usize> = full.iter().map(|&most| random.usize(..=most)).collect();
        case.refill(&counts, Traffic::ALL[round % Traffic::ALL.len()], random);
        if orders.death == Some(round) {
            if orders.rank == 1 {
                std::process::abort();
            }
            return outlive(&mut world, &case);
        }
        let returns = match combine {
            Some(_) => Some(Returns::random(&case, Some(InputType::F32), random)?),
            None => None,
        };
        let mut run = || match &returns {
            Some(returns) => round_trip_of_process(&mut world, &case, mode, returns),
            None => {
                let inputs = world.prepare(&case)?;
                world.queue(&inputs, mode)?;
                world.compare_round(&case)
            }
        };
        run().with_context(|| format!("round {round}, {mode:?}: {case}"))?;
    }
    Ok(())
}

fn round_trip_of_process(
    world: &mut World,
    case: &EpCase,
    mode: Mode,
    returns: &Returns,
) -> Result<()> {
    let inputs = world.prepare(case)?;
    let batches: Vec<_> = inputs.iter().map(DeviceInput::batch).collect();
    let mut own = own_returns(world, case, returns)?;
    world.queue_round_trip(&batches, mode, &mut own)?;
    world.group.check()?;
    let rank = world.group.ranks()[0].number();
    let sources = case.ordered_sources()?;
    returns.check_ranks(case, &sources, COMBINED_BEFORE, rank, &own.download()?)
}

/// The round in which rank 1 is missing.
fn outlive(world: &mut World, case: &EpCase) -> Result<()> {
    let start = Instant::now();
    let Err(error) = world.dispatch(case, Mode::Split) else {
        bail!("a round without rank 1 was accepted");
    };
    let elapsed = start.elapsed();
    ensure!(
        elapsed < 3 * DEADLINE,
        "it took {elapsed:?} to see that rank 1 is gone"
    );
    match error {
        // Whichever is seen first: that the process is gone, or that nothing comes from it.
        EpError::Peer(PeerError::Gone { rank: 1 }) | EpError::PeerGone { rank: 1, .. } => Ok(()),
        other => bail!("{other:?}"),
    }
}

/// Ranks that are processes, killed if the case ends before them.
struct Processes(Vec<Child>);

impl Processes {
    fn start(orders: impl Fn(usize) -> Result<Orders>, ranks: usize) -> Result<Self> {
        let program = env::current_exe().context("where this program is")?;
        let mut processes = Self(Vec::new());
        for rank in 0..ranks {
            let child = Command::new(&program)
                .env(CHILD, serde_json::to_string(&orders(rank)?)?)
                .stdin(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()?;
            processes.0.push(child);
        }
        Ok(processes)
    }

    /// Every rank's end but that of `victim` must be a good one.
    fn finish(mut self, victim: Option<usize>) -> Result<()> {
        // Of all of them: the first to fail takes the others along.
        let mut complaints = Vec::new();
        for (rank, child) in std::mem::take(&mut self.0).into_iter().enumerate() {
            let output = child.wait_with_output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            if output.status.success() == (victim == Some(rank)) {
                complaints.push(format!("rank {rank}: {}: {}", output.status, said.trim()));
            }
        }
        ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn run_processes(
    context: &Context,
    ranks: usize,
    legacy: bool,
    death: Option<usize>,
) -> Result<()> {
    let emulated = context.device().is_emulator();
    let name = format!(
        "tokenyard-{}-{ranks}-{legacy}-{death:?}",
        std::process::id()
    );
    let path = env::temp_dir().join(name);
    let orders = |rank: usize| {
        Ok(Orders {
            path: path.to_string_lossy().into_owned(),
            rank,
            ranks,
            gpu: match emulated {
                true => None,
                false => Some(rank as u32 % gpus()?),
            },
            legacy,
            apart: apart(context, ranks)?,
            rounds: context.pick(24, 8),
            death,
        })
    };
    Processes::start(orders, ranks)?.finish(death.map(|_| 1))?;
    ensure!(!path.exists(), "{} was left behind", path.display());
    Ok(())
}

/// Processes with a GPU each, or in turns on the same; by both ways to share memory.
fn processes(context: &Context) -> Result<()> {
    run_processes(context, 2, false, None)?;
    if context.device().is_emulator() {
        return run_processes(context, 3, false, None);
    }
    run_processes(context, 2, true, None)?;
    match gpus()? {
        1 | 2 => Ok(()),
        more => {
            let all = 8.min(more as usize);
            run_processes(context, all, false, None)?;
            run_processes(context, all, true, None)
        }
    }
}

/// A process that dies between two rounds.
fn death(context: &Context) -> Result<()> {
    run_processes(context, 2, false, Some(3))
}
