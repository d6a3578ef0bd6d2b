//! A case on one device or on several: checked, and timed.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tokenyard::ep::{EpGroup, Received};
use tokenyard::reference::ep::ExpectedRows;
use tokenyard::{Device, DeviceBuffer, Event, baseline};

use super::cases::{Case, RankInput};
use super::check::Reference;
use super::member::{Graphs, Member, Mode};

/// Rounds in a graph: what surrounds a replay, and that GPUs do not begin together, hardly counts.
const ROUNDS: usize = 20;

/// The same where a round takes long enough to hide that.
const LONG_ROUNDS: usize = 5;

/// Tokens of a device from which on rounds are long.
const LONG_TOKENS: usize = 4096;

/// Combines that are timed one by one in a sample.
const SINGLE_COMBINES: usize = 4;

/// Bytes of the copy that says what is attainable.
const COPY_BYTES: usize = 256 << 20;

/// Microseconds of a round, or of a half of it, in one mode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModeSamples {
    /// Dispatches after each other.
    pub dispatch: Vec<f64>,
    /// Dispatches and combines after each other, both together. As many as there are of dispatches, taken in turn.
    pub round_trip: Vec<f64>,
    /// Single combines, between two events.
    pub combine: Vec<f64>,
}

/// Microseconds of a case: of the slowest device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// One launch for everything.
    pub fused: ModeSamples,
    /// Two launches.
    pub split: ModeSamples,
    /// Rounds in a sample of dispatches or round trips.
    pub rounds_per_sample: usize,
}

impl Samples {
    /// Of the same samples on several devices, each that of the slowest. `None` without devices.
    ///
    /// # Errors
    /// Devices with different numbers of samples.
    pub fn slowest(devices: Vec<Self>) -> Result<Option<Self>> {
        let mut devices = devices.into_iter();
        let Some(mut slowest) = devices.next() else {
            return Ok(None);
        };
        for device in devices {
            for mode in Mode::ALL {
                let other = device.of(mode);
                let own = slowest.of_mut(mode);
                for (own, other) in [
                    (&mut own.dispatch, &other.dispatch),
                    (&mut own.round_trip, &other.round_trip),
                    (&mut own.combine, &other.combine),
                ] {
                    let (ours, theirs) = (own.len(), other.len());
                    ensure!(
                        ours == theirs,
                        "{ours} samples of one device, {theirs} of another"
                    );
                    for (own, other) in own.iter_mut().zip(other) {
                        *own = own.max(*other);
                    }
                }
            }
        }
        Ok(Some(slowest))
    }

    /// Those of a mode.
    pub fn of(&self, mode: Mode) -> &ModeSamples {
        match mode {
            Mode::Fused => &self.fused,
            Mode::Split => &self.split,
        }
    }

    fn of_mut(&mut self, mode: Mode) -> &mut ModeSamples {
        match mode {
            Mode::Fused => &mut self.fused,
            Mode::Split => &mut self.split,
        }
    }
}

/// A case on the devices of this process.
pub struct Bench<'a> {
    members: Vec<Member>,
    /// What each rank of each member receives.
    received: Vec<Vec<Received>>,
    /// The rows that it must.
    expected: Vec<Vec<ExpectedRows>>,
    reference: &'a Reference<'a>,
    rounds: usize,
}

