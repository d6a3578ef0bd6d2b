//! The recorded register counts, in `xtask/ptx_budget.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::ArchReport;
use crate::files::write_atomically;

/// Registers per thread that each kernel may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Release of the assembler that counted them; another one may count a little differently.
    pub ptxas: String,
    /// Registers by architecture and kernel.
    pub registers: BTreeMap<String, BTreeMap<String, u32>>,
}

impl Budget {
    /// Where it is recorded.
    pub fn path(root: &Path) -> PathBuf {
        root.join("xtask/ptx_budget.json")
    }

    /// Reads what is recorded.
    ///
    /// # Errors
    /// A file that is missing or malformed.
    pub fn read(root: &Path) -> Result<Self> {
        let path = Self::path(root);
        let hint = || {
            format!(
                "cannot read {}; `cargo xtask ptx --bless` writes it",
                path.display()
            )
        };
        let text = fs::read_to_string(&path).with_context(hint)?;
        serde_json::from_str(&text).with_context(hint)
    }

    /// What the kernels use now. Architectures that are not in `reports` keep what is in `self`.
    pub fn updated(mut self, ptxas: String, reports: &[ArchReport]) -> Self {
        self.ptxas = ptxas;
        for report in reports {
            let registers = report
                .entries
                .iter()
                .filter_map(|entry| Some((entry.name.clone(), entry.usage?.registers)));
            self.registers
                .insert(report.arch.clone(), registers.collect());
        }
        self
    }

    /// Records it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, root: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        write_atomically(&Self::path(root), |file| file.write_all(text.as_bytes()))?;
        Ok(())
    }

    /// The registers that `entry` may use on `arch`, if recorded.
    pub fn registers(&self, arch: &str, entry: &str) -> Option<u32> {
        self.registers.get(arch)?.get(entry).copied()
    }
}
