//! Every command and flag of `cargo xtask`, in one place.
//!
//! What a command does with its flags is in the file of the same name under `commands/`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use tokenyard::ep::{CombineFormat, TokenFormat};
use tokenyard::options::{
    DeadBlocks, Format, InputType, NanPolicy, QuantizeOptions, ScaleRounding,
};
use tokenyard::{ScaleStore, Swizzle};

use crate::bench::cases::{Filter, Suite};
use crate::bench::ep::cases::COMBINE_FORMATS;
use crate::bench::measure::Launch;
use crate::commands::bench_ep::BenchEpFlags;

/// Build, run, test and inspect Tokenyard.
///
/// Start with `cargo xtask run`: it needs neither a GPU nor a CUDA toolkit. `cargo xtask doctor`
/// says what this machine has and what it is missing.
#[derive(Debug, Parser)]
#[command(
    name = "xtask",
    bin_name = "cargo xtask",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// Print one JSON document on standard output instead of tables; implies no progress bars
    #[arg(long, global = true)]
    pub json: bool,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands, in the order in which `cargo xtask help` lists them.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(RunFlags),
    Quantize(QuantizeFlags),
    Dequantize(DequantizeFlags),
    Dispatch(DispatchFlags),
    Test(TestFlags),
    Bench(BenchFlags),
    Ptx(PtxFlags),
    GpuBundle(GpuBundleFlags),
    /// Say what this machine has, what it is missing, and the command that brings it
    Doctor,
    Ci(CiFlags),
}

/// Where kernels run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// A GPU where there is one, the emulator otherwise
    #[default]
    Auto,
    /// An NVIDIA GPU; an error where there is none
    Cuda,
    /// The kernels on the CPU, in the SIMT emulator
    Emulator,
    /// The plain CPU implementation that serves as the oracle; no kernel runs
    Reference,
}

/// Which device does the work.
#[derive(Args, Clone, Copy, Debug)]
pub struct BackendFlags {
    /// Where the kernels run
    #[arg(long, value_enum, default_value_t, value_name = "BACKEND")]
    pub backend: BackendChoice,

    /// Seed of the emulator's schedule; the same seed replays the same interleaving
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
}

/// Quantize real hidden states in every format and dispatch them, check every bit, plot the error
#[derive(Args, Debug)]
pub struct RunFlags {
    /// Which device does the work.
    #[command(flatten)]
    pub backend: BackendFlags,

    /// Input in place of the bundled hidden states; the tensors are those of `quantize`
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,

    /// Number of experts, when the input has `topk_ids`  [default: largest id + 1]
    #[arg(long, value_name = "E")]
    pub experts: Option<u32>,

    /// Folder for the pictures and the quantized files; made if missing  [default: out]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Quantize the rows of a safetensors file
///
/// The input holds `hidden_states` [T, K] (BF16, F16 or F32; K a multiple of 8) and either
/// `topk_ids` [T, k] I32, from which rows are grouped by expert, or, for rows that are grouped
/// already, `row_offsets` [E+1] (U32 or I32) and optionally `expert_ids`, E of I32. Optionally
/// `sf`, X of F32: each expert's encode factor (FP4 formats; 1.0 where absent).
///
/// The output holds `data` ([R, K/2] U8, two E2M1 codes to a byte, or [R, K] F8_E4M3), `scales`
/// [Mt, Kt, 32, 4, 4] U8, `row_offsets` U32, `scales_offsets` U32, `expert_ids` I32,
/// `source_rows` I32 and `sf` F32.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct QuantizeFlags {
    /// safetensors file to read
    #[arg(value_name = "IN")]
    pub input: PathBuf,

    /// safetensors file to write; replaced only once the new content is complete
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,

    /// Output format
    #[arg(long, value_parser = format_parser(), value_name = "FORMAT")]
    pub format: Format,

    /// Rounding, dead blocks and NaN.
    #[command(flatten)]
    pub policies: PolicyFlags,

    /// Number of experts, when the input has `topk_ids`  [default: largest id + 1]
    #[arg(long, value_name = "E")]
    pub experts: Option<u32>,

