//! Reading PTX: entry points, parameters, directives and instructions, enough to check what a
//! compiler produced.
//!
//! ```
//! use cuda_builder::ptx::Module;
//!
//! let module = Module::parse(
//!     ".version 8.0\n.target sm_90\n.address_size 64\n\
//!      .visible .entry copy(.param .u64 to, .param .u64 from)\n.maxntid 128, 1, 1\n\
//!      {\n\t.reg .b64 %rd<3>;\n\t.reg .b32 %r<5>;\n\
//!      \tld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];\n\
//!      \tst.global.v4.b32 [%rd2], {%r1, %r2, %r3, %r4};\n\tret;\n}\n",
//! )?;
//! let copy = module.entry("copy").expect("it is there");
//! assert_eq!(copy.params.len(), 2);
//! assert_eq!(copy.directive("maxntid"), Some(&[128, 1, 1][..]));
//! assert_eq!(copy.count("ld.global"), 1);
//! assert!(!copy.uses_local_memory());
//! # Ok::<(), cuda_builder::ptx::ParseError>(())
//! ```
//!
//! This is not a validator: text that `ptxas` rejects may parse. Registers, labels, debug sections
//! and the initial values of variables are skipped.

mod scan;

use std::collections::BTreeMap;

pub use scan::ParseError;

/// A PTX module.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Module {
    /// PTX version, from `.version`: `(8, 0)`.
    pub version: (u32, u32),
    /// Architecture, from `.target`: `sm_90a`.
    pub target: String,
    /// Bits of an address, from `.address_size`.
    pub address_size: u32,
    /// Kernels (`.entry`), in order of appearance.
    pub entries: Vec<Function>,
    /// Functions with a body (`.func`), in order of appearance.
    pub functions: Vec<Function>,
    /// Functions declared only: imports such as `vprintf`, and forward declarations.
    pub declared_functions: Vec<String>,
    /// Variables of the module: `.global`, `.const` and `.shared`.
    pub variables: Vec<Variable>,
}

impl Module {
    /// Reads a module.
    ///
    /// # Errors
    ///
    /// [`ParseError`], with the line, where the text is no PTX: a missing `.version`, `.target` or
    /// `.address_size`, an unfinished statement or body, a declaration without a name.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        scan::module(text)
    }

    /// The kernel of that name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Function> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Names of functions that are called or declared but have no body here, `vprintf` and the
    /// other functions that the driver supplies included; sorted.
    #[must_use]
    pub fn unresolved_functions(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .declared_functions
            .iter()
            .map(String::as_str)
            .filter(|name| !self.functions.iter().any(|function| function.name == *name))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// A kernel or a function.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// Its symbol.
    pub name: String,
    /// The line it begins on, from 1.
    pub line: usize,
    /// Its parameters, in order.
    pub params: Vec<Variable>,
    /// Its performance directives, in order.
    pub directives: Vec<Directive>,
    /// Variables declared in its body: `.local` and `.shared`.
    pub variables: Vec<Variable>,
    /// Its instructions, in order.
    pub instructions: Vec<Instruction>,
}

impl Function {
    /// The values of a directive given by name without the dot, for example `maxntid`.
    #[must_use]
    pub fn directive(&self, name: &str) -> Option<&[u32]> {
        self.directives
            .iter()
            .find(|directive| directive.name == name)
            .map(|directive| directive.values.as_slice())
    }

    /// How often each mnemonic occurs, with all its modifiers: `ld.global.v4.b32`.
    #[must_use]
    pub fn instruction_counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for instruction in &self.instructions {
            *counts.entry(instruction.mnemonic.as_str()).or_insert(0) += 1;
        }
        counts
    }

    /// How many instructions have a mnemonic that begins with `mnemonic`, compared modifier by
    /// modifier: `ld.global` counts `ld.global.v4.b32`, and not `ld.globals`.
    #[must_use]
    pub fn count(&self, mnemonic: &str) -> usize {
        self.instructions
            .iter()
            .filter(|instruction| instruction.is(mnemonic))
            .count()
    }

    /// Bytes of local memory that the body declares: arrays that did not fit registers. Spills are
    /// not among them; those are decided by `ptxas`.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        self.variables
            .iter()
            .filter(|variable| variable.space == Space::Local)
            .map(Variable::bytes)
            .sum()
    }

    /// Whether the body declares local memory or has an instruction that accesses it.
    #[must_use]
    pub fn uses_local_memory(&self) -> bool {
        self.local_bytes() > 0
            || self.instructions.iter().any(|instruction| {
                matches!(instruction.mnemonic.split_once('.'), Some(("ld" | "st", modifiers))
                    if modifiers.split('.').any(|modifier| modifier == "local"))
            })
    }
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Instruction {
    /// The predicate that guards it, without the `@`: `%p1` or `!%p1`.
    pub predicate: Option<String>,
    /// The operation with its modifiers: `ld.global.v4.b32`.
    pub mnemonic: String,
    /// The rest, as written.
    pub operands: String,
    /// The line it begins on, from 1.
    pub line: usize,
}

