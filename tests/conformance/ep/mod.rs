//! Expert-parallel dispatch and combine: every byte of every rank, against the reference.

mod combine;
mod errors;
mod examples;
mod faults;
mod matrix;
mod ordering;
mod peers;
mod properties;
mod reported;
mod rounds;
mod schedules;
mod shapes;

use tokenyard::ep::TokenFormat;
use tokenyard::reference::ep::Setup;
use tokenyard_tests::Suite;

pub use peers::run_as_child;

pub fn register(suite: &mut Suite) {
    for register in [
        examples::register,
        matrix::register,
        reported::register,
        rounds::register,
        schedules::register,
        errors::register,
        faults::register,
        ordering::register,
        peers::register,
        properties::register,
        combine::register,
    ] {
        register(suite);
    }
}

/// A small setup of a format, whose last scale tile, where it has any, is partial: R ranks of two experts
/// each, K = 3 as far as there are experts, five tokens at the most.
fn small(format: TokenFormat, ranks: usize) -> Setup {
    let hidden = match format {
        TokenFormat::Bf16 => 40,
        TokenFormat::Fp8Block128 => 256,
        // Six scales: a tile and a half.
        TokenFormat::Nvfp4 => 96,
        // Three scales: no whole word.
        TokenFormat::Mxfp4 => 96,
        _ => 160,
    };
    Setup {
        experts: 2 * ranks,
        ranks,
        top_k: 3.min(2 * ranks),
        global_factor: if format == TokenFormat::Nvfp4 {
            0.75
        } else {
            1.0
        },
        ..Setup::new(format, hidden, 5)
    }
}