    /// Which device does the work.
    #[command(flatten)]
    pub backend: BackendFlags,
}

/// The policies of a quantization.
#[derive(Args, Clone, Copy, Debug)]
pub struct PolicyFlags {
    /// How a power-of-two scale is chosen from the largest magnitude (MX formats)
    #[arg(long, value_parser = scale_rounding_parser(), default_value_t, value_name = "ROUNDING")]
    pub scale_rounding: ScaleRounding,

    /// What becomes of blocks too small for the least scale
    #[arg(long, value_parser = dead_blocks_parser(), default_value_t, value_name = "POLICY")]
    pub dead_blocks: DeadBlocks,

    /// What a NaN does to the other elements of its block
    #[arg(long, value_parser = nan_parser(), default_value_t, value_name = "POLICY")]
    pub nan: NanPolicy,
}

impl PolicyFlags {
    /// The same, as the library spells it.
    pub fn options(self) -> QuantizeOptions {
        QuantizeOptions {
            scale_rounding: self.scale_rounding,
            dead_blocks: self.dead_blocks,
            nan_policy: self.nan,
        }
    }
}

/// Turn a file that `quantize` wrote back into FP32 rows
///
/// Writes `hidden_states` F32 [R, K]: row r is the approximation of input row `source_rows[r]`.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct DequantizeFlags {
    /// File that `quantize` wrote
    #[arg(value_name = "IN")]
    pub input: PathBuf,

    /// safetensors file to write; replaced only once the new content is complete
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,

    /// Which device does the work.
    #[command(flatten)]
    pub backend: BackendFlags,
}

/// Send the tokens of a safetensors file to their experts, over virtual ranks of one device
///
/// The input holds `hidden_states` [T, H] BF16 and `topk_ids` [T, K] I32, -1 for no expert;
/// optionally `input_scales` F32, whose first element is NVFP4's global factor. Ranks take their
/// tokens in order.
///
/// The output holds for each rank r the rows that it received, grouped by its experts:
/// `rank{r}.tokens`, `.scales`, `.row_offsets`, `.expert_ids`, `.src_info` (token and position) and
/// `.src_rank`; -1 marks rows that were not sent: the shared expert's, and padding.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct DispatchFlags {
    /// safetensors file to read
    #[arg(value_name = "IN")]
    pub input: PathBuf,

    /// safetensors file to write; replaced only once the new content is complete
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,

    /// Number of ranks
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks: u32,

    /// Number of experts of all ranks together, a multiple of R
    #[arg(long, value_name = "E", value_parser = clap::value_parser!(u32).range(1..))]
    pub experts: u32,

    /// Format of the rows on their way
    #[arg(long, value_parser = token_format_parser(), value_name = "FORMAT")]
    pub format: TokenFormat,

    /// Tokens of each rank, as many numbers as ranks  [default: as even as can be]
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N,N,...",
        conflicts_with = "skip_a2a"
    )]
    pub tokens_per_rank: Option<Vec<usize>>,

    /// One launch for all ranks and both halves, in place of one for each
    #[arg(long)]
    pub fused: bool,

    /// A rank's own tokens come first, as group 0; only one launch for everything can do that
    #[arg(long, requires = "fused")]
    pub shared_expert: bool,

    /// Every rank has all tokens and keeps those for its own experts; nothing is exchanged
    #[arg(long)]
    pub skip_a2a: bool,

    /// Write scales to the preshuffled layout with M rows a group, a multiple of 32 (MX formats)
    #[arg(long, value_name = "M")]
    pub preshuffle: Option<usize>,

    /// Rows of one expert and source rank in the order of their tokens, on every run
    #[arg(long)]
    pub deterministic: bool,

    /// How an MX scale is chosen from the largest magnitude  [default: even for MXFP4, rceil for MXFP8]
    #[arg(long, value_parser = scale_rounding_parser(), value_name = "ROUNDING")]
    pub scale_rounding: Option<ScaleRounding>,

    /// Which device does the work.
    #[command(flatten)]
    pub backend: BackendFlags,
}

