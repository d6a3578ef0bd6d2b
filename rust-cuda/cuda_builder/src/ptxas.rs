//! `ptxas`, NVIDIA's assembler: machine code ahead of time, and what it costs.

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::NvvmArch;

/// Why there is no machine code.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PtxasError {
    /// No `ptxas` was found.
    #[error(
        "ptxas not found; set PTXAS to its path, or install the CUDA toolkit or the Python wheel \
         nvidia-cuda-nvcc. Tried: {}", .tried.join(", ")
    )]
    NotFound {
        /// The places tried, in order.
        tried: Vec<String>,
    },
    /// It could not be run, or a temporary file could not be written or read.
    #[error("cannot run {}", .ptxas.display())]
    Io {
        /// The assembler.
        ptxas: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// It refused the PTX.
    #[error("{} refused the PTX for {arch}:\n{messages}", .ptxas.display())]
    Rejected {
        /// The assembler.
        ptxas: PathBuf,
        /// The architecture.
        arch: String,
        /// What it said.
        messages: String,
    },
}

/// What one kernel needs, as `ptxas -v` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ResourceUsage {
    /// Registers per thread.
    pub registers: u32,
    /// Named barriers per block.
    pub barriers: u32,
    /// Static shared memory per block, in bytes.
    pub shared: u32,
    /// Stack frame per thread, in bytes.
    pub stack: u32,
    /// Bytes stored to spill registers.
    pub spill_stores: u32,
    /// Bytes loaded to bring spilled registers back.
    pub spill_loads: u32,
    /// Local memory per thread, in bytes, where it is reported apart from the stack.
    pub local: u32,
    /// Constant memory, in bytes: parameters and constants, summed over the banks.
    pub constant: u32,
}

/// Machine code for one architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Assembled {
    /// The code, as `cuModuleLoadData` takes it.
    pub cubin: Vec<u8>,
    /// What each kernel needs, by its name.
    pub entries: BTreeMap<String, ResourceUsage>,
}

/// The assembler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ptxas {
    path: PathBuf,
}