impl<'a> Bench<'a> {
    /// Puts a case on the devices of `groups`: all of a group's members, or that of this process.
    ///
    /// # Errors
    /// Devices that cannot.
    pub fn new(
        groups: Vec<EpGroup>,
        case: &Case,
        inputs: &[RankInput],
        reference: &'a Reference<'a>,
    ) -> Result<Self> {
        let (factor, mut ranks) = (case.setup().global_factor, 0);
        let (mut members, mut received, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for group in groups {
            ranks = ranks.max(group.ranks().len());
            let mut member = Member::new(group, inputs, factor)?;
            let rows = member.numbers().into_iter().enumerate();
            let rows = rows.map(|(index, number)| {
                let rows = reference.rows(number)?;
                fill_outputs(&mut member, index, rows.rows(), reference)?;
                Ok(rows)
            });
            expected.push(rows.collect::<Result<Vec<_>>>()?);
            received.push(member.allocate_received()?);
            members.push(member);
        }
        Ok(Self {
            members,
            received,
            expected,
            reference,
            rounds: match case.tokens * ranks < LONG_TOKENS {
                true => ROUNDS,
                false => LONG_ROUNDS,
            },
        })
    }

    /// A round trip in each mode, held to the reference.
    ///
    /// # Errors
    /// A device that fails, or the first difference.
    pub fn check(&mut self) -> Result<()> {
        for mode in Mode::ALL {
            self.check_mode(mode)
                .with_context(|| format!("{mode:?}").to_lowercase())?;
        }
        Ok(())
    }

    fn check_mode(&mut self, mode: Mode) -> Result<()> {
        let Self {
            members,
            received,
            expected,
            reference,
            ..
        } = self;
        for (member, received) in members.iter_mut().zip(received.iter_mut()) {
            // As BF16 it is NaN.
            member.fill_combined(0xFF)?;
            for received in received {
                received.fill(0)?;
            }
        }
        let mut dispatched = Vec::new();
        for (member, received) in members.iter_mut().zip(received.iter_mut()) {
            dispatched.push(member.dispatch(mode, received)?);
        }
        for ((member, handles), expected) in members.iter_mut().zip(&dispatched).zip(&*expected) {
            member.group.check()?;
            let ranks = handles.received().into_iter().zip(expected).enumerate();
            for (index, (received, expected)) in ranks {
                let src_info = received.src_info().download()?;
                let check = || reference.check_received(expected, received);
                check()
                    .and_then(|()| reference.write_outputs(member, index, expected, &src_info))
                    .with_context(|| format!("dispatch, rank {}", expected.rank))?;
            }
        }
        for (member, handles) in members.iter_mut().zip(dispatched) {
            member.combine(handles)?;
        }
        for member in &*members {
            member.group.check()?;
            for (index, number) in member.numbers().into_iter().enumerate() {
                reference
                    .check_combined(member, index)
                    .with_context(|| format!("combine, rank {number}"))?;
            }
        }
        Ok(())
    }

    /// Times both modes in turn, `samples` times.
    ///
    /// # Errors
    /// A device that fails.
    pub fn measure(&mut self, samples: usize) -> Result<Samples> {
        let mut modes = Vec::new();
        for mode in Mode::ALL {
            let members = self.members.iter_mut().zip(&mut self.received);
            let graphs = members
                .map(|(member, received)| member.record(mode, self.rounds, received))
                .collect::<Result<Vec<_>>>()?;
            modes.push((mode, graphs));
        }
        let mut times = Samples {
            rounds_per_sample: self.rounds,
            ..Samples::default()
        };
        // The first replay of each graph also uploads it, and does not count.
        for sample in 0..=samples {
            for (mode, graphs) in &modes {
                let dispatches = self.replay(graphs, |graphs| &graphs.dispatches)?;
                let round_trips = self.replay(graphs, |graphs| &graphs.round_trips)?;
                let combines = self.single_combines(graphs)?;
                if sample > 0 {
                    let times = times.of_mut(*mode);
                    times.dispatch.push(dispatches / self.rounds as f64);
                    times.round_trip.push(round_trips / self.rounds as f64);
                    times.combine.extend(combines);
                }
            }
        }
        for member in &self.members {
            member.group.check()?;
        }
        Ok(times)
    }

    /// Microseconds of one replay.
    fn replay(
        &self,
        graphs: &[Graphs],
        graph: impl Fn(&Graphs) -> &tokenyard::Graph,
    ) -> Result<f64> {
        let mut spans = Vec::new();
        for (member, graphs) in self.members.iter().zip(graphs) {
            begin_together(member, graphs)?;
            let start = member.stream.record()?;
            // SAFETY: as in `begin_together`.
            unsafe { graph(graphs).launch(&member.stream)? };
            spans.push([start, member.stream.record()?]);
        }
        slowest(&spans)
    }

    /// Microseconds of combines, each from the event behind its dispatch to the one behind itself.
    fn single_combines(&self, graphs: &[Graphs]) -> Result<Vec<f64>> {
        let mut spans: [Vec<[Event; 2]>; SINGLE_COMBINES] = Default::default();
        for (member, graphs) in self.members.iter().zip(graphs) {
            begin_together(member, graphs)?;
            for spans in &mut spans {
                // SAFETY: as in `begin_together`.
                unsafe { graphs.dispatch.launch(&member.stream)? };
                let start = member.stream.record()?;
                // SAFETY: as above.
                unsafe { graphs.combine.launch(&member.stream)? };
                spans.push([start, member.stream.record()?]);
            }
        }
        spans.iter().map(|spans| slowest(spans)).collect()
    }
}

/// Queues a round trip that is not timed. No device is done with it before all have begun; and while it lasts, the host
/// queues what is timed, so that devices neither begin at different times nor wait for the host.
fn begin_together(member: &Member, graphs: &Graphs) -> Result<()> {
    for graph in [&graphs.dispatch, &graphs.combine] {
        // SAFETY: the graphs refer to buffers of the member and what it receives, which live until its stream has been
        // waited for, and which nothing else uses.
        unsafe { graph.launch(&member.stream)? };
    }
    Ok(())
}

/// Microseconds of the longest span. Waits for the devices.
fn slowest(spans: &[[Event; 2]]) -> Result<f64> {
    let mut slowest = 0.0_f64;
    for [start, end] in spans {
        slowest = slowest.max(1e3 * f64::from(end.elapsed_ms(start)?));
    }
    Ok(slowest)
}

/// Puts numbers into the rows that a rank will send home.
fn fill_outputs(
    member: &mut Member,
    index: usize,
    rows: usize,
    reference: &Reference<'_>,
) -> Result<()> {
    let hidden_size = member.group.config().hidden_size();
    let filling = reference.experts.filling();
    let step = filling.len() / hidden_size;
    for first in (0..rows).step_by(step) {
        let count = step.min(rows - first);
        member.write_outputs(index, first, &filling[..count * hidden_size])?;
    }
    Ok(())
}

/// The rate of a plain copy from each device to the next one, all at a time, in bytes a second of the slowest:
/// what the path allows a kernel. With one device it is a copy within its memory.
///
/// # Errors
/// Devices that cannot.
pub fn copy_rate(devices: &[Device], samples: usize) -> Result<f64> {
    let words = COPY_BYTES / 16;
    let mut places = Vec::new();
    for device in devices {
        let from = device.alloc_filled::<[u32; 4]>(words, 1)?;
        let to = device.alloc_filled::<[u32; 4]>(words, 0)?;
        places.push((device, device.create_stream()?, from, to));
    }
    let mut best = 0.0_f64;
    for _ in 0..samples.max(2) {
        let mut spans = Vec::new();
        for (index, (device, stream, from, _)) in places.iter().enumerate() {
            let (next, .., to) = &places[(index + 1) % places.len()];
            device.reach(next)?;
            // SAFETY: it is written by this copy alone, which is waited for below, and lives longer.
            let mut to = unsafe { DeviceBuffer::from_raw(device, to.as_ptr().cast_mut(), words)? };
            let start = stream.record()?;
            baseline::copy(stream, from, &mut to)?;
            spans.push([start, stream.record()?]);
        }
        best = best.max(COPY_BYTES as f64 / slowest(&spans)? * 1e6);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::super::cases::cases;
    use super::super::cases::tests::EXTENTS;
    use super::*;
    use tokenyard::EmulatorOptions;
    use tokenyard::ep::{CombineFormat, TokenFormat};

    #[test]
    fn the_slowest_device_makes_a_sample() {
        let samples = |times: [f64; 2]| Samples {
            fused: ModeSamples {
                dispatch: times.to_vec(),
                ..ModeSamples::default()
            },
            ..Samples::default()
        };
        let slowest = Samples::slowest(vec![samples([1.0, 4.0]), samples([3.0, 2.0])]).unwrap();
        assert_eq!(slowest.unwrap().fused.dispatch, [3.0, 4.0]);
        assert_eq!(Samples::slowest(Vec::new()).unwrap(), None);
        let unequal = vec![samples([1.0, 2.0]), Samples::default()];
        assert!(Samples::slowest(unequal).is_err());
    }

    /// Every graph runs, in the order in which they are timed, and what they leave is as right as before.
    #[test]
    fn what_is_timed_is_what_was_checked() {
        let cases = cases(
            &[TokenFormat::Nvfp4],
            &[CombineFormat::Mxfp8],
            &[3],
            EXTENTS,
        );
        let case = &cases[0];
        let inputs = case.inputs().unwrap();
        let reference = Reference::new(case, &inputs).unwrap();
        for count in [1, 2] {
            let devices = Device::emulated_node(count, EmulatorOptions::default());
            let groups = match &*devices {
                [device] => vec![EpGroup::new(device, case.config().unwrap()).unwrap()],
                devices => EpGroup::across(devices, case.config().unwrap()).unwrap(),
            };
            let mut bench = Bench::new(groups, case, &inputs, &reference).unwrap();
            bench.check().unwrap();
            let samples = bench.measure(2).unwrap();
            for mode in Mode::ALL {
                let ModeSamples {
                    dispatch,
                    round_trip,
                    combine,
                } = samples.of(mode);
                assert_eq!((dispatch.len(), round_trip.len()), (2, 2));
                assert_eq!(combine.len(), 2 * SINGLE_COMBINES);
                let times = dispatch.iter().chain(round_trip).chain(combine);
                assert!(times.clone().all(|&time| time > 0.0), "{samples:?}");
            }
            bench.check().unwrap();
        }
    }
}
