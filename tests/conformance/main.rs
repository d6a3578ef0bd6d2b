//! The conformance suite: every case, for the emulator and for the GPU, in one binary.
//!
//! How to run it, and what the environment variables mean, is in the documentation of the library
//! beside it (`tokenyard_tests`).

/// Demands that a result is a certain error, that the error prints, and says what it was if not.
macro_rules! refused {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {
        match $result {
            Ok(_) => anyhow::bail!("{} was accepted", stringify!($result)),
            Err(error) => {
                anyhow::ensure!(!error.to_string().is_empty(), "{error:?} prints nothing");
                anyhow::ensure!(
                    matches!(&error, $pattern $(if $guard)?),
                    "{} was refused as {error:?}, not as {}",
                    stringify!($result),
                    stringify!($pattern $(if $guard)?),
                );
            }
        }
    };
}

mod allocation;
mod dequantize;
mod ep;
mod errors;
mod faults;
mod graphs;
mod harness;
mod hostile;
mod large;
mod launch;
mod moe;
mod ops;
mod paths;
mod policies;
mod properties;
mod ptx;
mod quantize;
mod reported;
mod router;
mod routing;
mod routing_errors;
mod sample;
mod schedules;
mod values;
mod vectors;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use tokenyard_tests::{Settings, Suite};

fn main() -> ExitCode {
    if let Some(status) = faults::run_as_child().or_else(ep::run_as_child) {
        return status;
    }
    let arguments = Arguments::from_args();
    let settings = match Settings::from_env() {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    let mut suite = Suite::new(settings);
    for register in [
        harness::register,
        ptx::register,
        vectors::register,
        values::register,
        policies::register,
        paths::register,
        quantize::register,
        routing::register,
        hostile::register,
        launch::register,
        router::register,
        dequantize::register,
        sample::register,
        reported::register,
        large::register,
        ep::register,
        moe::register,
        ops::register,
        schedules::register,
        properties::register,
        errors::register,
        routing_errors::register,
        faults::register,
        graphs::register,
        allocation::register,
    ] {
        register(&mut suite);
    }
    suite.run(&arguments)
}
