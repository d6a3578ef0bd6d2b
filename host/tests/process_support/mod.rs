//! Tests that are several processes: this program again, told what to do by its environment.

use std::env;
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Names of the variables of a process.
const CASE: &str = "TOKENYARD_TEST_CASE";
const SOCKET: &str = "TOKENYARD_TEST_SOCKET";
const RANK: &str = "TOKENYARD_TEST_RANK";
const RANKS: &str = "TOKENYARD_TEST_RANKS";
const PATIENCE_MS: &str = "TOKENYARD_TEST_PATIENCE_MS";

/// What begins a line that is meant for the test, not for whoever reads its output.
const MARK: &str = "peer says: ";

/// What a process is to do.
pub struct Orders {
    pub case: String,
    pub path: PathBuf,
    pub rank: usize,
    pub ranks: usize,
    /// How long it waits for the others to come.
    pub patience: Duration,
}

impl Orders {
    pub fn from_environment() -> Self {
        let variable = |name| {
            env::var(name).unwrap_or_else(|_| panic!("{name} is not set: this is half a test"))
        };
        let number = |name| variable(name).parse::<usize>().unwrap();
        Self {
            case: variable(CASE),
            path: variable(SOCKET).into(),
            rank: number(RANK),
            ranks: number(RANKS),
            patience: Duration::from_millis(number(PATIENCE_MS) as u64),
        }
    }

    /// Tells the test something.
    pub fn say(&self, what: &str) {
        println!("\n{MARK}{}", what.replace('\n', " "));
    }

    /// Waits for the test to say something.
    pub fn hear(&self) {
        let mut line = String::new();
        stdin().read_line(&mut line).unwrap();
    }
}

/// The processes of one test.
pub struct Cast {
    case: &'static str,
    ranks: usize,
    patience: Duration,
    folder: TempDir,
}

impl Cast {
    pub fn new(case: &'static str, ranks: usize) -> Self {
        Self {
            case,
            ranks,
            patience: Duration::from_secs(60),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Where the processes meet.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("meeting")
    }

    pub fn wait_for_path(&self) {
        let start = Instant::now();
        while !self.path().exists() {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody listens");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts rank `rank`.
    pub fn spawn(&self, rank: usize) -> Peer {
        self.spawn_as(self.case, rank)
    }

    /// Starts rank `rank` with a case of its own.
    pub fn spawn_as(&self, case: &str, rank: usize) -> Peer {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture", "process"])
            .env(CASE, case)
            .env(SOCKET, self.path())
            .env(RANK, rank.to_string())
            .env(RANKS, self.ranks.to_string())
            .env(PATIENCE_MS, self.patience.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Peer {
            rank,
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// The meeting point is gone, and no shared memory has a name.
    pub fn assert_nothing_left(&self) {
        let left = |folder: &Path| -> Vec<_> {
            let entries = std::fs::read_dir(folder).into_iter().flatten();
            entries.map(|entry| entry.unwrap().file_name()).collect()
        };
        assert_eq!(left(self.folder.path()), [""; 0]);
        let named = left(Path::new("/dev/shm"));
        let ours = |name: &&std::ffi::OsString| name.to_string_lossy().contains("tokenyard");
        assert_eq!(named.iter().find(ours), None);
    }
}

/// A process, killed if the test ends before it.
pub struct Peer {
    rank: usize,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// The next thing it says.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            if self.output.read_line(&mut line).unwrap() == 0 {
                let complaint = self.complaint();
                panic!("rank {} ended: {complaint}", self.rank);
            }
            if let Some(said) = line.strip_prefix(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    pub fn expect(&mut self, what: &str) {
        assert_eq!(self.hear(), what, "rank {}", self.rank);
    }

    pub fn tell(&mut self, what: &str) {
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
    }

    /// Kills it at once.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// It ends by itself, and has found nothing wrong.
    pub fn finish(mut self) {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        let complaint = self.complaint();
        assert!(status.success(), "rank {}: {rest}{complaint}", self.rank);
    }

    fn complaint(&mut self) -> String {
        let mut text = String::new();
        if let Some(errors) = &mut self.child.stderr {
            errors.read_to_string(&mut text).unwrap();
        }
        text
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