/// Which backends the conformance suite runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TestBackend {
    /// The emulator, and a GPU where there is one (skipped with the reason otherwise)
    #[default]
    All,
    /// The emulator alone
    Emulator,
    /// A GPU; an error where there is none
    Cuda,
}

/// Run the conformance suite, the unit tests and the doc tests
///
/// The last line is `N passed, N failed, N skipped`, summed over everything that ran.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct TestFlags {
    /// Where the conformance suite runs
    #[arg(long, value_enum, default_value_t, value_name = "BACKEND")]
    pub backend: TestBackend,

    /// Run the conformance suite alone, without unit and doc tests
    #[arg(long)]
    pub conformance: bool,

    /// Only tests whose name contains this
    #[arg(value_name = "FILTER")]
    pub filter: Option<String>,

    /// Passed to the test binaries as they are, for example `-- --list`
    #[arg(last = true, value_name = "ARGS")]
    pub arguments: Vec<String>,
}

/// Measure the kernels on a GPU against what its memory allows
#[derive(Args, Debug)]
pub struct BenchFlags {
    /// What to measure.
    #[command(subcommand)]
    pub subject: BenchSubject,
}

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchSubject {
    Quantize(BenchQuantizeFlags),
    Ep(BenchEpFlags),
}

/// Where the benchmark runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BenchBackend {
    /// An NVIDIA GPU; an error where there is none
    #[default]
    Cuda,
    /// The emulator: a trial run that compares bytes and measures nothing, small shapes only
    Emulator,
}

/// How scale tiles leave shared memory for the scales tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum StoreChoice {
    /// What the library chooses for the device
    #[default]
    Auto,
    /// One bulk copy for all tiles of a block
    Bulk,
    /// A copy through a tensor map for each tile, without a swizzle
    TensorMap,
    /// A copy through a tensor map for each tile, swizzled within 128 bytes
    TensorMapB128,
    /// 16-byte stores by the threads
    Plain,
}

impl StoreChoice {
    /// The same, as the library spells it.
    pub fn store(self) -> ScaleStore {
        match self {
            StoreChoice::Auto => ScaleStore::Auto,
            StoreChoice::Bulk => ScaleStore::Bulk,
            StoreChoice::TensorMap => ScaleStore::TensorMap(Swizzle::None),
            StoreChoice::TensorMapB128 => ScaleStore::TensorMap(Swizzle::B128),
            StoreChoice::Plain => ScaleStore::Plain,
        }
    }
}

/// Time the grouped quantizer
///
/// Each case is compared with the reference, byte for byte (the largest by a sample of rows), and
/// only then timed: the kernel, its traffic twin (the same grid, loads and stores without
/// arithmetic), a plain copy of as many bytes, and for small shapes an empty kernel take turns, each
/// replayed from a CUDA graph over buffers that rotate past the L2 cache. Bytes count every input
/// element and every output byte once, padded scales included.
///
/// The folder of results gets quantize.json, which is the record of the run, and pictures. Records
/// that are kept, in benches/records, are what later runs are compared with.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct BenchQuantizeFlags {
    /// Which cases
    #[arg(long, value_enum, default_value_t, value_name = "SUITE")]
    pub suite: Suite,

    /// Only shapes whose name contains this, zipf-32768x7168-e64 or 192x4096 for example; repeatable
    #[arg(long, value_name = "NAME")]
    pub shape: Vec<String>,

    /// Only this output format; repeatable
    #[arg(long, value_parser = format_parser(), value_name = "FORMAT")]
    pub format: Vec<Format>,

    /// Only this input type; repeatable
    #[arg(long, value_parser = input_parser(), value_name = "TYPE")]
    pub input: Vec<InputType>,

    /// Rounds of each case  [default: 40, or 8 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub rounds: Option<u32>,

    /// Few rounds, for a first look while tuning
    #[arg(long)]
    pub quick: bool,

    /// As many scale tiles as are occupied, in place of the bound that a caller has who does not know
    /// how rows fall to experts
    #[arg(long)]
    pub exact_tiles: bool,

    /// Runs of 512 columns that a block takes: 1, 2, 4 or 8  [default: the library's]
    #[arg(long, value_name = "N")]
    pub runs_per_block: Option<u32>,

    /// Threads of a block  [default: the library's]
    #[arg(long, value_name = "N")]
    pub threads_per_block: Option<u32>,

    /// How scale tiles leave shared memory
    #[arg(long, value_enum, default_value_t, value_name = "STORE")]
    pub scale_store: StoreChoice,

    /// Where the kernels run
    #[arg(long, value_enum, default_value_t, value_name = "BACKEND")]
    pub backend: BenchBackend,

    /// Folder of results; made if missing  [default: out/bench]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Folder of earlier records  [default: benches/records, or records beside this program]
    #[arg(long, value_name = "DIR")]
    pub records: Option<PathBuf>,

    /// Also write each case's input and output there, for other programs to work on the same bytes
    #[arg(long, value_name = "DIR")]
    pub dump: Option<PathBuf>,
}

