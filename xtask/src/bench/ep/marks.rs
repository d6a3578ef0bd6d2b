//! What a run is to reach.

use serde::{Deserialize, Serialize};
use tokenyard::ep::{CombineFormat, TokenFormat};

use super::cases::EXTENTS_OF_MARKS;
use super::record::{EpCaseRecord, EpRecord, EpSpeed};

/// Tokens a rank of a prefill chunk.
const PREFILL: usize = 4096;

/// Tokens a rank of a decoding batch.
const DECODE: usize = 128;

/// The share of a link that the marks ask for.
const LINK_SHARE: f64 = 0.8;

/// A mark, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// The case.
    pub case: String,
    /// Dispatch or combine.
    pub half: Half,
    /// What is measured of it, fused.
    pub quantity: Quantity,
    /// What it must be below, for a time, or not below, for a share.
    pub limit: f64,
    /// What it was. Nothing if the case did not run.
    pub measured: Option<f64>,
    /// Whether that is on the right side.
    pub met: bool,
}

/// Half of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Half {
    /// To the experts.
    Dispatch,
    /// And home.
    Combine,
}

/// What a mark is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The median, in microseconds.
    Microseconds,
    /// The share of the attainable rate of the link.
    ShareOfLink,
}

/// Times on eight H200: dispatch and combine of published kernels, and less.
const TIMES: [(Half, TokenFormat, usize, f64); 5] = [
    (Half::Dispatch, TokenFormat::Mxfp8, PREFILL, 450.0),
    (Half::Combine, TokenFormat::Mxfp8, PREFILL, 900.0),
    (Half::Dispatch, TokenFormat::Mxfp4, PREFILL, 260.0),
    (Half::Dispatch, TokenFormat::Fp8Block128, DECODE, 40.0),
    (Half::Combine, TokenFormat::Fp8Block128, DECODE, 55.0),
];

/// Halves of rounds that must use their link, on any number of GPUs.
const SHARES: [(Half, TokenFormat); 3] = [
    (Half::Dispatch, TokenFormat::Mxfp8),
    (Half::Dispatch, TokenFormat::Mxfp4),
    (Half::Combine, TokenFormat::Mxfp8),
];

/// The marks of a run's cases. Times are for eight GPUs with one rank each, at the shape of published measurements;
/// shares of the link for more than one GPU. Rows come home as BF16 in all of them.
pub fn marks(record: &EpRecord) -> Vec<Mark> {
    let mut marks = Vec::new();
    let mut add = |half, format, tokens, quantity, limit| {
        if let Some(case) = find(record, format, tokens) {
            marks.push(mark(case, half, quantity, limit));
        }
    };
    if record.gpus == 8 && record.extents == EXTENTS_OF_MARKS {
        for (half, format, tokens, limit) in TIMES {
            add(half, format, tokens, Quantity::Microseconds, limit);
        }
    }
    if record.gpus > 1 {
        for (half, format) in SHARES {
            add(half, format, PREFILL, Quantity::ShareOfLink, LINK_SHARE);
        }
    }
    marks
}

fn find(record: &EpRecord, format: TokenFormat, tokens: usize) -> Option<&EpCaseRecord> {
    let home = CombineFormat::Bf16.name();
    record.cases.iter().find(|case| {
        case.format == format.name() && case.combine_format == home && case.tokens == tokens
    })
}

fn mark(case: &EpCaseRecord, half: Half, quantity: Quantity, limit: f64) -> Mark {
    let measure = |speed: &EpSpeed| {
        let (times, rates) = match half {
            Half::Dispatch => (speed.fused.dispatch, speed.dispatch),
            Half::Combine => (speed.fused.combine, speed.combine),
        };
        match quantity {
            Quantity::Microseconds => Some(times.median),
            Quantity::ShareOfLink => rates.of_link,
        }
    };
    let measured = case.speed.as_ref().and_then(measure);
    Mark {
        case: case.id.clone(),
        half,
        quantity,
        limit,
        measured,
        met: measured.is_some_and(|measured| match quantity {
            Quantity::Microseconds => measured < limit,
            Quantity::ShareOfLink => measured >= limit,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;

    fn all(record: &EpRecord) -> Vec<(Half, Quantity, Option<f64>, bool)> {
        let marks = marks(record).into_iter();
        marks
            .map(|mark| (mark.half, mark.quantity, mark.measured, mark.met))
            .collect()
    }

    #[test]
    fn marks_are_met_missed_or_not_measured() {
        let mut record = record();
        // Prefill did not run.
        let missed = |half, quantity| (half, quantity, None, false);
        let unmeasured = [
            missed(Half::Dispatch, Quantity::Microseconds),
            missed(Half::Combine, Quantity::Microseconds),
            missed(Half::Dispatch, Quantity::ShareOfLink),
            missed(Half::Combine, Quantity::ShareOfLink),
        ];
        assert_eq!(all(&record), unmeasured);
        // The same times as those of prefill, and of another format's decode.
        record.cases[1].speed = record.cases[0].speed.clone();
        record.cases[0].format = TokenFormat::Fp8Block128.name().to_owned();
        let measured = [
            (Half::Dispatch, Quantity::Microseconds, Some(30.0), true),
            (Half::Combine, Quantity::Microseconds, Some(50.0), true),
            (Half::Dispatch, Quantity::Microseconds, Some(30.0), true),
            (Half::Combine, Quantity::Microseconds, Some(50.0), true),
            (Half::Dispatch, Quantity::ShareOfLink, Some(0.4), false),
            (Half::Combine, Quantity::ShareOfLink, Some(0.9), true),
        ];
        assert_eq!(all(&record), measured);
        record.cases[1].combine_format = CombineFormat::Mxfp8.name().to_owned();
        assert_eq!(all(&record), measured[2..4]);
    }

    #[test]
    fn fewer_gpus_are_to_use_their_links_and_one_has_none() {
        let mut record = record();
        record.gpus = 2;
        let two = all(&record).into_iter();
        assert!(two.clone().all(|mark| mark.1 == Quantity::ShareOfLink));
        assert_eq!(two.count(), 2);
        record.gpus = 1;
        assert_eq!(all(&record), []);
    }
}
