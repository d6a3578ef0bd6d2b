//! The commands as a user starts them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

fn xtask() -> Command {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
}

/// Runs a command that must succeed, and returns what it prints to standard output.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with `code`, and returns what it prints to standard error.
fn fail(command: &mut Command, code: i32) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    let complaint = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(code), "{command:?}: {complaint}");
    assert!(!complaint.contains("panicked"), "{complaint}");
    complaint
}

/// 40 tokens of 72 columns, each for two of five experts, one of which nobody chooses.
fn write_input(path: &Path) {
    let mut state = 1_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let values: Vec<u8> = (0..40 * 72)
        .flat_map(|_| (random() as f32 / (1 << 20) as f32 - 8.0).to_le_bytes())
        .collect();
    let ids: Vec<u8> = (0..40)
        .flat_map(|_| {
            let first = random() % 4;
            [first, (first + 1) % 4]
        })
        .flat_map(u32::to_le_bytes)
        .collect();
    let tensors = [
        (
            "hidden_states",
            TensorView::new(Dtype::F32, vec![40, 72], &values).unwrap(),
        ),
        (
            "topk_ids",
            TensorView::new(Dtype::I32, vec![40, 2], &ids).unwrap(),
        ),
    ];
    fs::write(path, safetensors::serialize(tensors, None).unwrap()).unwrap();
}

/// A folder with an input in it.
fn folder_with_input() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.safetensors");
    write_input(&input);
    (folder, input)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn help_names_every_command() {
    let help = succeed(xtask().arg("help"));
    for command in [
        "run",
        "quantize",
        "dequantize",
        "dispatch",
        "test",
        "ptx",
        "gpu-bundle",
        "doctor",
        "ci",
    ] {
        assert!(
            help.contains(&format!("\n  {command}")),
            "{command}: {help}"
        );
        let own = succeed(xtask().args(["help", command]));
        assert!(
            own.contains(&format!("Usage: cargo xtask {command}")),
            "{own}"
        );
    }
}

#[test]
fn the_emulator_and_the_reference_write_the_same_file() {
    let (folder, input) = folder_with_input();
    for (format, rounding) in [("nvfp4", "rceil"), ("mxfp4", "floor"), ("mxfp8", "even")] {
        let outputs = ["reference", "emulator"].map(|backend| {
            let output = folder
                .path()
                .join(format!("{backend}-{format}.safetensors"));
            let mut command = xtask();
            command.arg("quantize").arg(&input).arg("-o").arg(&output);
            command.args([
                "--format",
                format,
                "--scale-rounding",
                rounding,
                "--experts",
                "5",
            ]);
            command.args(["--backend", backend, "--seed", "3"]);
            assert!(succeed(&mut command).starts_with("Backend: "));
            fs::read(&output).unwrap()
        });
        assert_eq!(outputs[0], outputs[1], "{format}");

        let file = SafeTensors::deserialize(&outputs[0]).unwrap();
        let offsets = file.tensor("row_offsets").unwrap();
        assert_eq!((offsets.dtype(), offsets.shape()), (Dtype::U32, &[6][..]));
        assert_eq!(file.tensor("source_rows").unwrap().shape(), [80]);

        let restored = ["reference", "emulator"].map(|backend| {
            let quantized = folder
                .path()
                .join(format!("{backend}-{format}.safetensors"));
            let output = folder
                .path()
                .join(format!("{backend}-{format}-f32.safetensors"));
            let mut command = xtask();
            command
                .arg("dequantize")
                .arg(&quantized)
                .arg("-o")
                .arg(&output);
            succeed(command.args(["--backend", backend]));
            fs::read(&output).unwrap()
        });
        assert_eq!(restored[0], restored[1], "{format}");
        let file = SafeTensors::deserialize(&restored[0]).unwrap();
        let rows = file.tensor("hidden_states").unwrap();
        assert_eq!((rows.dtype(), rows.shape()), (Dtype::F32, &[80, 72][..]));
    }
}

#[test]
fn json_is_one_document() {
    let (folder, input) = folder_with_input();
    let mut command = xtask();
    command.args([
        "--json",
        "quantize",
        "--format",
        "mxfp8",
        "--backend",
        "reference",
    ]);
    command
        .arg(&input)
        .arg("-o")
        .arg(folder.path().join("out.safetensors"));
    let document: serde_json::Value = serde_json::from_str(&succeed(&mut command)).unwrap();
    assert_eq!(document["rows"], 80);
    assert_eq!(document["columns"], 72);
    assert_eq!(document["experts"], 4);
}