impl BenchQuantizeFlags {
    /// What the flags keep of a suite.
    pub fn filter(&self) -> Filter {
        Filter {
            shapes: self.shape.clone(),
            formats: self.format.clone(),
            inputs: self.input.clone(),
        }
    }

    /// How the quantizer and its twin are launched.
    pub fn launch(&self) -> Launch {
        Launch {
            runs_per_block: self.runs_per_block,
            threads_per_block: self.threads_per_block,
            scale_store: self.scale_store.store(),
        }
    }

    /// How many rounds to measure.
    pub fn rounds(&self) -> usize {
        let default = if self.quick { 8 } else { 40 };
        self.rounds.map_or(default, |rounds| rounds as usize)
    }
}

/// Report what the kernels compile to: registers, shared memory, spills, instructions
///
/// Registers, stack and spills come from `ptxas`; without it the report has what can be read from
/// the PTX itself.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct PtxFlags {
    /// Fail on spills, local memory, more registers than recorded, or an unwanted code shape
    #[arg(long)]
    pub check: bool,

    /// Record the present register counts as the limit for `--check`
    #[arg(long, conflicts_with = "check")]
    pub bless: bool,

    /// Fetch `ptxas` with pip, into the target folder, where there is none
    #[arg(long)]
    pub fetch: bool,

    /// Compile for this architecture, for example compute_120, in place of those that the library
    /// embeds; repeatable
    #[arg(long, value_name = "ARCH")]
    pub arch: Vec<String>,
}

/// Pack the conformance suite for a GPU machine that has no Rust
///
/// Copy the folder to any x86-64 Linux machine with an NVIDIA driver and start `run.sh` there.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct GpuBundleFlags {
    /// Folder to make; must not exist, or hold an earlier bundle  [default: out/gpu-bundle]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Everything that CI checks
#[derive(Args, Debug)]
pub struct CiFlags {
    /// Stop at the first step that fails
    #[arg(long)]
    pub fail_fast: bool,
}

/// Accepts the names of `all`, in either case, and lists them in the help text.
fn format_parser() -> impl TypedValueParser<Value = Format> {
    names(Format::ALL.map(Format::name)).try_map(|name| name.parse::<Format>())
}

fn input_parser() -> impl TypedValueParser<Value = InputType> {
    names(InputType::ALL.map(InputType::name)).try_map(|name| name.parse::<InputType>())
}

pub fn token_format_parser() -> impl TypedValueParser<Value = TokenFormat> {
    names(TokenFormat::ALL.map(TokenFormat::name)).try_map(|name| name.parse::<TokenFormat>())
}

/// Accepts the formats of the way home that the benchmark has.
pub fn combine_format_parser() -> impl TypedValueParser<Value = CombineFormat> {
    names(COMBINE_FORMATS.map(CombineFormat::name)).try_map(|name| name.parse::<CombineFormat>())
}

fn scale_rounding_parser() -> impl TypedValueParser<Value = ScaleRounding> {
    names(ScaleRounding::ALL.map(ScaleRounding::name)).try_map(|name| name.parse::<ScaleRounding>())
}

