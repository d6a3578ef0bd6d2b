//! What a run came to: a record.

use serde::{Deserialize, Serialize};

use super::cases::{Case, Extents};
use super::marks::Mark;
use super::measure::{ModeSamples, Samples};
use super::traffic::{Moved, Traffic, home_row_bytes};
use crate::bench::stats::{Summary, gigabytes_per_second, rounded};

/// The layout of [`EpRecord`]. The first had dispatch alone, with a message for each expert.
const SCHEMA: u32 = 2;

/// One run of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpRecord {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `ep`.
    pub benchmark: String,
    /// When it began, RFC 3339, UTC.
    pub date: String,
    /// Name of the GPUs.
    pub gpu: String,
    /// How many there were. With one, all ranks are on it, and nothing passes a link.
    pub gpus: usize,
    /// Whether each GPU had a process of its own.
    pub processes: bool,
    /// Version of the GPUs' driver, where it could be found out.
    pub driver: Option<String>,
    /// What ran the kernels, in a line.
    pub device: String,
    /// The commit that was built, where it is known.
    pub commit: Option<String>,
    /// The command line.
    pub command: String,
    /// Samples of each case.
    pub rounds: usize,
    /// What all cases have in common.
    pub extents: Extents,
    /// What a plain copy attains. Nothing on an emulator.
    pub attainable: Option<Attainable>,
    /// The cases, in the order in which they ran.
    pub cases: Vec<EpCaseRecord>,
    /// What they are to reach, and whether they did.
    pub marks: Vec<Mark>,
}

/// Rates of a plain copy by a kernel, in GB/s, that shares are held against.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attainable {
    /// What every GPU copies to the next one, all at a time, of the slowest. Nothing with one GPU.
    pub link_gb_per_second: Option<f64>,
    /// What a copy within the memory of one GPU reads and writes, together.
    pub memory_gb_per_second: f64,
}

/// One case of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpCaseRecord {
    /// Its name, the same in every run.
    pub id: String,
    /// The format on the wire.
    pub format: String,
    /// The format on the way home.
    pub combine_format: String,
    /// Tokens of each rank.
    pub tokens: usize,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Bytes of a row on its way home.
    pub home_row_bytes: u64,
    /// To the experts.
    pub dispatch: HalfRecord,
    /// And home.
    pub combine: HalfRecord,
    /// Why the case did not run.
    pub left_out: Option<String>,
    /// What was measured; nothing on an emulator.
    pub speed: Option<EpSpeed>,
}

/// Half of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HalfRecord {
    /// What it moves.
    pub bytes: Moved,
    /// What was held to the reference beforehand.
    pub checked: Checked,
}

/// How much of a case was held to the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checked {
    /// Nothing: it did not run.
    Nothing,
    /// A sample of the tokens; of a dispatch, their elements, and how many rows there are of each expert and source.
    Sample,
    /// Everything.
    All,
}

/// What was measured of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpSpeed {
    /// Rounds in a graph, over which the times of dispatches and of round trips are means.
    pub rounds_per_sample: usize,
    /// One launch on each GPU for a dispatch, and one for a combine.
    pub fused: EpTimes,
    /// Two for each rank and half.
    pub split: EpTimes,
    /// Of the fused dispatch's median.
    pub dispatch: Rates,
    /// Of the fused combine's median.
    pub combine: Rates,
}

/// Microseconds in one mode, of the slowest GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpTimes {
    /// A dispatch among dispatches.
    pub dispatch: Summary,
    /// A combine by itself, between events.
    pub combine: Summary,
    /// A dispatch and its combine, among others.
    pub round_trip: Summary,
    /// What a round trip takes longer than a dispatch, within a sample.
    pub combine_adds: Summary,
}

/// What bytes and times come to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// [`Moved::link`] in this time, in GB/s. Nothing with one GPU.
    pub link_gb_per_second: Option<f64>,
    /// The same as a share of [`Attainable::link_gb_per_second`].
    pub of_link: Option<f64>,
    /// [`Moved::memory`] in this time, in GB/s.
    pub memory_gb_per_second: f64,
    /// The same as a share of [`Attainable::memory_gb_per_second`]. Small cases stay in the cache, and may exceed 1.
    pub of_memory: f64,
}

impl EpTimes {
    fn of(samples: &ModeSamples) -> Option<Self> {
        let pairs = samples.round_trip.iter().zip(&samples.dispatch);
        let added: Vec<f64> = pairs.map(|(both, dispatch)| both - dispatch).collect();
        Some(Self {
            dispatch: Summary::of(&samples.dispatch)?,
            combine: Summary::of(&samples.combine)?,
            round_trip: Summary::of(&samples.round_trip)?,
            combine_adds: Summary::of(&added)?,
        })
    }
}

impl Rates {
    fn of(bytes: Moved, microseconds: f64, attainable: Attainable) -> Self {
        let memory = gigabytes_per_second(bytes.memory, microseconds);
        let link = attainable.link_gb_per_second.map(|most| {
            let rate = gigabytes_per_second(bytes.link, microseconds);
            (rate, rounded(rate / most))
        });
        Self {
            link_gb_per_second: link.map(|(rate, _)| rate),
            of_link: link.map(|(_, share)| share),
            memory_gb_per_second: memory,
            of_memory: rounded(memory / attainable.memory_gb_per_second),
        }
    }
}

