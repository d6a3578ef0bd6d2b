//! Launch bounds: from a comment in the compiler's output to directives of the entry.
//!
//! Rust has no way to say how many threads a kernel is launched with. A kernel crate leaves a line
//!
//! ```text
//! // cuda_std.launch_bounds scale max_threads=128 min_blocks=8
//! ```
//!
//! in the PTX (through `core::arch::global_asm!`, which copies it there unread), and this module
//! puts `.maxntid 128, 1, 1` and `.minnctapersm 8` behind the parameters of `scale`.

use std::collections::BTreeMap;

const MARKER: &str = "// cuda_std.launch_bounds";

/// The most threads a block can have on any architecture.
const MAX_THREADS: u32 = 1024;

/// The launch bounds of one kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LaunchBounds {
    /// The most threads per block it is launched with (`.maxntid`).
    pub max_threads: Option<u32>,
    /// The least number of blocks that should fit one multiprocessor (`.minnctapersm`).
    pub min_blocks: Option<u32>,
}

/// Launch bounds that cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchBoundsError {
    /// The line cannot be read.
    #[error(
        "cannot read launch bounds {line:?}; expected \"{MARKER} <entry> [max_threads=<1 to 1024>] \
         [min_blocks=<1 or more>]\""
    )]
    Malformed {
        /// The line.
        line: String,
    },
    /// There is no such entry in the module.
    #[error("launch bounds name an entry {entry:?} that the PTX does not have")]
    UnknownEntry {
        /// The entry's name.
        entry: String,
    },
    /// Two lines give the same entry different bounds.
    #[error("the entry {entry:?} has two different launch bounds: {first:?} and {second:?}")]
    Conflict {
        /// The entry's name.
        entry: String,
        /// The first.
        first: LaunchBounds,
        /// The second.
        second: LaunchBounds,
    },
    /// `.minnctapersm` means nothing without `.maxntid`.
    #[error("launch bounds of the entry {entry:?} give min_blocks without max_threads")]
    MinBlocksAlone {
        /// The entry's name.
        entry: String,
    },
}

/// Reads the launch bounds of every entry that has some.
///
/// # Errors
///
/// Lines that cannot be read or that contradict each other.
pub fn read(ptx: &str) -> Result<BTreeMap<String, LaunchBounds>, LaunchBoundsError> {
    let mut all = BTreeMap::new();
    for line in ptx.lines() {
        let Some(text) = line.trim().strip_prefix(MARKER) else {
            continue;
        };
        let (entry, bounds) = parse(text).ok_or_else(|| LaunchBoundsError::Malformed {
            line: line.trim().to_owned(),
        })?;
        if bounds.max_threads.is_none() && bounds.min_blocks.is_some() {
            return Err(LaunchBoundsError::MinBlocksAlone { entry });
        }
        match all.insert(entry.clone(), bounds) {
            Some(first) if first != bounds => {
                return Err(LaunchBoundsError::Conflict {
                    entry,
                    first,
                    second: bounds,
                });
            }
            _ => {}
        }
    }
    Ok(all)
}

fn parse(text: &str) -> Option<(String, LaunchBounds)> {
    let mut words = text.split_whitespace();
    let entry = words.next()?.to_owned();
    let mut bounds = LaunchBounds::default();
    for word in words {
        let (key, value) = word.split_once('=')?;
        let value: u32 = value.parse().ok().filter(|value| *value > 0)?;
        let slot = match key {
            "max_threads" if value <= MAX_THREADS => &mut bounds.max_threads,
            "min_blocks" => &mut bounds.min_blocks,
            _ => return None,
        };
        if slot.replace(value).is_some() {
            return None;
        }
    }
    Some((entry, bounds))
}

/// The PTX with the launch bounds that it names put into the entries; everything else as it was.
///
/// # Errors
///
/// As [`read`], and bounds for an entry that does not exist.
pub fn apply(ptx: &str) -> Result<String, LaunchBoundsError> {
    let mut insertions = Vec::new();
    for (entry, bounds) in read(ptx)? {
        let position =
            after_parameters(ptx, &entry).ok_or(LaunchBoundsError::UnknownEntry { entry })?;
        let mut directives = String::new();
        if let Some(threads) = bounds.max_threads {
            directives.push_str(&format!("\n.maxntid {threads}, 1, 1"));
        }
        if let Some(blocks) = bounds.min_blocks {
            directives.push_str(&format!("\n.minnctapersm {blocks}"));
        }
        insertions.push((position, directives));
    }
    insertions.sort_unstable();
    let mut out = String::with_capacity(ptx.len() + 48 * insertions.len());
    let mut done = 0;
    for (position, directives) in insertions {
        out.push_str(&ptx[done..position]);
        out.push_str(&directives);
        done = position;
    }
    out.push_str(&ptx[done..]);
    Ok(out)
}