#[test]
fn failures_leave_the_output_alone() {
    let (folder, input) = folder_with_input();
    let output = folder.path().join("out.safetensors");
    fs::write(&output, "precious").unwrap();
    let quantize = |input: &Path, format: &str, more: &[&str]| {
        let mut command = xtask();
        command.arg("quantize").arg(input).arg("-o").arg(&output);
        command
            .args(["--format", format, "--backend", "reference"])
            .args(more);
        command
    };

    let truncated = folder.path().join("truncated.safetensors");
    let content = fs::read(&input).unwrap();
    fs::write(&truncated, &content[..content.len() - 10]).unwrap();
    let error = fail(&mut quantize(&truncated, "mxfp8", &[]), 1);
    assert!(error.contains("truncated"), "{error}");

    let error = fail(
        &mut quantize(&folder.path().join("nothing"), "mxfp8", &[]),
        1,
    );
    assert!(error.contains("cannot read"), "{error}");

    let error = fail(&mut quantize(&input, "mxfp8", &["--experts", "2"]), 1);
    assert!(error.contains("names expert"), "{error}");

    let error = fail(
        &mut quantize(&input, "nvfp4", &["--scale-rounding", "floor"]),
        1,
    );
    assert!(error.contains("nvfp4 always rounds"), "{error}");

    let error = fail(&mut quantize(&input, "fp4", &[]), 2);
    assert!(
        error.contains("[possible values: nvfp4, mxfp4, mxfp8]"),
        "{error}"
    );

    let mut command = xtask();
    command.arg("dequantize").arg(&input).arg("-o").arg(&output);
    let error = fail(&mut command, 1);
    assert!(
        error.contains("was the file written by `quantize`?"),
        "{error}"
    );

    assert_eq!(fs::read(&output).unwrap(), b"precious");
    assert_eq!(
        names(folder.path()),
        ["in.safetensors", "out.safetensors", "truncated.safetensors"]
    );
}

#[test]
fn the_demonstration_writes_pictures_and_files() {
    let (folder, input) = folder_with_input();
    let out = folder.path().join("results");
    let mut command = xtask();
    command.args(["run", "--backend", "emulator", "--seed", "11", "--input"]);
    command.arg(&input).arg("--out").arg(&out);
    let text = succeed(&mut command);
    assert!(text.starts_with("Backend: "), "{text}");
    for format in ["NVFP4", "MXFP4", "MXFP8"] {
        assert!(text.contains(format), "{text}");
    }
    assert_eq!(
        names(&out),
        [
            "error_distribution.png",
            "error_distribution.svg",
            "mxfp4.safetensors",
            "mxfp8.safetensors",
            "nvfp4.safetensors",
            "results.json",
            "rows_per_expert.png",
            "rows_per_expert.svg",
        ]
    );
    let results = fs::read(out.join("results.json")).unwrap();
    let results: serde_json::Value = serde_json::from_slice(&results).unwrap();
    for result in results["formats"].as_array().unwrap() {
        assert_eq!(result["bit_exact"], true, "{result}");
    }
}

#[cfg(unix)]
#[test]
fn the_doctor_works_with_nothing_installed() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = xtask();
    command.arg("doctor").env_clear().current_dir(folder.path());
    let text = succeed(&mut command);
    let missing = |what: &str| format!("--      {what:<26}not on the path");
    assert!(text.contains(&missing("Rust toolchain")), "{text}");
    assert!(text.contains("needed to build anything"), "{text}");
    assert!(text.contains("rustup toolchain install"), "{text}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_leaves_no_trace() {
    use std::time::{Duration, Instant};

    let (folder, input) = folder_with_input();
    let output = folder.path().join("out.safetensors");
    // The command reads its input from a pipe that nobody writes to, and so is sure to be running.
    let pipe = folder.path().join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let mut command = xtask();
    command.arg("quantize").arg(&pipe).arg("-o").arg(&output);
    let mut child = command.args(["--format", "mxfp8"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let deadline = Instant::now() + Duration::from_secs(20);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(130));
    assert!(!output.exists());
    assert_eq!(names(folder.path()), ["in.safetensors", "pipe"]);
    drop(input);
}
