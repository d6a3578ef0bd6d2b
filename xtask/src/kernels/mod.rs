//! What the kernels compile to, and what is demanded of it.

mod budget;
mod inspect;
mod rules;

pub use budget::Budget;
pub use inspect::{ArchReport, EntryReport, Ptx, Usage, compile, embedded, inspect};
pub use rules::{Violation, violations};