/// The byte position behind an entry's name and parameter list.
fn after_parameters(ptx: &str, entry: &str) -> Option<usize> {
    ptx.match_indices(".entry").find_map(|(found, keyword)| {
        let after_keyword = &ptx[found + keyword.len()..];
        let name = after_keyword.trim_start();
        let after_name = name.strip_prefix(entry)?;
        if !after_name.starts_with(|c: char| c.is_whitespace() || c == '(' || c == '{') {
            return None;
        }
        let end_of_name = ptx.len() - after_name.len();
        let list = after_name.trim_start();
        if !list.starts_with('(') {
            return Some(end_of_name);
        }
        // Parameters hold brackets and braces, never parentheses.
        let length = list.find(')')? + 1;
        Some(ptx.len() - list.len() + length)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::Module;

    const PTX: &str = "\
.version 8.0
.target sm_90
.address_size 64

// cuda_std.launch_bounds scale max_threads=128 min_blocks=8
// cuda_std.launch_bounds fill max_threads=256
// cuda_std.launch_bounds fill max_threads=256
// cuda_std.launch_bounds free

.visible .entry scale_twice(
\t.param .u64 scale_twice_param_0
)
{
\tret;
}
.visible .entry scale(
\t.param .u64 .ptr .align 1 scale_param_0,
\t.param .align 8 .b8 scale_param_1[16]
)
{
\tret;
}
.visible .entry fill()
{
\tret;
}
.visible .entry free{
\tret;
}
";

    #[test]
    fn bounds_go_behind_the_parameters_of_their_entry_alone() {
        let text = apply(PTX).expect("the bounds fit");
        assert!(text.contains(
            "\t.param .align 8 .b8 scale_param_1[16]\n)\n.maxntid 128, 1, 1\n.minnctapersm 8\n{"
        ));
        assert!(text.contains(".entry fill()\n.maxntid 256, 1, 1\n{"));
        let module = Module::parse(&text).expect("it is still PTX");
        let directives = |name| module.entry(name).map(|entry| entry.directives.len());
        assert_eq!(directives("scale"), Some(2));
        assert_eq!(directives("fill"), Some(1));
        assert_eq!(directives("scale_twice"), Some(0));
        assert_eq!(directives("free"), Some(0));
    }

    #[test]
    fn without_bounds_the_text_stays() {
        let plain = PTX.replace("// cuda_std", "// something");
        assert_eq!(apply(&plain).as_deref(), Ok(plain.as_str()));
    }

    #[test]
    fn bounds_for_no_entry_are_an_error() {
        let text = format!("{MARKER} sca max_threads=32\n{PTX}");
        let entry = "sca".to_owned();
        assert_eq!(apply(&text), Err(LaunchBoundsError::UnknownEntry { entry }));
    }

    #[test]
    fn contradictions_are_an_error() {
        let text = format!("{PTX}{MARKER} scale max_threads=64\n");
        let bounds = |max_threads, min_blocks| LaunchBounds {
            max_threads,
            min_blocks,
        };
        assert_eq!(
            apply(&text),
            Err(LaunchBoundsError::Conflict {
                entry: "scale".to_owned(),
                first: bounds(Some(128), Some(8)),
                second: bounds(Some(64), None),
            })
        );
        let entry = "scale".to_owned();
        assert_eq!(
            read(&format!("{MARKER} scale min_blocks=2")),
            Err(LaunchBoundsError::MinBlocksAlone { entry })
        );
    }

    #[test]
    fn lines_that_cannot_be_read_are_an_error() {
        for wrong in [
            "",
            "f max_threads",
            "f max_threads=",
            "f max_threads=0",
            "f max_threads=1025",
            "f max_threads=-1",
            "f min_blocks=many",
            "f threads=1",
            "f max_threads=1 max_threads=1",
        ] {
            let line = format!("{MARKER} {wrong}");
            let error = read(&line);
            assert!(
                matches!(error, Err(LaunchBoundsError::Malformed { .. })),
                "{line:?}: {error:?}"
            );
        }
    }
}