impl EpSpeed {
    /// Of the samples of a case that moves `traffic`; `None` without samples.
    pub fn of(samples: &Samples, traffic: Traffic, attainable: Attainable) -> Option<Self> {
        let fused = EpTimes::of(&samples.fused)?;
        Some(Self {
            rounds_per_sample: samples.rounds_per_sample,
            split: EpTimes::of(&samples.split)?,
            dispatch: Rates::of(traffic.dispatch, fused.dispatch.median, attainable),
            combine: Rates::of(traffic.combine, fused.combine.median, attainable),
            fused,
        })
    }
}

impl EpCaseRecord {
    /// What is known of a case before it has run.
    pub fn new(case: &Case, message_bytes: u32, traffic: Traffic) -> Self {
        let half = |bytes| HalfRecord {
            bytes,
            checked: Checked::Nothing,
        };
        Self {
            id: case.id(),
            format: case.format.name().to_owned(),
            combine_format: case.combine.name().to_owned(),
            tokens: case.tokens,
            message_bytes,
            home_row_bytes: home_row_bytes(case.combine, case.extents.hidden_size),
            dispatch: half(traffic.dispatch),
            combine: half(traffic.combine),
            left_out: None,
            speed: None,
        }
    }
}

impl EpRecord {
    /// A run that begins now, without cases.
    pub fn new(gpu: &str, device: String, gpus: usize, rounds: usize, extents: Extents) -> Self {
        let now = std::time::SystemTime::now();
        Self {
            schema: SCHEMA,
            benchmark: "ep".to_owned(),
            date: humantime::format_rfc3339_seconds(now).to_string(),
            gpu: gpu.to_owned(),
            gpus,
            processes: false,
            driver: None,
            device,
            commit: None,
            command: String::new(),
            rounds,
            extents,
            attainable: None,
            cases: Vec::new(),
            marks: Vec::new(),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::cases::{EXTENTS_OF_MARKS, cases};
    use super::*;
    use tokenyard::ep::TokenFormat;

    /// A run on eight GPUs with the cases of MXFP8 at 128 and 4096 tokens, of which the second was left out; the
    /// first took 30 µs to dispatch, 50 to combine, and 100 together.
    pub fn record() -> EpRecord {
        let extents = EXTENTS_OF_MARKS;
        let mut record = EpRecord::new("NVIDIA H200", "made up".to_owned(), 8, 3, extents);
        let attainable = Attainable {
            link_gb_per_second: Some(400.0),
            memory_gb_per_second: 4000.0,
        };
        let moved = |link, memory| Moved { link, memory };
        let traffic = Traffic {
            dispatch: moved(4_800_000, 60_000_000),
            combine: moved(18_000_000, 100_000_000),
        };
        let cases = cases(&[TokenFormat::Mxfp8], &[], &[128, 4096], extents);
        record.attainable = Some(attainable);
        record.cases = cases
            .iter()
            .map(|case| EpCaseRecord::new(case, 7408, traffic))
            .collect();
        let fused = ModeSamples {
            dispatch: vec![20.0, 40.0, 30.0],
            round_trip: vec![90.0, 110.0, 100.0],
            combine: vec![50.0; 12],
        };
        let split = ModeSamples {
            dispatch: vec![61.0; 3],
            round_trip: vec![133.0; 3],
            combine: vec![62.0; 12],
        };
        let samples = Samples {
            fused,
            split,
            rounds_per_sample: 20,
        };
        let first = &mut record.cases[0];
        (first.dispatch.checked, first.combine.checked) = (Checked::All, Checked::Sample);
        first.speed = EpSpeed::of(&samples, traffic, attainable);
        record.cases[1].left_out = Some("no room".to_owned());
        record
    }

    #[test]
    fn times_and_bytes_make_rates() {
        let record = record();
        let speed = record.cases[0].speed.as_ref().unwrap();
        assert_eq!(speed.fused.combine_adds.median, 70.0);
        assert_eq!(speed.dispatch.link_gb_per_second, Some(160.0));
        assert_eq!(speed.dispatch.of_link, Some(0.4));
        assert_eq!(speed.dispatch.memory_gb_per_second, 2000.0);
        assert_eq!(
            (speed.combine.of_link, speed.combine.of_memory),
            (Some(0.9), 0.5)
        );
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<EpRecord>(&json).unwrap(), record);
    }

    #[test]
    fn one_gpu_has_no_link() {
        let moved = Moved {
            link: 0,
            memory: 4000,
        };
        let attainable = Attainable {
            link_gb_per_second: None,
            memory_gb_per_second: 8.0,
        };
        let rates = Rates::of(moved, 1.0, attainable);
        assert_eq!((rates.link_gb_per_second, rates.of_link), (None, None));
        assert_eq!((rates.memory_gb_per_second, rates.of_memory), (4.0, 0.5));
    }
}
