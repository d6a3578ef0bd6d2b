//! Combine, and the whole round trip: what comes back, against the reference and by hand.

mod errors;
mod graphs;
mod identity;
mod lifetimes;
mod matrix;
mod properties;
mod reported;
mod rounds;
mod schedules;
mod values;

use tokenyard::ep::CombineFormat;
use tokenyard_tests::Suite;
use tokenyard_tests::ep::EpCase;

pub fn register(suite: &mut Suite) {
    for register in [
        matrix::register,
        values::register,
        reported::register,
        graphs::register,
        rounds::register,
        schedules::register,
        properties::register,
        errors::register,
        lifetimes::register,
    ] {
        register(suite);
    }
}

/// The case with its rows travelling home in a format.
fn home(mut case: EpCase, format: CombineFormat) -> EpCase {
    case.combine = Some(format);
    case
}