impl Instruction {
    /// Whether the mnemonic begins with `mnemonic`, compared modifier by modifier.
    #[must_use]
    pub fn is(&self, mnemonic: &str) -> bool {
        self.mnemonic
            .strip_prefix(mnemonic)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// A performance directive of a function, such as `.maxntid 128, 1, 1`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Directive {
    /// Its name without the dot.
    pub name: String,
    /// Its numbers.
    pub values: Vec<u32>,
}

/// Where a variable lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Space {
    /// A parameter.
    Param,
    /// Device memory.
    Global,
    /// Constant memory.
    Const,
    /// The block's shared memory.
    Shared,
    /// A thread's own memory, which is device memory too.
    Local,
}

/// A parameter or a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Variable {
    /// Where it lives.
    pub space: Space,
    /// Its symbol.
    pub name: String,
    /// Type of one element without the dot: `u64`, `b8`.
    pub ty: String,
    /// Vector width: 1, 2 or 4.
    pub vector: u32,
    /// Alignment in bytes, where given.
    pub align: Option<u32>,
    /// Number of elements: the product of the array's dimensions, 1 without any, 0 for an array of
    /// unknown size (dynamic shared memory).
    pub elements: u64,
}

impl Variable {
    /// Size in bytes; 0 where the size or the type is unknown.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bits: u64 = match self.ty.as_str() {
            "pred" => 8,
            // Packed types are named by their parts: f16x2.
            packed if packed.ends_with("x2") => 32,
            ty => ty
                .trim_start_matches(char::is_alphabetic)
                .parse()
                .unwrap_or(0),
        };
        bits / 8 * u64::from(self.vector) * self.elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNELS: &str = r#"
//
// Generated by LLVM NVPTX Back-End
//

.version 8.0
.target sm_90a, debug
.address_size 64

// cuda_std.launch_bounds scale max_threads=128 min_blocks=8
.extern .func  (.param .b32 func_retval0) vprintf
(
	.param .b64 vprintf_param_0,
	.param .b64 vprintf_param_1
)
;
.extern .shared .align 16 .b8 dynamic[];
.shared .align 1024 .b8 tile[512];
.global .align 4 .b8 table[8] = {1, 2, 3, 4, 5, 6, 7, 8}; /* { not a body ; */
.visible .const .align 8 .v2 .f32 pair;

	// .globl	scale
.visible .entry scale(
	.param .u64 .ptr .align 1 scale_param_0,
	.param .u32 scale_param_1,
	.param .align 16 .b8 scale_param_2[32]
)
.maxntid 128, 1, 1
.minnctapersm 8
{
	.local .align 8 .b8 	__local_depot0[24];
	.reg .b64 	%SP;
	.reg .pred 	%p<2>;
	.loc	1 12 5
	mov.b64 	%SPL, __local_depot0;
	@%p1 bra 	$L__BB0_2;
	bra.uni 	$L__BB0_1;
$L__BB0_2: ld.global.v4.b32 	{%r1, %r2, %r3, %r4}, [%rd1];
	ld.global.b32 	%r1, [%rd1+16];
	st.volatile.local.b32 	[%rd3], %r1;
	{ // callseq 0, 0
	.param .b64 param0;
	.param .b32 retval0;
	st.param.b64 	[param0], %rd1;
	call.uni (retval0), vprintf, (param0, param1);
	} // callseq 0
	@!%p1 trap; exit;
$L__BB0_1:
	// begin inline asm
	{ .reg .pred q; setp.ne.u32 q, %r1, 0; @q bar.sync 1; }
	// end inline asm
	ret;
}
.func helper()
{
	ret;
}
	.section	.debug_str
	{
$L__info_string0:
.b8 114; // "r"
	}
