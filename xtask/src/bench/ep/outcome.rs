//! What became of a case where it ran.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use tokenyard::ep::{EpError, EpGroup};
use tokenyard::peer::Rendezvous;
use tokenyard::{Device, DeviceError};

use super::cases::Case;
use super::check::Reference;
use super::measure::{Bench, Samples};
use super::record::Checked;

/// How long processes wait for each other to meet: they make their inputs before, at a pace of their own.
const MEETING_DEADLINE: Duration = Duration::from_secs(120);

/// Where a case runs.
#[derive(Debug)]
pub enum Place {
    /// On devices of this process, all ranks.
    Devices(Vec<Device>),
    /// On one device, one rank, and the others in processes of their own.
    Process {
        /// The device.
        device: Device,
        /// Where processes meet.
        path: PathBuf,
        /// Which rank.
        rank: usize,
    },
}

/// What one process knows of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// How much of a dispatch was held to the reference.
    pub dispatch_checked: Checked,
    /// How much of a combine was.
    pub combine_checked: Checked,
    /// Why it did not run.
    pub left_out: Option<String>,
    /// Of the slowest of its devices; nothing on an emulator.
    pub samples: Option<Samples>,
}

impl Place {
    /// The group of a case, as far as it is here.
    fn groups(&self, case: &Case) -> Result<Vec<EpGroup>> {
        let config = case.config()?;
        Ok(match self {
            Self::Devices(devices) => match &**devices {
                // No receipts where one host orders everything.
                [device] => vec![EpGroup::new(device, config)?],
                devices => EpGroup::across(devices, config)?,
            },
            Self::Process { device, path, rank } => {
                let meeting = Rendezvous::new(path, *rank, case.extents.ranks)?;
                let meeting = meeting.deadline(MEETING_DEADLINE);
                vec![EpGroup::join(device, config, &meeting)?]
            }
        })
    }
}

impl Outcome {
    fn left_out(reason: String) -> Self {
        Self {
            dispatch_checked: Checked::Nothing,
            combine_checked: Checked::Nothing,
            left_out: Some(reason),
            samples: None,
        }
    }

    /// Checks a case, and takes so many samples if it passes; without a number, none.
    ///
    /// # Errors
    /// Devices that fail, or the first difference from the reference.
    pub fn of(case: &Case, place: &Place, samples: Option<usize>) -> Result<Self> {
        let inputs = case.inputs()?;
        let reference = Reference::new(case, &inputs)?;
        let bench = place
            .groups(case)
            .and_then(|groups| Bench::new(groups, case, &inputs, &reference));
        let mut bench = match bench {
            Ok(bench) => bench,
            Err(error) if is_out_of_memory(&error) => {
                return Ok(Self::left_out(format!("{error:#}")));
            }
            Err(error) => return Err(error),
        };
        bench.check()?;
        Ok(Self {
            dispatch_checked: reference.dispatch_checked(),
            combine_checked: reference.combine_checked(),
            left_out: None,
            samples: samples.map(|count| bench.measure(count)).transpose()?,
        })
    }

    /// What all processes know together: times of the slowest.
    ///
    /// # Errors
    /// No process, or processes that did different things.
    pub fn of_all(outcomes: Vec<Self>) -> Result<Self> {
        if let Some(reason) = outcomes.iter().find_map(|it| it.left_out.clone()) {
            return Ok(Self::left_out(reason));
        }
        let checked = |it: &Self| {
            (
                it.dispatch_checked,
                it.combine_checked,
                it.samples.is_some(),
            )
        };
        let mut all = outcomes.iter().map(checked);
        let first = all.next();
        let (Some((dispatch_checked, combine_checked, measured)), true) =
            (first, all.all(|other| Some(other) == first))
        else {
            anyhow::bail!("processes did different things: {outcomes:?}");
        };
        let samples: Vec<_> = outcomes.into_iter().filter_map(|it| it.samples).collect();
        let samples = Samples::slowest(samples)?;
        ensure!(samples.is_some() == measured, "samples without processes");
        Ok(Self {
            dispatch_checked,
            combine_checked,
            left_out: None,
            samples,
        })
    }
}

/// Whether there is too little memory for a case. That is no fault of the case: with all ranks on one GPU, the
/// largest take more than some have.
fn is_out_of_memory(error: &anyhow::Error) -> bool {
    let of_device = |error: &DeviceError| matches!(error, DeviceError::OutOfMemory { .. });
    error.chain().any(|cause| {
        cause.downcast_ref().is_some_and(of_device)
            || matches!(cause.downcast_ref(), Some(EpError::Device(error)) if of_device(error))
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::cases::tests::EXTENTS;
    use super::super::cases::{COMBINE_FORMATS, cases};
    use super::super::measure::ModeSamples;
    use super::*;
    use tokenyard::EmulatorOptions;
    use tokenyard::ep::TokenFormat;

    const ALL: Outcome = Outcome {
        dispatch_checked: Checked::All,
        combine_checked: Checked::All,
        left_out: None,
        samples: None,
    };

    #[test]
    fn one_device_several_and_processes_pass_the_same_cases() {
        let folder = tempfile::tempdir().unwrap();
        for (format, &combine) in TokenFormat::ALL.iter().zip(COMBINE_FORMATS.iter().cycle()) {
            let case = cases(&[*format], &[combine], &[2], EXTENTS).remove(0);
            for count in [1, 2] {
                let devices = Device::emulated_node(count, EmulatorOptions::default());
                let outcome = Outcome::of(&case, &Place::Devices(devices), None).unwrap();
                assert_eq!(outcome, ALL);
            }
            // What processes do, in threads.
            let process = |rank| {
                let place = Place::Process {
                    device: Device::emulator(rank as u64),
                    path: folder.path().join("meeting"),
                    rank,
                };
                Outcome::of(&case, &place, Some(1)).unwrap()
            };
            let outcomes = thread::scope(|scope| {
                let processes = [0, 1, 2, 3].map(|rank| scope.spawn(move || process(rank)));
                processes.map(|process| process.join().unwrap())
            });
            let outcome = Outcome::of_all(outcomes.into()).unwrap();
            assert_eq!(outcome.combine_checked, Checked::All);
            assert_eq!(outcome.samples.unwrap().split.dispatch.len(), 1);
        }
    }

    #[test]
    fn processes_make_one_outcome_unless_they_did_different_things() {
        let measured = |time| Outcome {
            samples: Some(Samples {
                fused: ModeSamples {
                    combine: vec![time],
                    ..ModeSamples::default()
                },
                ..Samples::default()
            }),
            ..ALL
        };
        let outcome = Outcome::of_all(vec![measured(3.0), measured(4.0)]).unwrap();
        assert_eq!(outcome, measured(4.0));
        assert_eq!(Outcome::of_all(vec![ALL, ALL]).unwrap(), ALL);
        assert!(Outcome::of_all(vec![measured(3.0), ALL]).is_err());
        assert!(Outcome::of_all(Vec::new()).is_err());
        let left_out = Outcome::left_out("no room".to_owned());
        assert_eq!(
            Outcome::of_all(vec![ALL, left_out.clone()]).unwrap(),
            left_out
        );
    }
}
