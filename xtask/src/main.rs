//! Build, run, test and inspect Tokenyard: `cargo xtask help`.

mod bench;
mod commands;
mod compare;
mod engine;
mod exchange;
mod files;
mod flags;
mod kernels;
mod plots;
mod process;
mod report;
mod tools;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// What shells report for a program that an interrupt ended: 128 + SIGINT.
const INTERRUPTED: i32 = 130;

fn main() -> ExitCode {
    let cli = flags::Cli::parse();
    let handler = ctrlc::set_handler(|| {
        eprintln!("interrupted");
        files::remove_unfinished_and_exit(INTERRUPTED)
    });
    if let Err(error) = handler {
        eprintln!("warning: an interrupt may leave a temporary file behind: {error}");
    }
    match commands::dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes, one a line. Some errors include their cause in their own words.
fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str("\n  because: ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_are_named_once() {
        let error = anyhow!("no such file")
            .context("no driver: no such file")
            .context("no GPU");
        assert_eq!(chain(&error), "no GPU\n  because: no driver: no such file");
    }
}