"#;

    #[test]
    fn a_module_is_read_whole() {
        let module = Module::parse(KERNELS).expect("it is PTX");
        assert_eq!(module.version, (8, 0));
        assert_eq!(module.target, "sm_90a");
        assert_eq!(module.address_size, 64);
        assert_eq!(module.declared_functions, ["vprintf"]);
        assert_eq!(module.unresolved_functions(), ["vprintf"]);
        assert_eq!(module.functions.len(), 1);
        assert_eq!(module.functions[0].name, "helper");
        let variables: Vec<_> = module
            .variables
            .iter()
            .map(|v| (v.name.as_str(), v.space, v.align, v.bytes()))
            .collect();
        assert_eq!(
            variables,
            [
                ("dynamic", Space::Shared, Some(16), 0),
                ("tile", Space::Shared, Some(1024), 512),
                ("table", Space::Global, Some(4), 8),
                ("pair", Space::Const, Some(8), 8),
            ]
        );
    }

    #[test]
    fn a_qualified_state_space_is_no_label() {
        let text = ".version 8.0\n.target sm_90\n.address_size 64\n.entry k()\n{\n\
                    here:cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 512;\n\
                    fence.proxy.async.shared::cta;\n\tret;\n}\n";
        let module = Module::parse(text).expect("it is PTX");
        let mnemonics: Vec<_> = module.entries[0]
            .instructions
            .iter()
            .map(|instruction| instruction.mnemonic.as_str())
            .collect();
        assert_eq!(
            mnemonics,
            [
                "cp.async.bulk.global.shared::cta.bulk_group",
                "fence.proxy.async.shared::cta",
                "ret",
            ]
        );
    }

    #[test]
    fn an_entry_has_its_signature_and_directives() {
        let module = Module::parse(KERNELS).expect("it is PTX");
        let scale = module.entry("scale").expect("it is there");
        let params: Vec<_> = scale
            .params
            .iter()
            .map(|p| (p.name.as_str(), p.ty.as_str(), p.align, p.bytes()))
            .collect();
        assert_eq!(
            params,
            [
                ("scale_param_0", "u64", None, 8),
                ("scale_param_1", "u32", None, 4),
                ("scale_param_2", "b8", Some(16), 32),
            ]
        );
        assert_eq!(scale.directive("maxntid"), Some(&[128, 1, 1][..]));
        assert_eq!(scale.directive("minnctapersm"), Some(&[8][..]));
        assert_eq!(scale.directive("maxnreg"), None);
        assert_eq!(scale.line, 23);
        assert!(module.entry("helper").is_none());
    }

    #[test]
    fn instructions_are_told_from_everything_else() {
        let module = Module::parse(KERNELS).expect("it is PTX");
        let scale = module.entry("scale").expect("it is there");
        assert_eq!(scale.count("ld.global"), 2);
        assert_eq!(scale.count("ld.global.v4"), 1);
        assert_eq!(scale.count("ld.glob"), 0);
        assert_eq!(scale.count("bar"), 1);
        assert_eq!(scale.count("exit"), 1);
        assert_eq!(scale.instruction_counts()["bra"], 1);
        assert_eq!(scale.instructions.len(), 13);
        let guarded: Vec<_> = scale
            .instructions
            .iter()
            .filter_map(|i| i.predicate.as_deref().map(|p| (p, i.mnemonic.as_str())))
            .collect();
        assert_eq!(
            guarded,
            [("%p1", "bra"), ("!%p1", "trap"), ("q", "bar.sync")]
        );
        let call = scale
            .instructions
            .iter()
            .find(|i| i.is("call"))
            .expect("a call");
        assert_eq!(call.operands, "(retval0), vprintf, (param0, param1)");
        assert_eq!(call.line, 45);
    }

    #[test]
    fn local_memory_is_seen() {
        let module = Module::parse(KERNELS).expect("it is PTX");
        let scale = module.entry("scale").expect("it is there");
        assert_eq!(scale.local_bytes(), 24);
        assert!(scale.uses_local_memory());
        assert!(!module.functions[0].uses_local_memory());
    }

    #[test]
    fn what_is_no_ptx_is_an_error_with_a_line() {
        const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";
        let error = |text: &str| Module::parse(text).expect_err("it is no PTX").to_string();
        assert_eq!(error(""), "no .version directive");
        assert_eq!(
            error(".version 8.0\n.target sm_90\n"),
            "no .address_size directive"
        );
        assert_eq!(
            error("\n.version eight\n"),
            "line 2: cannot read \".version eight\""
        );
        assert_eq!(
            error(&format!("{HEAD}.visible .entry f()\n{{\n\tret;\n")),
            "line 4: the text ends inside a body"
        );
        assert_eq!(
            error(&format!("{HEAD}.visible .entry f(.param .u32 n\n")),
            "line 4: the text ends inside a parameter list"
        );
        assert_eq!(
            error(&format!("{HEAD}fn main() {{}}\n")),
            "line 4: cannot read \"fn\""
        );
        assert_eq!(
            error(&format!("{HEAD}/* open\n")),
            "line 4: the text ends inside a comment"
        );
        assert_eq!(
            error(&format!("{HEAD}.global .align 4 .b8;\n")),
            "line 4: cannot read \".global .align 4 .b8\""
        );
    }
}
