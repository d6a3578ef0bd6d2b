//! Ranks that are processes: this program again, told which rank it is.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::process;

/// The flag by which a process learns its [`Orders`].
pub const ORDERS_FLAG: &str = "--as-process";

/// What a process is to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    /// Which rank.
    pub rank: usize,
    /// Where ranks meet.
    pub path: PathBuf,
}

/// Ranks that run, and are killed if this is dropped before they have ended.
pub struct Processes {
    ranks: Vec<(Child, BufReader<ChildStdout>)>,
    /// Where they meet.
    _folder: TempDir,
}

impl Processes {
    /// Starts this program with the arguments that it has been given, and [`Orders`], as each of `count` ranks.
    ///
    /// # Errors
    /// A system that does not start them.
    pub fn start(count: usize) -> Result<Self> {
        let program = env::current_exe().context("where this program is")?;
        Self::start_with(count, |rank, path| {
            let mut command = Command::new(&program);
            let path = path.to_owned();
            command
                .args(env::args_os().skip(1))
                .arg(ORDERS_FLAG)
                .arg(serde_json::to_string(&Orders { rank, path })?);
            Ok(command)
        })
    }

    fn start_with(count: usize, command: impl Fn(usize, &Path) -> Result<Command>) -> Result<Self> {
        let folder = tempfile::tempdir().context("a folder to meet in")?;
        let path = folder.path().join("meeting");
        let mut processes = Self {
            ranks: Vec::new(),
            _folder: folder,
        };
        for rank in 0..count {
            let mut command = command(rank, &path)?;
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            let mut child = command
                .spawn()
                .with_context(|| format!("cannot start `{}`", process::shown(&command)))?;
            let stdout = child.stdout.take().context("a process without output")?;
            processes.ranks.push((child, BufReader::new(stdout)));
        }
        Ok(processes)
    }

    /// The next line of every rank, in order: a JSON value each.
    ///
    /// # Errors
    /// A rank that has ended, or says something else.
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Vec<T>> {
        let mut values = Vec::new();
        for (rank, (child, lines)) in self.ranks.iter_mut().enumerate() {
            let mut line = String::new();
            if lines.read_line(&mut line)? == 0 {
                // It has said why on standard error, which is this program's.
                let status = child.wait()?;
                bail!("the process of rank {rank} has ended ({status})");
            }
            values.push(
                serde_json::from_str(&line)
                    .with_context(|| format!("rank {rank} says {:?}", line.trim_end()))?,
            );
        }
        Ok(values)
    }

    /// Waits for the end of all.
    ///
    /// # Errors
    /// A rank that fails.
    pub fn finish(mut self) -> Result<()> {
        for (rank, (child, _)) in self.ranks.iter_mut().enumerate() {
            let status = child.wait()?;
            ensure!(
                status.success(),
                "the process of rank {rank} failed ({status})"
            );
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (child, _) in &mut self.ranks {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &'static str) -> Result<Processes> {
        Processes::start_with(2, |rank, path| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]);
            command.arg(rank.to_string()).arg(path);
            Ok(command)
        })
    }

    #[test]
    fn every_rank_is_heard_in_turn() {
        let mut processes = shell("echo $1; echo \"\\\"$2\\\"\"").unwrap();
        assert_eq!(processes.next::<usize>().unwrap(), [0, 1]);
        let paths = processes.next::<PathBuf>().unwrap();
        assert!(paths[0] == paths[1] && paths[0].ends_with("meeting"));
        processes.finish().unwrap();
        assert!(!paths[0].parent().unwrap().exists());
    }

    #[test]
    fn a_rank_that_ends_is_named_and_the_others_do_not_stay() {
        let script = "echo $1; [ $1 = 0 ] && exec sleep 600; exit 3";
        let mut processes = shell(script).unwrap();
        assert_eq!(processes.next::<usize>().unwrap(), [0, 1]);
        processes.ranks.swap(0, 1);
        let error = processes.next::<usize>().unwrap_err().to_string();
        assert!(
            error.contains("has ended") && error.contains('3'),
            "{error}"
        );
        // Dropped, it does not wait for the ten minutes.
        drop(processes);
        let error = shell("exit $1").unwrap().finish().unwrap_err().to_string();
        assert!(error.contains("rank 1 failed"), "{error}");
        let error = shell("echo nonsense").unwrap().next::<usize>().unwrap_err();
        assert!(error.to_string().contains("nonsense"), "{error:#}");
    }
}