impl Ptxas {
    /// The assembler at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Looks for an assembler: the environment variable `PTXAS` (a path), the folders of `PATH`,
    /// then `bin` under `CUDA_HOME`, `CUDA_PATH` and `/usr/local/cuda`.
    ///
    /// # Errors
    ///
    /// [`PtxasError::NotFound`], naming the places. Where `PTXAS` is set it is the only one.
    pub fn find() -> Result<Self, PtxasError> {
        find_in(|name| env::var_os(name).map(PathBuf::from))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its release, for example `13.0`.
    ///
    /// # Errors
    ///
    /// [`PtxasError::Io`] where it cannot be run or says something unexpected.
    pub fn version(&self) -> Result<String, PtxasError> {
        let output = Command::new(&self.path)
            .arg("--version")
            .output()
            .map_err(|source| self.io(source))?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.split_once("release ")
            .and_then(|(_, rest)| rest.split([',', '\n']).next())
            .map(|release| release.trim().to_owned())
            .ok_or_else(|| {
                let what = format!("no release in the output of --version: {text:?}");
                self.io(io::Error::new(io::ErrorKind::InvalidData, what))
            })
    }

    /// Assembles `ptx` for the real architecture of `arch` and reports what each kernel needs.
    ///
    /// # Errors
    ///
    /// [`PtxasError::Rejected`] with the assembler's messages; [`PtxasError::Io`].
    pub fn assemble(&self, ptx: &str, arch: NvvmArch) -> Result<Assembled, PtxasError> {
        let io = |source| self.io(source);
        let folder = tempfile::tempdir().map_err(io)?;
        let source = folder.path().join("kernels.ptx");
        let cubin = folder.path().join("kernels.cubin");
        std::fs::write(&source, ptx).map_err(io)?;
        let output = Command::new(&self.path)
            .args(["--verbose", "--gpu-name", &arch.sm(), "--output-file"])
            .args([&cubin, &source])
            .output()
            .map_err(io)?;
        // What goes wrong is said on stderr, and the report comes on stdout or stderr, depending on
        // the version.
        let messages = [output.stderr, output.stdout]
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .concat();
        if !output.status.success() {
            return Err(PtxasError::Rejected {
                ptxas: self.path.clone(),
                arch: arch.sm(),
                messages: messages.trim().to_owned(),
            });
        }
        Ok(Assembled {
            cubin: std::fs::read(&cubin).map_err(io)?,
            entries: resource_usage(&messages),
        })
    }

    fn io(&self, source: io::Error) -> PtxasError {
        PtxasError::Io {
            ptxas: self.path.clone(),
            source,
        }
    }
}

fn find_in(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<Ptxas, PtxasError> {
    const FILE: &str = if cfg!(windows) { "ptxas.exe" } else { "ptxas" };
    let set = |name: &str| variable(name).filter(|value| !value.as_os_str().is_empty());
    if let Some(path) = set("PTXAS") {
        return if path.is_file() {
            Ok(Ptxas { path })
        } else {
            let tried = vec![format!("PTXAS={}", path.display())];
            Err(PtxasError::NotFound { tried })
        };
    }
    let search = set("PATH").unwrap_or_default();
    if let Some(path) = env::split_paths(&search)
        .map(|folder| folder.join(FILE))
        .find(|path| path.is_file())
    {
        return Ok(Ptxas { path });
    }
    let mut tried = vec!["PATH".to_owned()];
    let roots = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set);
    for root in roots.chain([PathBuf::from("/usr/local/cuda")]) {
        let path = root.join("bin").join(FILE);
        if path.is_file() {
            return Ok(Ptxas { path });
        }
        tried.push(path.display().to_string());
    }
    Err(PtxasError::NotFound { tried })
}

/// Reads the report of `ptxas -v`:
///
/// ```text
/// ptxas info    : Compiling entry function 'scale' for 'sm_90'
/// ptxas info    : Function properties for scale
///     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
/// ptxas info    : Used 18 registers, used 1 barriers, 512 bytes smem, 344 bytes cmem[0]
/// ```
///
/// Functions that are not kernels have properties too; they count towards the kernel that calls
/// them, so only those of the kernel being compiled are taken.
fn resource_usage(report: &str) -> BTreeMap<String, ResourceUsage> {
    let mut entries = BTreeMap::<String, ResourceUsage>::new();
    let mut entry = None;
    let mut properties_of = "";
    for line in report.lines() {
        let line = line.trim();
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default();
            entries.insert(name.to_owned(), ResourceUsage::default());
            entry = Some(name);
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            properties_of = name.trim().trim_matches('\'');
        } else if let Some(usage) = entry.and_then(|name| entries.get_mut(name)) {
            if line.contains("bytes stack frame") && Some(properties_of) == entry {
                for (number, what) in amounts(line) {
                    match what {
                        "bytes stack frame" => usage.stack = number,
                        "bytes spill stores" => usage.spill_stores = number,
                        "bytes spill loads" => usage.spill_loads = number,
                        _ => {}
                    }
                }
            } else if let Some((_, used)) = line.split_once(": Used ") {
                for (number, what) in amounts(used) {
                    match what {
                        "registers" => usage.registers = number,
                        "barriers" => usage.barriers = number,
                        "bytes smem" => usage.shared = number,
                        "bytes lmem" => usage.local = number,
                        "bytes cumulative stack size" => {
                            usage.stack = usage.stack.max(number);
                        }
                        constant if constant.starts_with("bytes cmem") => {
                            usage.constant += number;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    entries
}

/// The parts `12 bytes smem` of a list, as number and rest. Older versions write `16+0 bytes smem`,
/// of which the sum is meant.
fn amounts(list: &str) -> impl Iterator<Item = (u32, &str)> {
    list.split(", ").filter_map(|part| {
        let (number, what) = part.trim_start_matches("used ").split_once(' ')?;
        let sum = number
            .split('+')
            .map(str::parse::<u32>)
            .sum::<Result<_, _>>();
        Some((sum.ok()?, what.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_read_for_every_entry() {
        let report = "\
ptxas info    : 16 bytes gmem
ptxas info    : Compiling entry function 'scale' for 'sm_90'
ptxas info    : Function properties for scale
    64 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 18 registers, used 1 barriers, 64 bytes cumulative stack size, 512 bytes smem, 344 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 14.608 ms
ptxas info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function 'checked' for 'sm_90'
ptxas info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Function properties for checked
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, 40+8 bytes smem, 24 bytes lmem
";
        let entries = resource_usage(report);
        assert_eq!(entries.len(), 2);
        assert_eq!(
            entries["scale"],
            ResourceUsage {
                registers: 18,
                barriers: 1,
                shared: 512,
                stack: 64,
                spill_stores: 12,
                spill_loads: 20,
                local: 0,
                constant: 352,
            }
        );
        assert_eq!(
            entries["checked"],
            ResourceUsage {
                registers: 255,
                shared: 48,
                local: 24,
                ..ResourceUsage::default()
            }
        );
    }

    #[test]
    fn an_empty_report_has_no_entries() {
        assert!(resource_usage("").is_empty());
        assert!(resource_usage("ptxas info    : 0 bytes gmem\n").is_empty());
    }

    #[test]
    fn the_search_goes_by_variable_then_path_then_toolkit() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = if cfg!(windows) { "ptxas.exe" } else { "ptxas" };
        let (bin, home) = (folder.path().join("path"), folder.path().join("home"));
        std::fs::create_dir_all(home.join("bin")).expect("a folder");
        std::fs::create_dir_all(&bin).expect("a folder");
        let (own, on_path, in_home) = (
            folder.path().join("own"),
            bin.join(file),
            home.join("bin").join(file),
        );
        let find = |set_own: bool| {
            find_in(|name| match name {
                "PTXAS" if set_own => Some(own.clone()),
                "PATH" => Some(bin.clone()),
                "CUDA_HOME" => Some(home.clone()),
                _ => None,
            })
        };

        let error = find(true).expect_err("PTXAS names no file").to_string();
        assert!(
            error.contains(&format!("PTXAS={}", own.display())),
            "{error}"
        );

        std::fs::write(&in_home, "").expect("a file");
        assert_eq!(find(false).expect("in CUDA_HOME").path(), in_home);
        std::fs::write(&on_path, "").expect("a file");
        assert_eq!(find(false).expect("on PATH").path(), on_path);
        std::fs::write(&own, "").expect("a file");
        assert_eq!(find(true).expect("by PTXAS").path(), own);
    }
}
