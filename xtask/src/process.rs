//! Other programs: cargo, ptxas, pip, nvidia-smi.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

/// The cargo that runs this program, or the one on the path.
pub fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

/// `command` as one would type it.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy()
        .into_owned();
    for argument in command.get_args() {
        let argument = argument.to_string_lossy();
        text.push(' ');
        if argument.is_empty() || argument.contains(char::is_whitespace) {
            text.push_str(&format!("'{argument}'"));
        } else {
            text.push_str(&argument);
        }
    }
    text
}

/// Runs `command` with this program's own output, or, if `quiet_stdout`, with its standard output
/// on standard error.
///
/// # Errors
/// When it does not start, or does not succeed.
pub fn run(command: &mut Command, quiet_stdout: bool) -> Result<()> {
    if quiet_stdout {
        command.stdout(std::io::stderr());
    }
    let status = command
        .status()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    check(command, status)
}

/// What `command` prints to standard output.
///
/// # Errors
/// When it does not start, or does not succeed; the message has what it printed to standard error.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{}` failed ({}): {}",
            shown(command),
            output.status,
            complaint.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// An error unless `status` is success.
///
/// # Errors
/// Names the command and its status.
pub fn check(command: &Command, status: ExitStatus) -> Result<()> {
    if status.success() {
        Ok(())
    } else {
        bail!("`{}` failed ({status})", shown(command))
    }
}

/// The program `name`, if a folder of the path has it.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

#[cfg(unix)]
fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(file: &Path) -> bool {
    file.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_read_as_typed() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["test", "two words", ""]);
        assert_eq!(shown(&command), "cargo test 'two words' ''");
    }

    #[cfg(unix)]
    #[test]
    fn failures_say_what_was_run_and_why() {
        let error = capture(Command::new("sh").args(["-c", "echo oh no >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("sh -c") && text.contains("oh no") && text.contains('3'),
            "{text}"
        );
        let error = capture(&mut Command::new("no-such-program-at-all")).unwrap_err();
        assert!(error.to_string().contains("cannot start"));
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-at-all").is_none());
    }
}