fn dead_blocks_parser() -> impl TypedValueParser<Value = DeadBlocks> {
    names(DeadBlocks::ALL.map(DeadBlocks::name)).try_map(|name| name.parse::<DeadBlocks>())
}

fn nan_parser() -> impl TypedValueParser<Value = NanPolicy> {
    names(NanPolicy::ALL.map(NanPolicy::name)).try_map(|name| name.parse::<NanPolicy>())
}

/// Accepts one of `names` and lists them all in help and error messages.
fn names<const N: usize>(names: [&'static str; N]) -> PossibleValuesParser {
    PossibleValuesParser::new(names)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn quantize_has_the_documented_defaults() {
        let cli = parse("xtask quantize in.st -o out.st --format mxfp8").unwrap();
        let Command::Quantize(flags) = cli.command else {
            panic!("parsed as {:?}", cli.command);
        };
        assert_eq!(flags.format, Format::Mxfp8);
        assert_eq!(flags.policies.options(), QuantizeOptions::default());
        assert_eq!(flags.backend.backend, BackendChoice::Auto);
        assert_eq!(flags.experts, None);
    }

    #[test]
    fn quantize_takes_every_policy_by_name() {
        for rounding in ScaleRounding::ALL {
            let line = format!(
                "xtask quantize in -o out --format mxfp4 --scale-rounding {rounding} \
                 --dead-blocks strict --nan propagate --backend reference --seed 7 --experts 32"
            );
            let Command::Quantize(flags) = parse(&line).unwrap().command else {
                panic!("not quantize");
            };
            assert_eq!(
                flags.policies.options(),
                QuantizeOptions {
                    scale_rounding: rounding,
                    dead_blocks: DeadBlocks::Strict,
                    nan_policy: NanPolicy::Propagate,
                }
            );
            assert_eq!(flags.backend.seed, 7);
        }
    }

    #[test]
    fn a_wrong_format_lists_the_right_ones() {
        let error = parse("xtask quantize in -o out --format fp4").unwrap_err();
        let text = error.to_string();
        for format in Format::ALL {
            assert!(text.contains(format.name()), "{text}");
        }
    }

    #[test]
    fn json_is_accepted_after_the_command() {
        assert!(parse("xtask doctor --json").unwrap().json);
        assert!(parse("xtask --json doctor").unwrap().json);
    }

    #[test]
    fn test_passes_on_what_follows_the_dashes() {
        let Command::Test(flags) = parse("xtask test --backend emulator nvfp4 -- --list")
            .unwrap()
            .command
        else {
            panic!("not test");
        };
        assert_eq!(flags.backend, TestBackend::Emulator);
        assert_eq!(flags.filter.as_deref(), Some("nvfp4"));
        assert_eq!(flags.arguments, ["--list"]);
    }

    #[test]
    fn bench_narrows_and_repeats_as_told() {
        let line = "xtask bench quantize --suite all --shape 192x --format mxfp4 --format mxfp8 \
                    --input f32 --quick --runs-per-block 4 \
                    --threads-per-block 128 --scale-store tensor-map";
        let Command::Bench(flags) = parse(line).unwrap().command else {
            panic!("not bench");
        };
        let BenchSubject::Quantize(flags) = flags.subject else {
            panic!("not quantize");
        };
        assert_eq!((flags.suite, flags.rounds()), (Suite::All, 8));
        assert_eq!(flags.filter().formats, [Format::Mxfp4, Format::Mxfp8]);
        let launch = flags.launch();
        assert_eq!(launch.runs_per_block, Some(4));
        assert_eq!(launch.threads_per_block, Some(128));
        assert_eq!(launch.scale_store, ScaleStore::TensorMap(Swizzle::None));
        assert_eq!(flags.backend, BenchBackend::Cuda);
        assert!(parse("xtask bench quantize --rounds 0").is_err());
        assert!(parse("xtask bench").is_err());
    }

    #[test]
    fn check_and_bless_exclude_each_other() {
        assert!(parse("xtask ptx --check --bless").is_err());
    }
}
